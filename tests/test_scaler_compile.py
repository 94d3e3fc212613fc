"""The scaler inside compiled functions and captured graphs."""

from __future__ import annotations

import math

import pytest
import torch

from training import Training

HISTORY = "..x.xx..."


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def follow(training: Training, end_of_iteration, history: str = HISTORY) -> list:
    """Weight, scale and growth tracker after each iteration."""
    seen = []
    for letter in history:
        training.backward(math.inf if letter == "x" else 0.0)
        end_of_iteration()
        scaler = training.scaler
        scale_now = (scaler.get_scale(), scaler._get_growth_tracker())
        seen.append((training.steps_taken, *scale_now))
    return seen


def eager(training: Training) -> list:
    def end_of_iteration() -> None:
        training.scaler.step(training.optimizer)
        training.scaler.update()

    return follow(training, end_of_iteration)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_scale_and_update_are_traced_without_a_graph_break(backend, device):
    compiled, plain = (Training(device, growth_interval=2) for _ in range(2))
    compiled.step()  # the tensors are made
    plain.step()
    scale = torch.compile(compiled.scaler.scale, backend=backend, fullgraph=True)
    update = torch.compile(compiled.scaler.update, backend=backend, fullgraph=True)

    def end_of_iteration() -> None:
        compiled.scaler.step(compiled.optimizer)
        update()

    assert follow(compiled, end_of_iteration) == eager(plain)
    loss = torch.tensor(3.0, device=device)
    assert torch.equal(scale(loss), plain.scaler.scale(loss))


# Tracing an optimizer makes torch import a part of itself that it has deprecated.
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("fused", [False, True])
def test_step_and_update_compiled_do_what_they_do_eagerly(fused, device):
    """torch's optimizers break the graph themselves, so no `fullgraph` here."""
    settings = {"growth_interval": 2, "optimizer_kwargs": {"fused": fused}}
    compiled, plain = (Training(device, **settings) for _ in range(2))

    @torch.compile(backend="eager")
    def end_of_iteration() -> None:
        compiled.scaler.step(compiled.optimizer)
        compiled.scaler.update()

    assert follow(compiled, end_of_iteration) == eager(plain)
    outcomes = [t.scaler.outcome(t.optimizer) for t in (compiled, plain)]
    assert outcomes[0] == outcomes[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_a_captured_step_skips_counts_and_adapts_when_it_is_replayed():
    training = Training(
        "cuda", growth_interval=2, optimizer_kwargs={"fused": True}, init_scale=64.0
    )
    gradient = torch.ones(2, device="cuda")

    def iteration() -> None:
        loss = training.scaler.scale((training.weight * gradient).sum())
        (training.weight.grad,) = torch.autograd.grad(loss, training.weight)
        training.scaler.step(training.optimizer)
        training.scaler.update()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        iteration()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        iteration()
    for value in (1.0, 1e38, 1.0, 1.0):  # times the scale, 1e38 is inf; the loss is not
        gradient.fill_(value)
        graph.replay()
    outcome = training.scaler.outcome(training.optimizer)
    assert (outcome.taken, outcome.skipped) == (4, 1)
    assert training.steps_taken == 4
    # 64, then grown to 128 by the second clean step, halved, and grown again.
    assert training.scaler.get_scale() == 128.0
