"""The weights floor: models that hold 16-bit weights and still learn from small steps.

Read ``twins.py`` first (a half weight and its float32 twin), then ``half_weights.py``
(the twins take the weights' place in the optimizer).  Then come three answers to "what
is kept between two steps": ``master_weights.py`` keeps all of the twin,
``stochastic_rounding.py`` nothing, ``kahan.py`` the 16 bits that rounding cut off.
"""
