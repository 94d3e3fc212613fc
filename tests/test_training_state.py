"""Laws of checkpoints: nothing lost, all or nothing, and an honest word on damage."""

from __future__ import annotations

import copy
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from minamp.autocasting.region import autocast
from minamp.loop.training_state import TrainingState
from minamp.scaling.scaler import DynamicLossScaler
from minamp.weights.kahan import KahanSummation
from minamp.weights.master_weights import MasterWeights
from minamp.weights.stochastic_rounding import StochasticRounding
from oracles import assert_same_bits
from weight_helpers import assert_same_state

WAYS = {
    "autocast": None,
    "masters": MasterWeights,
    "kahan": KahanSummation,
    "stochastic": StochasticRounding,
}


def small_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)
    )


class Run:
    """Training that overflows now and then; a step's number decides its data."""

    def __init__(self, way: str, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = small_net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        if WAYS[way] is not None:
            WAYS[way](self.model, self.optimizer, torch.float16)
        self.scaler = DynamicLossScaler("cpu", init_scale=64.0, growth_interval=2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.9)
        self.state = TrainingState(
            model=self.model,
            optimizer=self.optimizer,
            scaler=self.scaler,
            scheduler=self.scheduler,
        )

    def train(self, first: int, last: int) -> None:
        for number in range(first, last):
            inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(number))
            self.optimizer.zero_grad()
            with autocast("cpu", torch.float16):
                loss = self.model(inputs).float().square().mean()
            self.scaler.scale(loss).backward()
            if number % 4 == 3:
                last_parameter = self.optimizer.param_groups[0]["params"][-1]
                last_parameter.grad.fill_(math.inf)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()


@settings(max_examples=12)
@given(
    way=st.sampled_from(sorted(WAYS)), stop=st.integers(0, 5), more=st.integers(0, 4)
)
def test_resumed_run_equals_the_run_never_stopped(way, stop, more, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.pt"
    run = Run(way)
    run.train(0, stop)
    run.state.save(path, step=stop)
    run.train(stop, stop + more)

    resumed = Run(way, seed=1)
    notes = resumed.state.load(path)
    assert notes == {"step": stop}
    resumed.train(stop, stop + more)
    assert_same_state(resumed.state.state_dict(), run.state.state_dict())


@pytest.mark.parametrize("way", ["autocast", "masters"])
def test_checkpoint_of_torch_amp_loads(way, tmp_path):
    torch.manual_seed(0)
    model = small_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=7)
    scaler.scale(model(torch.ones(3, 4)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    saved = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "epoch": 3,
    }
    torch.save(saved, tmp_path / "torch.pt")

    run = Run(way, seed=1)
    parts = {"model": run.model, "optimizer": run.optimizer, "scaler": run.scaler}
    assert TrainingState(**parts).load(tmp_path / "torch.pt") == {}
    assert_same_state(run.optimizer.state_dict()["state"], saved["optimizer"]["state"])
    assert run.scaler.get_scale() == 512.0
    assert run.scaler.state_dict()["_growth_tracker"] == 1
    if way == "autocast":
        assert_same_state(dict(run.model.state_dict()), dict(saved["model"]))
    else:
        masters = run.optimizer.state_dict()["master_weights"]
        assert_same_bits(masters[0], saved["model"]["0.weight"])


# --- all or nothing ----------------------------------------------------------------


def poisoned(state: dict[str, Any], how: str) -> dict[str, Any]:
    """A checkpoint in which the last part to be loaded, or an earlier one, is bad."""
    if how == "model of another shape":
        state["model"]["3.weight"] = torch.zeros(3, 8)
    elif how == "model with another layer":
        state["model"]["9.weight"] = torch.zeros(1)
    elif how == "masters missing":
        del state["optimizer"]["master_weights"][-1]
    elif how == "optimizer with fewer groups":
        state["optimizer"]["param_groups"] = []
    elif how == "scale is not a number":
        state["scaler"]["scale"] = "65536"
    elif how == "scaler is empty":
        state["scaler"] = {}
    elif how == "no scaler":
        del state["scaler"]
    elif how == "another optimizer":
        state["optimizer_classes"] = {"optimizer": "SGD"}
    return state


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("model of another shape", r"'model' refused.*size mismatch for 3.weight"),
        ("model with another layer", r"'model' refused.*9.weight"),
        ("masters missing", r"'optimizer' refused.*master_weights of the checkpoint"),
        ("optimizer with fewer groups", r"'optimizer' refused.*parameter groups"),
        ("scale is not a number", r"'scaler' refused"),
        ("scaler is empty", r"'scaler' refused.*empty"),
        ("no scaler", r"nothing for \['scaler'\].*the parts that were saved"),
        ("another optimizer", r"SGD.*AdamW.*Build the same"),
    ],
)
def test_checkpoint_that_does_not_fit_says_why_and_changes_nothing(how, says):
    other = Run("masters", seed=1)
    other.train(0, 2)
    run = Run("masters")
    run.train(0, 1)
    before = copy.deepcopy(run.state.state_dict())
    bad = poisoned(copy.deepcopy(other.state.state_dict()), how)
    with pytest.raises(ValueError, match=f"(?s){says}"):
        run.state.load_state_dict(bad)
    assert_same_state(run.state.state_dict(), before)
    run.state.load_state_dict(other.state.state_dict())


@pytest.mark.parametrize("way", ["masters", "kahan"])
def test_float32_model_that_is_refused_half_way_leaves_the_masters_alone(way):
    run = Run(way)
    run.train(0, 1)
    plain = small_net().state_dict()
    plain["3.weight"] = torch.zeros(3, 8)
    before = copy.deepcopy(run.state.state_dict())
    with pytest.raises(ValueError, match="(?s)'model' refused.*size mismatch"):
        run.state.load_state_dict({**before, "model": plain})
    assert_same_state(run.state.state_dict(), before)


def test_model_alone_loads_from_the_checkpoint_of_another_optimizer():
    saved = Run("autocast").state.state_dict()
    model = small_net()
    TrainingState(model=model).load_state_dict(saved)
    assert_same_state(dict(model.state_dict()), dict(saved["model"]))


# --- files --------------------------------------------------------------------------


def damage(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "a flipped bit":
        place = whole.index(torch.get_rng_state().numpy().tobytes()[1000:1100])
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    elif how == "cut short":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "another file":
        path.write_bytes(b"not a checkpoint at all")
    elif how == "a tensor":
        torch.save(torch.zeros(3), path)
    elif how == "code":
        torch.save({"model": nn.ReLU()}, path)


@pytest.mark.parametrize(
    "how", ["a flipped bit", "cut short", "empty", "another file", "a tensor", "code"]
)
def test_damaged_or_foreign_file_is_named_and_changes_nothing(how, tmp_path):
    path = tmp_path / "run.pt"
    run = Run("masters")
    run.train(0, 2)
    run.state.save(path)
    before = copy.deepcopy(run.state.state_dict())
    damage(path, how)
    with pytest.raises(ValueError, match=r"run.pt is damaged, or is no checkpoint: .+"):
        run.state.load(path)
    assert_same_state(run.state.state_dict(), before)


def test_missing_file_is_called_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.pt"):
        Run("autocast").state.load(tmp_path / "nowhere.pt")


def test_save_that_fails_leaves_the_old_checkpoint_and_no_litter(tmp_path):
    run = Run("masters")
    run.state.save(tmp_path / "run.pt", step=1)
    with pytest.raises(Exception, match="pickle"):
        run.state.save(tmp_path / "run.pt", step=(n for n in ()))
    assert run.state.load(tmp_path / "run.pt") == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


DIES_HALF_WAY = """
import os, signal, sys
from minamp.loop.atomic_file import write_atomically

def write(file):
    file.write(b"half of the new")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

write_atomically(sys.argv[1], write)
"""

SAVES_FOR_EVER = """
import sys, torch
from minamp.loop.training_state import TrainingState

model = torch.nn.Linear(512, 512)
state, number = TrainingState(model=model), 0
while True:
    torch.nn.init.constant_(model.weight, number)
    state.save(sys.argv[1], number=number)
    print(number, flush=True)
    number += 1
"""


def python(code: str, path: Path) -> subprocess.Popen[str]:
    root = Path(__file__).parents[1]
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_process_killed_in_the_middle_of_a_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.pt"
    path.write_bytes(b"old")
    with python(DIES_HALF_WAY, path) as process:
        assert process.wait(timeout=60) == -signal.SIGKILL
    assert path.read_bytes() == b"old"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("delay", [0.0, 0.003, 0.007, 0.02])
def test_process_killed_at_any_moment_leaves_a_whole_checkpoint(delay, tmp_path):
    path = tmp_path / "run.pt"
    with python(SAVES_FOR_EVER, path) as process:
        for _ in range(3):
            process.stdout.readline()
        time.sleep(delay)
        process.kill()
        last_reported = [2, *map(int, process.stdout)][-1]
    model = nn.Linear(512, 512)
    number = TrainingState(model=model).load(path)["number"]
    # The last one reported, or the one whose report was cut off.
    assert number in (last_reported, last_reported + 1)
    assert (model.weight == number).all()
