"""The top floor: the whole step on one screen.

Reading order: `recipes` names the usual combinations of precisions and builds their
parts for a model and an optimizer; `train_step` runs one step with those parts.  Then,
to stop and go on later: `atomic_file` and, with it, `training_state`.
"""
