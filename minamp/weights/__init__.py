"""The weights floor: models that hold 16-bit weights and still learn from small steps.

Read ``twins.py`` first (a half weight and its float32 twin), then ``half_weights.py``
(the twins take the weights' places in the optimizer).  Then come three answers to "what
is kept between two steps": ``master_weights.py`` keeps all of the twin, ``kahan.py``
the half that rounding cut off, ``stochastic_rounding.py`` nothing.

The rest are details, each readable alone: ``which_weights.py`` (not those of norms),
``gradient_memory.py``, ``optimizer_memory.py`` (masters in the optimizer's state),
``pieces.py``, ``float32_outside.py`` (half models without autocast), ``mistakes.py``.
"""
