"""Floor 1, tensors: questions and changes that concern many tensors at once.

Read `casting.py` (which values may be cast, and how a nested structure is cast), then
`gradients.py` (are all gradients finite? their norm, their unscaling, in few passes),
then `histogram.py` (how many values sit at each power of two) and `random_state.py`
(the random generators, saved and restored).
"""
