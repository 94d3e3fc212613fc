"""Scaling, unscaling, stepping and skipping: each law of the scaler's core."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict, defaultdict, namedtuple

import pytest
import torch

import oracles
from minamp.scaling.no_scaler import NoLossScaler
from minamp.scaling.scaler import DynamicLossScaler
from minamp.scaling.static_scaler import StaticLossScaler
from minamp.scaling.tolerance import InARow
from training import LR, Training

POISONS = [math.inf, -math.inf, math.nan]
OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {}),
    "SGD with momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "SGD fused": (torch.optim.SGD, {"fused": True, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {}),
    "AdamW foreach": (torch.optim.AdamW, {"foreach": True}),
    "AdamW fused": (torch.optim.AdamW, {"fused": True}),
}
all_optimizers = pytest.mark.parametrize("name", OPTIMIZERS)


def training_with(name: str, device: str, **kwargs) -> Training:
    make, settings = OPTIMIZERS[name]
    return Training(device, make_optimizer=make, optimizer_kwargs=settings, **kwargs)


@all_optimizers
@pytest.mark.parametrize("poison", POISONS)
def test_skipped_step_leaves_weights_and_optimizer_bits_alone(name, poison, device):
    training = training_with(name, device)
    training.steps("..")
    before = copy.deepcopy(training.optimizer.state_dict()), training.weight.clone()
    training.step(poison)
    after = training.optimizer.state_dict()
    oracles.assert_same_bits(training.weight.detach(), before[1].detach())
    for key, value in before[0]["state"].get(0, {}).items():
        oracles.assert_same_bits(after["state"][0][key], value, key)


@all_optimizers
def test_with_a_power_of_two_training_is_the_same_to_the_bit_as_without(name, device):
    scaled, plain = training_with(name, device), training_with(name, device)
    plain.scaler = NoLossScaler()
    for training in (scaled, plain):
        training.steps("....")
    oracles.assert_same_bits(scaled.weight.detach(), plain.weight.detach())


def test_an_overflow_halves_the_scale_once_however_many_optimizers_had_it(device):
    scaler = DynamicLossScaler(device, init_scale=64.0)
    trainings = [Training(device, scaler=scaler) for _ in range(3)]
    scaler.scale(sum(t.loss() for t in trainings)).backward()
    for training in trainings[:2]:
        training.weight.grad[0] = math.inf
    for training in trainings:
        scaler.step(training.optimizer)
    scaler.update()
    assert [t.steps_taken for t in trainings] == [0, 0, 1]
    assert scaler.get_scale() == 32.0


def test_unscale_gives_the_true_gradient_and_step_does_not_divide_again(device):
    training = Training(device)
    training.backward()
    training.scaler.unscale_(training.optimizer)
    assert training.weight.grad.tolist() == [1.0, 1.0]
    training.scaler.step(training.optimizer)
    assert training.steps_taken == 1


def test_one_optimizer_may_own_several_dtypes():
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.complex64]
    for poisoned in [None, *range(len(dtypes))]:
        weights = [torch.nn.Parameter(torch.ones(2, dtype=d)) for d in dtypes]
        optimizer = torch.optim.SGD(weights, lr=LR)
        scaler = DynamicLossScaler("cpu", init_scale=4.0)
        scaler.scale(sum(w.real.double().sum() for w in weights)).backward()
        if poisoned is not None:
            weights[poisoned].grad[1] = math.inf
        scaler.step(optimizer)
        moved = [not torch.equal(w, torch.ones_like(w)) for w in weights]
        assert moved == [poisoned is None] * len(dtypes)


def test_a_sparse_gradient_is_summed_before_it_is_checked():
    """Each part is finite, their sum at the same index is not."""
    weight = torch.nn.Parameter(torch.ones(3))
    scaler = DynamicLossScaler("cpu", init_scale=2.0)
    scaler.scale(weight.sum())
    values = torch.tensor([3e38, 3e38])
    with torch.sparse.check_sparse_tensor_invariants():
        indices = torch.tensor([[1, 1]])
        weight.grad = torch.sparse_coo_tensor(indices, values, (3,))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.step(optimizer)
    assert not scaler.outcome(optimizer).stepped


def test_sparse_gradients_of_an_embedding_are_unscaled():
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    before = embedding.weight.detach().clone()
    optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
    other = copy.deepcopy(embedding)
    plain = torch.optim.SparseAdam(other.parameters(), lr=0.1)
    scaler = DynamicLossScaler("cpu", init_scale=2.0**10)
    indices = torch.tensor([1, 3, 3])
    scaler.scale(embedding(indices).square().sum()).backward()
    scaler.step(optimizer)
    other(indices).square().sum().backward()
    plain.step()
    oracles.assert_same_bits(embedding.weight.detach(), other.weight.detach())
    assert not torch.equal(embedding.weight, before)


def test_half_gradients_are_refused_before_anything_is_touched():
    half = torch.nn.Parameter(torch.ones(2).half())
    wide = torch.nn.Parameter(torch.ones(2))
    scaler = DynamicLossScaler("cpu", init_scale=8.0)
    scaler.scale(half.float().sum() + wide.sum()).backward()
    with pytest.raises(ValueError, match="FP16 gradients.*MasterWeights"):
        scaler.unscale_(torch.optim.SGD([wide, half], lr=1.0))
    assert wide.grad.tolist() == half.grad.tolist() == [8.0, 8.0]


def test_the_users_own_grad_scale_divides_too(device):
    training = training_with("SGD fused", device)
    training.backward()
    training.optimizer.grad_scale = torch.tensor(4.0, device=device)
    training.scaler.step(training.optimizer)
    assert training.steps_taken == 0.25


def test_fused_optimizers_keep_no_tensor_of_the_scaler(device):
    training = training_with("AdamW fused", device)
    training.steps(".x")
    assert not hasattr(training.optimizer, "grad_scale")
    assert not hasattr(training.optimizer, "found_inf")


def test_an_optimizer_without_gradients_neither_fails_nor_moves(device):
    scaler = DynamicLossScaler(device, init_scale=16.0)
    used, unused = Training(device, scaler=scaler), Training(device, scaler=scaler)
    for _ in range(2):
        used.backward()
        scaler.step(used.optimizer)
        scaler.step(unused.optimizer)
        scaler.update()
    assert (used.steps_taken, unused.steps_taken) == (2, 0)
    assert scaler.get_scale() == 16.0


def test_an_abandoned_iteration_changes_nothing(device):
    training = Training(device, growth_interval=2)
    training.scaler.update()  # before anything was ever scaled
    training.step()
    training.scaler.scale(training.loss() * math.nan)
    training.scaler.update()
    assert training.scaler._get_growth_tracker() == 1
    assert training.scaler.get_scale() == 1024.0
    training.step()
    assert training.scaler.get_scale() == 2048.0


def test_gradients_unscaled_and_then_zeroed_may_be_made_anew(device):
    """The script gave the iteration up after `unscale_`, and called no `update`."""
    training = Training(device)
    training.backward()
    training.scaler.unscale_(training.optimizer)
    training.step()
    assert training.steps_taken == 1


Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    "nest",
    [
        torch.tensor(3.0),
        [torch.tensor(3.0)],
        (torch.tensor(3.0), [torch.tensor(3.0)]),
        Pair(torch.tensor(3.0), torch.tensor(3.0)),
        {"a": torch.tensor(3.0)},
        OrderedDict(a=[torch.tensor(3.0)]),
        defaultdict(list, {1: torch.tensor(3.0)}),
    ],
    ids=lambda nest: type(nest).__name__,
)
def test_scale_keeps_the_shape_of_a_nest(nest):
    scaled = DynamicLossScaler("cpu", init_scale=2.0).scale(nest)
    leaves, spec = torch.utils._pytree.tree_flatten(scaled)
    assert spec == torch.utils._pytree.tree_flatten(nest)[1]
    assert [leaf.item() for leaf in leaves] == [6.0] * len(leaves)


def test_scale_takes_any_iterable_lazily():
    scaler = DynamicLossScaler("cpu", init_scale=2.0)
    assert [t.item() for t in scaler.scale(iter([torch.ones(())] * 2))] == [2.0, 2.0]


@pytest.mark.parametrize("nest", ["text", [1.0], {"a": None}])
def test_scale_refuses_what_is_no_tensor(nest):
    with pytest.raises(ValueError, match="must be a Tensor or an iterable of Tensors"):
        DynamicLossScaler("cpu").scale(nest)


def test_a_half_loss_of_any_shape_does_not_overflow_when_it_is_scaled():
    for shape in [(), (3,)]:
        loss = torch.full(shape, 2.0, dtype=torch.float16)
        scaled = DynamicLossScaler("cpu", init_scale=2.0**16).scale(loss)
        assert scaled.dtype == torch.float32
        assert torch.equal(scaled, torch.full(shape, 2.0**17))


def test_a_loss_scaled_inside_vmap_or_grad_is_not_kept(device):
    """torch.func's tensors are not valid outside: looking at one later is an error."""
    training = Training(device)
    scale = training.scaler.scale
    x = torch.ones(2, 3, device=device)
    assert torch.equal(torch.vmap(lambda x: scale(x.sum()))(x), 1024 * x.sum(1))
    assert torch.equal(torch.func.grad(lambda x: scale(x.sum()))(x), 1024 * x)
    training.steps("x.")
    assert training.steps_taken == 1


def test_the_loss_itself_stays_as_it_was():
    loss = torch.tensor(3.0)
    DynamicLossScaler("cpu").scale(loss)
    assert loss.item() == 3.0


@pytest.mark.parametrize("name", ["SGD", "AdamW fused"])
def test_a_disabled_scaler_does_what_no_scaler_does(name, device):
    disabled = training_with(name, device, enabled=False)
    disabled.steps("..")
    plain = training_with(name, device, scaler=NoLossScaler())
    plain.steps("..")
    oracles.assert_same_bits(disabled.weight.detach(), plain.weight.detach())
    for scaler in (disabled.scaler, plain.scaler):
        assert not scaler.is_enabled()
        assert scaler.get_scale() == 1.0
        assert scaler.state_dict() == {}
        assert scaler.outcome(disabled.optimizer).stepped
        scaler.load_state_dict({"anything": 1})


def test_every_method_that_does_something_has_a_disabled_twin():
    """A new method of the scaler must say what it is without scaling."""
    needs_no_twin = {
        "agree_on_scale",
        "blame",
        "get_backoff_factor",
        "get_growth_factor",
        "get_growth_interval",
        "outcome_log",
        "register_update_hook",
        "set_backoff_factor",
        "set_growth_factor",
        "set_growth_interval",
    }
    public = {name for name in dir(DynamicLossScaler) if not name.startswith("_")}
    assert public - needs_no_twin <= set(dir(NoLossScaler))


def test_a_static_scale_skips_but_never_changes(device):
    training = Training(device, scaler=StaticLossScaler(64.0, device))
    training.steps(".x" * 5)
    assert training.steps_taken == 5
    assert training.scaler.get_scale() == 64.0
    training.scaler.update(128.0)
    assert training.scaler.get_scale() == 128.0


def test_without_a_device_the_scaler_is_enabled_and_on_the_accelerator_if_any():
    scaler = DynamicLossScaler()
    expected = "cpu"
    if torch.accelerator.is_available():
        expected = torch.accelerator.current_accelerator().type
    assert scaler._device == expected
    assert scaler.is_enabled()


def test_update_takes_a_number_or_a_tensor_of_one_element(device):
    training = Training(device)
    training.scaler.update(32.0)  # before the first loss
    training.step()
    assert training.scaler.get_scale() == 32.0
    training.scaler.update(8)
    assert training.scaler.get_scale() == 8.0
    new_scale = torch.tensor([4.0], device=device)
    training.scaler.update(new_scale)
    new_scale.fill_(1.0)
    assert training.scaler.get_scale() == 4.0


@pytest.mark.parametrize(
    "wrong", [0.0, -1.0, math.inf, math.nan, torch.tensor(math.nan), torch.ones(2)]
)
def test_update_refuses_a_scale_that_makes_no_sense(wrong):
    training = Training("cpu")
    training.step()
    with pytest.raises(AssertionError, match="scale"):
        training.scaler.update(wrong)
    assert training.scaler.get_scale() == 1024.0


class OnDevice(torch.optim.SGD):
    """Stands for a fused optimizer where none can run."""

    _step_supports_amp_scaling = True

    def step(self, closure=None):
        self.seen = self.grad_scale, self.found_inf


@pytest.mark.parametrize("make", [torch.optim.SGD, OnDevice])
def test_the_host_waits_once_for_a_step_and_never_for_a_fused_one(make):
    """On meta tensors, which have no data: a host that asks for it gets an error."""
    asks = pytest.raises(RuntimeError, match="item")
    weight = torch.ones(2, device="meta")
    weight.grad = torch.ones(2, device="meta")
    optimizer = make([weight], lr=LR)
    scaler = DynamicLossScaler("meta", tolerance=InARow(2))
    for clips in (False, True):
        scaler.scale(torch.ones((), device="meta"))
        if clips:
            scaler.clip_grad_norm_(optimizer, 1.0)
        if make is OnDevice:
            scaler.step(optimizer)
            assert optimizer.seen[1].device.type == "meta"
        else:
            with asks:
                scaler.step(optimizer)
        scaler.update()
        with asks:
            scaler.get_scale()


class Noting(torch.optim.SGD):
    """Its step takes more than a closure, and notes what it was given."""

    _step_supports_amp_scaling = False

    def step(self, *args, **kwargs):
        self.seen = args, kwargs
        if args and callable(args[0]):
            args[0]()
        return "result"


class NotingOnDevice(Noting):
    _step_supports_amp_scaling = True


@pytest.mark.parametrize("make", [Noting, NotingOnDevice])
@pytest.mark.parametrize("has_closure", [False, True])
def test_arguments_and_result_of_the_optimizers_step_pass_through(
    make, has_closure, device
):
    training = Training(device, make_optimizer=make)
    training.backward()
    closure = (training.backward,) if has_closure else ()
    result = training.scaler.step(training.optimizer, *closure, "more", option=2)
    args, kwargs = training.optimizer.seen
    assert result == "result" and kwargs == {"option": 2}
    assert args[len(closure) :] == ("more",) and len(args) == 1 + len(closure)


@pytest.mark.parametrize("poison", [0.0, math.inf])
def test_trainers_can_look_at_what_unscale_found(poison, device):
    training = Training(device)
    training.backward(poison)
    found_only = training.scaler._check_inf_per_device(training.optimizer)
    assert training.weight.grad[1] == 1024.0, "only looked at, not unscaled"
    training.scaler.unscale_(training.optimizer)
    found = training.scaler._found_inf_per_device(training.optimizer)
    for by_device in (found_only, found):
        (flag,) = by_device.values()
        assert flag.item() == float(poison == math.inf)
