"""Floor 0: what a floating-point format can hold, and how a number gets into it.

Read `formats` first (which numbers exist), then `patterns` (the bits that stand for
them), then `rounding` (which number is taken when the wanted one does not exist).
Nothing here knows about tensors: it is exact arithmetic on fractions, slow and
certainly right, so that everything faster can be compared with it.
"""
