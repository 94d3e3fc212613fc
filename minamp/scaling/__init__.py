"""Floor 4, loss scaling: keep small gradients above the underflow of half precision.

The chain rule is linear: multiply the loss by a *loss scale* and every gradient is
multiplied by it; divide the gradients by it and the training is as before, but nothing
on the way was too small for fp16.

Read in this order:

- `scale_rule.py`     growth and back-off as a pure function
- `device_rule.py`    the same rule on tensors, so that no device waits for the host
- `outputs.py`        multiply a loss, or a nest of them, by the scale
- `found_inf.py`      unscale and check the gradients of an optimizer
- `scaler.py`         DynamicLossScaler: scale, unscale_, step
- `updating.py`       its update
- `no_scaler.py`      no scaling, with the same methods
- `static_scaler.py`  a scale that never changes

DynamicLossScaler stands on three classes that are about one thing each: what it keeps
(`scale_keeper.py`, with `settings.py`), how it is saved (`persistence.py`), and what it
notes of each step (`bookkeeping.py`, with `iteration.py`). `stepping.py` has the
optimizers that cannot simply be run or skipped.

Then, each alone, what people ask of a scaler: `outcome.py` (was the step taken?),
`diagnosis.py` (which parameter is to blame?), `overflow_trace.py` (which module?),
`floor.py` (when backing off cannot help), `not_the_scale.py` (NaN that scaling did not
make), `mistakes.py` (what is silent elsewhere), `tolerance.py` (one overflow may be
chance), `clipping.py` (norm and check in one pass), `closures.py` (LBFGS, SAM),
`gradient_penalty.py` (gradients in the loss), `retry.py` (do not lose the batch),
`batchnorm_guard.py` (statistics of skipped steps), `distributed.py` (several ranks).
"""
