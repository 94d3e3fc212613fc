"""Two processes, one training: they skip together and have one scale."""

from __future__ import annotations

import math
import tempfile
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from minamp.scaling.scaler import DynamicLossScaler
from training import Training

RANKS = 2
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()),
        reason="this torch was built without the gloo backend of torch.distributed",
    ),
]


def steps_with_group(rank: int) -> tuple[float, float]:
    """An overflow that only rank 1 sees, in the second of three steps."""
    training = Training(process_group=dist.group.WORLD)
    for poison in (0.0, math.inf * rank if rank else 0.0, 0.0):
        training.step(poison)
    return training.steps_taken, training.scaler.get_scale()


def fused_steps_with_group(rank: int) -> tuple[float, float]:
    training = Training(
        process_group=dist.group.WORLD, optimizer_kwargs={"fused": True}
    )
    training.step(math.nan if rank else 0.0)
    return training.steps_taken, training.scaler.get_scale()


def clipped_steps_with_group(rank: int) -> tuple[float, float]:
    """One reading pass gives the norm and the answer that the ranks have to share."""
    training = Training(process_group=dist.group.WORLD)
    for poison in (math.inf if rank else 0.0, 0.0):
        clipped_step(training, poison)
    return training.steps_taken, training.scaler.get_scale()


def clipped_steps_without_group(rank: int) -> tuple[float, float]:
    training = Training()
    clipped_step(training, math.inf if rank else 0.0)
    return training.steps_taken, training.scaler.get_scale()


def clipped_step(training: Training, poison: float) -> None:
    training.backward(poison)
    training.scaler.clip_grad_norm_(training.optimizer, 100.0)
    training.scaler.step(training.optimizer)
    training.scaler.update()


def steps_without_group(rank: int) -> tuple[float, float]:
    training = Training()
    training.step(math.nan if rank else 0.0)
    return training.steps_taken, training.scaler.get_scale()


def nan_loss_on_one_rank(rank: int, group=None) -> float:
    """Gradients are averaged, as DDP does, so every rank has NaN in them."""
    training = Training(process_group=group)
    training.optimizer.zero_grad()
    loss = training.loss() * (math.nan if rank else 1.0)
    training.scaler.scale(loss).backward()
    dist.all_reduce(training.weight.grad)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # about the loss
        training.scaler.step(training.optimizer)
    training.scaler.update()
    return training.scaler.get_scale()


def nan_loss_on_one_rank_with_group(rank: int) -> float:
    return nan_loss_on_one_rank(rank, dist.group.WORLD)


def uneven_then_agreed(rank: int) -> float:
    """Unequal numbers of updates; afterwards the ranks take the smallest scale."""
    training = Training(growth_interval=2)
    training.steps("..." if rank else ".....")
    training.scaler.agree_on_scale()
    return training.scaler.get_scale()


def sharded_steps(
    rank: int, clips: bool = False, fused: bool = False
) -> tuple[float, float, float]:
    """fully_shard: the bias has one element, so rank 1's shard of it is empty."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    torch.nn.init.ones_(model.weight)
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    # Of the fused optimizers only Adam takes shards; of gradients that are all 1 it
    # makes steps of lr, as SGD does.
    kind = partial(torch.optim.Adam, fused=True) if fused else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=0.125)
    scaler, norm = DynamicLossScaler("cpu", init_scale=16.0), torch.zeros(())
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 4)).mean()).backward()
        if step == 1 and rank == 0:
            model.weight.grad.to_local()[0, 0] = math.inf
        if clips:
            norm = scaler.clip_grad_norm_(optimizer, 100.0)
        scaler.step(optimizer)
        scaler.update()
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    weight = model.weight.full_tensor()[0, 0].item()
    return weight, scaler.get_scale(), norm.item()


def sharded_steps_with_clipping(rank: int) -> tuple[float, float, float]:
    return sharded_steps(rank, clips=True)


def fused_sharded_steps(rank: int) -> tuple[float, float, float]:
    return sharded_steps(rank, fused=True)


SCENARIOS = [
    steps_with_group,
    fused_steps_with_group,
    clipped_steps_with_group,
    clipped_steps_without_group,
    steps_without_group,
    nan_loss_on_one_rank,
    nan_loss_on_one_rank_with_group,
    uneven_then_agreed,
]
# fully_shard records events on the streams of its device, the CPU's included.
CAN_SHARD = hasattr(torch.cpu.Stream, "record_event")
if CAN_SHARD:
    SCENARIOS += [sharded_steps, sharded_steps_with_clipping, fused_sharded_steps]
needs_sharding = pytest.mark.skipif(
    not CAN_SHARD, reason="fully_shard of this torch (2.6) cannot run on the CPU"
)


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group(
        "gloo",
        init_method=store,
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(minutes=1),  # ranks that part would wait for half an hour
    )
    results = {scenario.__name__: scenario(rank) for scenario in SCENARIOS}
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results():
    """What each scenario returned, by its name: a list with an entry a rank."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, args=(folder,), nprocs=RANKS)
        ranks = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(RANKS)]
    return {name: [rank[name] for rank in ranks] for name in ranks[0]}


def test_an_overflow_on_one_rank_skips_on_all_ranks_of_the_group(results):
    assert results["steps_with_group"] == [(2.0, 512.0)] * RANKS


def test_fused_optimizers_skip_on_all_ranks_of_the_group(results):
    assert results["fused_steps_with_group"] == [(0.0, 512.0)] * RANKS


def test_clipping_in_one_pass_skips_on_all_ranks_of_the_group(results):
    assert results["clipped_steps_with_group"] == [(1.0, 512.0)] * RANKS


def test_without_a_group_each_rank_goes_its_own_way(results):
    """What the group is for; a script for one process communicates with nobody."""
    alone = [(1.0, 1024.0), (0.0, 512.0)]
    assert results["steps_without_group"] == alone
    assert results["clipped_steps_without_group"] == alone


def test_a_nan_loss_on_one_rank_never_parts_the_scales(results):
    """With a group the ranks know that the scale is not at fault; without, they cannot
    know, and back off together."""
    assert results["nan_loss_on_one_rank"] == [512.0] * RANKS
    assert results["nan_loss_on_one_rank_with_group"] == [1024.0] * RANKS


def test_ranks_with_unequal_histories_agree_on_the_smallest_scale(results):
    assert results["uneven_then_agreed"] == [2048.0] * RANKS


@needs_sharding
def test_sharded_gradients_need_no_option(results):
    assert results["sharded_steps"] == [(0.75, 8.0, 0.0)] * RANKS


@needs_sharding
def test_clipping_takes_the_norm_over_all_shards(results):
    """Gradients are 1 for each of four weights and a bias: the norm is sqrt(5)."""
    expected = pytest.approx((0.75, 8.0, math.sqrt(5)))
    assert results["sharded_steps_with_clipping"] == [expected] * RANKS


@needs_sharding
def test_fused_optimizers_skip_on_every_rank_when_one_shard_overflows(results):
    expected = pytest.approx((0.75, 8.0, 0.0))
    assert results["fused_sharded_steps"] == [expected] * RANKS
