"""Several processes, one training: they must agree whether a step is skipped.

Each rank sees its own gradients. With DDP those are the same everywhere; with sharded
parameters, or ones that are not averaged, one rank may see an overflow alone. If it
skipped alone, the ranks would part: different weights, different scales. So `found_inf`
is the maximum over all ranks that share the step, taken before anything depends on it.

Which ranks? Those of the `process_group` given to the scaler; and those of the device
mesh, if gradients are DTensors (fully_shard, tensor parallel), with no option set.
Ranks agree on the scale because they start with the same one and see the same history.
After a stretch where they did not (uneven inputs, so unequal numbers of updates), let
`agree_on_scale` make them equal before the next common step.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.optim import Optimizer

from minamp.scaling.found_inf import FoundInf, combined, parameters_of

# A torch.distributed.ProcessGroup; a torch built without torch.distributed has no such
# class, and no ranks either.
ProcessGroup = Any


def agree_on_found_inf(
    found_inf: FoundInf,
    optimizer: Optimizer,
    device: torch.device,
    process_group: ProcessGroup | None,
) -> FoundInf:
    """`found_inf` of all ranks together; as it is if there are no other ranks.

    A rank whose shards are all empty takes part with a 0.
    """
    groups = _groups(optimizer, process_group)
    if not groups:
        return found_inf
    flag = combined(found_inf, device)
    for group in groups:
        # A flag is 0 or 1, so the maximum is "any rank".
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX, group)
    return {device: flag}


def _groups(
    optimizer: Optimizer, process_group: ProcessGroup | None
) -> list[ProcessGroup]:
    """One process group for each set of ranks that share the gradients."""
    if process_group is not None:
        return [process_group]
    if not has_shards(optimizer):
        return []
    groups = {}
    for parameter in parameters_of(optimizer):
        mesh = getattr(parameter, "device_mesh", None)  # only a DTensor has one
        if mesh is not None:
            groups.update({id(group): group for group in mesh.get_all_groups()})
    return list(groups.values())


def agree_on_fault(at_fault: Tensor, process_group: ProcessGroup | None) -> Tensor:
    """The scale is at fault for an overflow if every rank of the group says so.

    A NaN loss of one rank reaches the others through averaged gradients. Ranks that
    have no group to talk in cannot know, so there, as in torch.amp, every overflow
    lowers the scale: it must fall on all of them or on none.
    """
    if process_group is not None:
        votes = at_fault.float()
        torch.distributed.all_reduce(
            votes, torch.distributed.ReduceOp.MIN, process_group
        )
        return votes.bool()
    return torch.ones_like(at_fault) if has_other_ranks() else at_fault


def has_other_ranks() -> bool:
    """Is this process one of several that train together?"""
    distributed = torch.distributed
    has_ranks = distributed.is_available() and distributed.is_initialized()
    return has_ranks and distributed.get_world_size() > 1


def has_shards(optimizer: Optimizer) -> bool:
    """Does the optimizer own DTensors, of which this rank has only a part?"""
    return has_other_ranks() and any(
        hasattr(parameter, "device_mesh") for parameter in parameters_of(optimizer)
    )


def agree_on_scale(
    scale: Tensor, growth_tracker: Tensor, process_group: ProcessGroup | None
) -> None:
    """Give every rank the smallest scale of all, and the shortest run of clean steps.

    Every rank of the group must call it, and at the same point.
    """
    smallest = torch.distributed.ReduceOp.MIN
    torch.distributed.all_reduce(scale, smallest, process_group)
    torch.distributed.all_reduce(growth_tracker, smallest, process_group)
