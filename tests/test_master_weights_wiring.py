"""Laws of master weights: which parameters get one, and who else notices.

Tied and frozen weights, parameter groups, optimizers that have stepped before, copies,
compiled models, mistakes.
"""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn

from minamp.weights.gradient_memory import float32_copy
from minamp.weights.master_weights import MasterWeights
from minamp.weights.twins import twin_of
from oracles import assert_same_bits

HALF = torch.bfloat16


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))


def inputs(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(1)).to(dtype)


def with_masters(
    model: nn.Module, parameters=None, make=torch.optim.SGD, **options
) -> tuple[torch.optim.Optimizer, MasterWeights]:
    optimizer = make(list(parameters or model.parameters()), lr=0.1)
    return optimizer, MasterWeights(model, optimizer, HALF, **options)


def backward(model: nn.Module) -> None:
    with torch.autocast("cpu", HALF):
        model(inputs()).float().square().mean().backward()


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    backward(model)
    optimizer.step()


# --- which weights ------------------------------------------------------------------


def test_norm_layers_and_buffers_stay_float32():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.RMSNorm(3))
    optimizer, _ = with_masters(model)
    dtypes = {name: value.dtype for name, value in model.state_dict().items()}
    assert dtypes.pop("0.weight") is dtypes.pop("0.bias") is HALF
    assert dtypes.pop("1.num_batches_tracked") is torch.int64
    assert set(dtypes.values()) == {torch.float32}
    # They need no master: the optimizer has the very parameters of the model.
    assert any(p is model[1].weight for p in optimizer.param_groups[0]["params"])


def test_kept_kinds_are_an_argument_and_mean_everything_inside():
    head = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    model = nn.ModuleList([nn.Linear(2, 2), nn.LayerNorm(2), head])
    with_masters(model, keep_float32=(nn.Sequential,))
    assert model[0].weight.dtype is model[1].weight.dtype is HALF
    assert {p.dtype for p in head.parameters()} == {torch.float32}


def test_weights_that_are_half_already_keep_their_dtype_norms_too():
    model = small_net().half()
    _, masters = with_masters(model)
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    assert {p.dtype for p in masters.parameters()} == {torch.float32}


def test_weights_of_recurrent_layers_are_put_in_one_piece_again(monkeypatch):
    """cuDNN asks for it, and warns at every call until it is done."""
    flattened = []
    monkeypatch.setattr(
        nn.LSTM,
        "flatten_parameters",
        lambda lstm: flattened.append({p.dtype for p in lstm.parameters()}),
    )
    model = nn.LSTM(2, 3)
    flattened.clear()
    with_masters(model)
    assert flattened == [{HALF}]


def test_tied_weight_has_one_master_that_gets_both_gradients():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x) + 2 * self.second(x)

    model = Tied()
    optimizer, masters = with_masters(model)
    assert model.first.weight is model.second.weight
    assert len(optimizer.param_groups[0]["params"]) == 3
    model(torch.eye(4).to(HALF)).sum().backward()
    master = dict(masters.named_parameters())["first.weight"]
    assert_same_bits(master.grad, torch.full((4, 4), 3.0))
    state = masters.state_dict()
    assert_same_bits(state["first.weight"], state["second.weight"])


def test_frozen_weight_becomes_half_and_never_moves():
    model = small_net()
    model[0].requires_grad_(False)
    before = model[0].weight.detach().to(HALF)
    optimizer, _ = with_masters(model, model[3].parameters())
    for _ in range(3):
        step(model, optimizer)
    assert_same_bits(model[0].weight.detach(), before)
    assert twin_of(model[0].weight) is None


def test_frozen_weight_in_the_optimizer_trains_once_it_is_unfrozen():
    model = small_net()
    model[0].requires_grad_(False)
    optimizer, _ = with_masters(model)
    step(model, optimizer)
    before = model[0].weight.detach().clone()
    model[0].requires_grad_(True)
    step(model, optimizer)
    assert model[0].weight.grad is None
    assert not torch.equal(model[0].weight, before)


def test_add_param_group_takes_half_weights_that_were_frozen():
    model = small_net()
    model[0].requires_grad_(False)
    optimizer, _ = with_masters(model, model[3].parameters())
    step(model, optimizer)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.5})
    before = model[0].weight.detach().clone()
    step(model, optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.5]
    assert not torch.equal(model[0].weight, before)
    assert_same_bits(model[0].weight.detach(), twin_of(model[0].weight).to(HALF))


def test_weight_added_twice_is_refused_and_nothing_changes():
    model = small_net()
    optimizer, _ = with_masters(model)
    groups = [list(group["params"]) for group in optimizer.param_groups]
    with pytest.raises(ValueError, match="in this optimizer already.*Leave it out"):
        optimizer.add_param_group({"params": [model[0].weight]})
    assert [len(g["params"]) for g in optimizer.param_groups] == [len(groups[0])]
    step(model, optimizer)


def test_each_group_keeps_its_own_settings():
    model = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)])
    for layer in model:
        nn.init.ones_(layer.weight)
    groups = [
        {"params": model[0].parameters(), "lr": 1.0},
        {"params": [model[1].weight]},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.25)
    MasterWeights(model, optimizer, HALF)
    (model[0].weight + model[1].weight).sum().backward()
    optimizer.step()
    assert (model[0].weight.item(), model[1].weight.item()) == (0.0, 0.75)


def test_two_optimizers_of_one_model_each_get_their_masters():
    model = small_net()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.Adam(model[3].parameters(), lr=0.1)
    bits = model[3].weight.detach().clone()
    MasterWeights(model, first, HALF)
    masters = MasterWeights(model, second, HALF)
    assert_same_bits(masters.state_dict()["3.weight"], bits)
    before = [model[0].weight.detach().clone(), model[3].weight.detach().clone()]
    backward(model)
    first.step()
    second.step()
    assert not torch.equal(model[0].weight, before[0])
    assert not torch.equal(model[3].weight, before[1])


def test_a_new_optimizer_takes_over_the_masters_bits():
    model = small_net()
    _, old = with_masters(model)
    bits = {name: value.clone() for name, value in old.state_dict().items()}
    optimizer, new = with_masters(model, make=torch.optim.Adam)
    for name, value in new.state_dict().items():
        assert_same_bits(value, bits[name], name)
    before = model[0].weight.detach().clone()
    step(model, optimizer)
    assert not torch.equal(model[0].weight, before)


# --- an optimizer that has stepped before -------------------------------------------


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.RMSprop])
def test_moments_of_earlier_steps_carry_over_to_the_bit(make):
    model = small_net()
    optimizer = make(model.parameters(), lr=0.1)
    step(model, optimizer)
    before = copy.deepcopy(optimizer.state_dict()["state"])
    MasterWeights(model, optimizer, HALF)
    after = optimizer.state_dict()["state"]
    assert before.keys() == after.keys()
    for index, moments in before.items():
        for key, value in moments.items():
            assert_same_bits(after[index][key], value, key)


def test_moments_that_were_half_become_float32():
    model = small_net().to(HALF)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(inputs(HALF)).sum().backward()
    optimizer.step()
    before = optimizer.state[model[0].weight]["momentum_buffer"]
    MasterWeights(model, optimizer)
    after = optimizer.state[twin_of(model[0].weight)]["momentum_buffer"]
    assert_same_bits(after, before.float())


def test_gradients_from_before_the_call_count():
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model)
    grad = model[0].weight.grad.clone()
    MasterWeights(model, optimizer, HALF)
    assert model[0].weight.grad is None
    assert_same_bits(twin_of(model[0].weight).grad, grad)


# --- gradients ----------------------------------------------------------------------


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("whose", ["model", "optimizer"])
def test_zero_grad_of_model_and_optimizer_clear_the_masters(whose, set_to_none):
    model = small_net()
    optimizer, masters = with_masters(model)
    backward(model)
    owner = model if whose == "model" else optimizer
    owner.zero_grad(set_to_none=set_to_none)
    for parameter in masters.parameters():
        assert (parameter.grad is None) == set_to_none
        assert set_to_none or not parameter.grad.any()


def test_zero_grad_of_a_part_of_the_model_clears_its_masters_only():
    model = small_net()
    with_masters(model)
    backward(model)
    model[0].zero_grad()
    assert twin_of(model[0].weight).grad is None
    assert twin_of(model[3].weight).grad is not None


def test_zero_grad_of_a_compiled_model_clears_the_masters():
    model = torch.compile(small_net(), backend="eager")
    _, masters = with_masters(model)
    backward(model)
    model.zero_grad()
    assert all(p.grad is None for p in masters.parameters())


def test_gradient_put_on_the_half_weight_by_hand_is_used():
    model = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer, _ = with_masters(model)
    model.weight.grad = torch.full_like(model.weight, 2.0)
    optimizer.step()
    assert_same_bits(twin_of(model.weight).detach(), torch.ones(1, 2) - 0.1 * 2)


def test_sparse_gradients_stay_sparse_and_add_up():
    model = nn.Embedding(6, 2, sparse=True)
    nn.init.zeros_(model.weight)
    optimizer, _ = with_masters(model)
    for _ in range(2):
        model(torch.tensor([1, 3, 3])).sum().backward()
    assert twin_of(model.weight).grad.is_sparse
    optimizer.step()
    moved = torch.tensor([0.0, -0.2, 0.0, -0.4, 0.0, 0.0])
    torch.testing.assert_close(twin_of(model.weight).detach()[:, 0], moved)


def test_memory_of_a_gradient_is_used_again_unless_somebody_holds_it():
    twin, grad = torch.zeros(2**23), torch.ones(2**23, dtype=HALF)
    address = float32_copy(grad, twin).data_ptr()
    assert float32_copy(grad, twin).data_ptr() == address
    for hold in (lambda g: g, lambda g: g.detach(), lambda g: g[1:], lambda g: g.data):
        held = hold(float32_copy(grad, twin))
        kept = held.clone()
        float32_copy(2 * grad, twin)
        assert_same_bits(held, kept)
    del held
    address = float32_copy(grad, twin).data_ptr()
    assert float32_copy(grad, twin).data_ptr() == address


# The warning is about the very cycle that the move to the masters breaks.
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_double_backward_leaves_no_graph_on_the_masters():
    model = nn.Linear(3, 1)
    optimizer, masters = with_masters(model)
    x = inputs(HALF)[:, :3].requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    slope.square().sum().backward(create_graph=True)
    assert not any(
        p.grad.requires_grad for p in masters.parameters() if p.grad is not None
    )
    optimizer.step()


# --- copies, compiled models, inputs ------------------------------------------------


def test_deep_copy_is_a_plain_half_model_linked_to_nothing():
    model = small_net()
    optimizer, masters = with_masters(model)
    twin = copy.deepcopy(model)
    bits = {name: value.clone() for name, value in masters.state_dict().items()}
    backward(twin)
    assert twin[0].weight.grad.dtype is HALF
    assert all(p.grad is None for p in masters.parameters())
    twin.zero_grad()
    assert twin[0].weight.grad is None
    twin.load_state_dict({name: value + 1 for name, value in bits.items()})
    for name, value in masters.state_dict().items():
        assert_same_bits(value, bits[name], name)
    step(model, optimizer)
    assert_same_bits(twin[0].weight.detach(), (bits["0.weight"] + 1).to(HALF))


def test_pickled_model_comes_back_with_its_masters():
    model = small_net()
    optimizer, masters = with_masters(model)
    step(model, optimizer)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    # Our own file: a whole model is code, which weights_only would refuse.
    loaded = torch.load(buffer, weights_only=False)
    _, masters_loaded = with_masters(loaded)
    for name, value in masters.state_dict().items():
        assert_same_bits(masters_loaded.state_dict()[name], value, name)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["outside", "float32_outside"])
def test_compiled_model_gives_its_gradients_to_the_masters(where):
    def train(compiled: bool) -> dict[str, Tensor]:
        model = small_net()
        outside = where == "float32_outside"
        optimizer, masters = with_masters(model, float32_outside=outside)
        run = (
            torch.compile(model, backend="eager", fullgraph=True) if compiled else model
        )
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", HALF, enabled=not outside):
                run(inputs()).float().square().mean().backward()
            optimizer.step()
        return masters.state_dict()

    expected = train(False)
    for name, value in train(True).items():
        assert_same_bits(value, expected[name], name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float32_outside_runs_a_plain_loop(dtype):
    model = nn.Sequential(small_net(), nn.BatchNorm1d(2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    MasterWeights(model, optimizer, dtype, float32_outside=True)
    seen = []
    model[2].register_forward_pre_hook(lambda module, args: seen.append(args[0].dtype))
    for _ in range(2):
        output = model(inputs())
        optimizer.zero_grad()
        output.square().mean().backward()
        optimizer.step()
    assert output.dtype is torch.float32
    assert set(seen) == {dtype}


def test_writing_to_a_weight_in_place_reaches_its_master():
    model = nn.Linear(3, 2)
    optimizer, masters = with_masters(model)
    low_bits = masters.state_dict()["weight"].clone()
    with torch.no_grad():
        model.weight[0].fill_(0.5)
    master = masters.state_dict()["weight"]
    assert_same_bits(master[0], torch.full((3,), 0.5))
    assert_same_bits(master[1], low_bits[1])  # not written to, so nothing is lost
    model.weight.sum().backward()
    optimizer.step()
    assert_same_bits(model.weight[0].detach(), torch.full((3,), 0.4, dtype=HALF))


# --- mistakes -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8])
def test_dtype_that_is_not_half_is_refused_with_the_cure(dtype):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(ValueError, match=r"not a 16-bit format: write dtype=torch"):
        MasterWeights(model, optimizer, dtype)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_nothing_to_do_is_refused_and_changes_nothing():
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(ValueError, match=r"what it shall become.*dtype=torch.bfloat16"):
        MasterWeights(model, optimizer)
    assert optimizer.param_groups[0]["params"] == list(model.parameters())
    step(model, optimizer)


def test_second_call_for_one_optimizer_is_refused():
    model = small_net()
    optimizer, _ = with_masters(model)
    with pytest.raises(ValueError, match="call this once"):
        MasterWeights(model, optimizer, HALF)
    step(model, optimizer)


def test_second_gradient_on_a_half_weight_is_refused():
    model = small_net()
    optimizer, _ = with_masters(model)
    backward(model)
    model[0].weight.grad = torch.ones_like(model[0].weight)
    with pytest.raises(RuntimeError, match="set the master's instead"):
        optimizer.step()


def test_data_parallel_whose_averages_would_be_lost_is_refused():
    torch.distributed.init_process_group(
        "gloo", rank=0, world_size=1, store=torch.distributed.HashStore()
    )
    try:
        model = small_net()
        optimizer, _ = with_masters(model)
        backward(nn.parallel.DistributedDataParallel(model))
        with pytest.raises(RuntimeError, match="DistributedDataParallel.*all_reduce"):
            optimizer.step()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_without_float32_outside_a_half_model_is_not_wrapped(dtype):
    model = nn.Linear(2, 1)
    MasterWeights(model, torch.optim.SGD(model.parameters()), dtype)
    assert model(torch.ones(1, 2, dtype=dtype)).dtype is dtype
    with pytest.raises(RuntimeError, match="dtype"):
        model(torch.ones(1, 2))


def test_the_third_group_of_an_optimizer_gets_masters_too():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    optimizer, _ = with_masters(model, model[0].parameters())
    for layer in model[1:]:
        optimizer.add_param_group({"params": layer.parameters()})
    assert all(twin_of(parameter) is not None for parameter in model.parameters())
    before = model[2].weight.detach().clone()
    step(model, optimizer)
    assert not torch.equal(model[2].weight, before)


@pytest.mark.parametrize("by_keyword", [False, True])
def test_a_closure_is_run_on_the_weights_of_now(by_keyword):
    model = small_net()
    optimizer, _ = with_masters(model, make=torch.optim.LBFGS)
    seen = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        seen.append(model[0].weight.detach().clone())
        assert_same_bits(seen[-1], twin_of(model[0].weight).to(HALF))
        with torch.autocast("cpu", HALF):
            loss = model(inputs()).float().square().mean()
        loss.backward()
        return loss

    if by_keyword:
        optimizer.step(closure=closure)
    else:
        optimizer.step(closure)
    assert len(seen) > 1 and not torch.equal(seen[0], seen[-1])
