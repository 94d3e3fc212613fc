"""NaN that scaling did not make: then a smaller scale cannot help.

Two cases can be told for certain.

- The loss was inf or NaN *before* it was multiplied by the scale (bad data, a forward
  pass that overflowed by itself).
- The gradients of a skipped step were never zeroed: they are still inf, and whatever is
  added to them stays inf.

torch.amp backs off in both, until the scale is 0 and training is over. Here the step is
skipped all the same, and the scale is left alone.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.optim import Optimizer

from minamp.scaling.found_inf import any_of, check, gradients_of
from minamp.scaling.iteration import Iteration

# What is scaled may be a model's whole output; a loss is small. Looking at more than
# this many numbers would cost more than it can tell.
LOSS_ELEMENTS = 2**16

NEVER_ZEROED = (
    "A step was skipped because the gradients of an earlier skipped step were still "
    "there, inf or NaN, and the backward pass added to them: every following step will "
    "be skipped as well. Call optimizer.zero_grad() in every iteration, also after a "
    "skipped step. The loss scale is not lowered for this."
)

NOT_FINITE_BEFORE = (
    "A step was skipped because the loss was inf or NaN before it was multiplied by "
    "the loss scale. A smaller scale cannot help, so it is left alone. Look at the "
    "batch (inputs, labels, an empty mask) and at the forward pass: "
    "overflow_trace(model) names the first module with an output that is not finite."
)


def note_loss(iteration: Iteration, output: Tensor) -> None:
    """Keep the loss for later: it is looked at only if the step overflows.

    Once a scaled loss of this iteration has gone backward, it proves nothing: a
    gradient penalty is made of scaled gradients, so it may be NaN because of the scale.
    """
    if not iteration.backwards and output.numel() <= LOSS_ELEMENTS:
        iteration.losses.append(output.detach())


def is_inside_transform(output: Tensor) -> bool:
    """Is this a tensor of torch.func or vmap? It is not valid outside, so not kept."""
    # torch has no public name for the question.
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(output))


def look_for_zeroed_gradients(iteration: Iteration) -> None:
    """As a backward pass begins: whose gradients of a skipped step were zeroed?

    Theirs are finite now, or None. Those of the others may be zeroed yet, as a loop
    with two optimizers does before each backward pass of its own. Asks the device, but
    only after a step that was skipped.
    """
    if not iteration.unzeroed or _is_capturing():
        return
    for key, reference in list(iteration.unzeroed.items()):
        optimizer = reference()
        if optimizer is None or not any_of(check(gradients_of(optimizer))):
            del iteration.unzeroed[key]


def note_stale_gradients(iteration: Iteration, optimizer: Optimizer) -> None:
    """A step overflowed: was it made of gradients that nobody has zeroed?"""
    if iteration.unzeroed.pop(id(optimizer), None) is not None:
        iteration.stale = True
        warnings.warn(NEVER_ZEROED, RuntimeWarning, stacklevel=6)


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def scale_is_at_fault(iteration: Iteration, device: torch.device) -> Tensor:
    """Could a smaller scale have avoided this overflow? bool, 0-dim, on `device`."""
    if iteration.stale:
        return torch.zeros((), dtype=torch.bool, device=device)
    finite = [loss.isfinite().all().to(device) for loss in iteration.losses]
    if not finite:
        return torch.ones((), dtype=torch.bool, device=device)
    return torch.stack(finite).all()
