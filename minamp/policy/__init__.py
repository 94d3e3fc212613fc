"""Floor 2, policy: which op runs in which precision.

Reading order: ``op_lists.py`` (a list is a value), ``torch_lists.py`` (PyTorch's own
decisions, with reasons), ``safe_lists.py`` (what they leave dangerous, made right),
``policies.py`` (each category as a function from arguments to arguments).
"""
