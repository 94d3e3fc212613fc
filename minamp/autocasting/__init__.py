"""Floor 3, autocast: the region in which each op runs in the precision its list says.

Reading order: ``weight_cache.py`` (one cast a weight), ``settings.py`` (what a region
asks for), ``dispatch_key.py`` (how an op is caught), ``region.py`` (the context manager
and decorator), ``custom_function.py`` (autograd functions of your own),
``recompute.py`` (activation checkpointing), ``compiling.py`` (``torch.compile``).
"""
