"""Every demo runs with a tiny budget, and what it finds is true."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "demos"))

import _common  # noqa: E402
import _compare_report as report  # noqa: E402
import record  # noqa: E402
import scaler_passes  # noqa: E402
from _contestants import Contestant, Score  # noqa: E402
from _data import Digits, Source, seeded  # noqa: E402
from _memory import LiveBytes, peak_bytes  # noqa: E402

CPU = torch.device("cpu")


def run_demo(name: str, *options: str) -> str:
    """What a demo prints; one thread, since it computes next to nothing."""
    paths = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", f"demos/{name}", *options],
        cwd=ROOT,
        env=os.environ | paths,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """The folder that `record.py` keeps: the measuring demos in short, and a test.

    It is the command for a machine with a GPU, tried on the CPU.
    """
    out = tmp_path_factory.mktemp("results")
    tests = ["--tests", "tests/test_formats.py"]
    run_demo("record.py", "--device", "cpu", "--quick", "--out", str(out), *tests)
    (folder,) = out.iterdir()
    return folder


def test_a_record_says_what_ran_where_and_how_it_ended(kept):
    page = (kept / "README.md").read_text()
    assert page.count("\npassed in ") == 4
    assert page.count("Found: ") == 2
    assert f"- torch: {torch.__version__}" in page
    assert f"- instructions: {torch.backends.cpu.get_cpu_capability()}, " in page


def test_compare_keeps_a_figure_and_each_step_of_each_run(kept):
    assert (kept / "compare.svg").stat().st_size > 10_000
    record = json.loads((kept / "compare.json").read_text())
    assert record["environment"]["torch"] == torch.__version__
    assert len(record["results"]) == 2 * 10  # tasks, contestants
    for result in record["results"]:
        assert len(result["losses"]) == len(result["scales"]) in (20, 6)


def test_speed_and_memory_keeps_a_figure_and_each_round(kept):
    assert (kept / "speed_and_memory.svg").stat().st_size > 10_000
    record = json.loads((kept / "speed_and_memory.json").read_text())
    rounds = [len(result.get("seconds", [])) for result in record["results"]]
    assert rounds == [2, 2, 2, 2, 2, 0, 0]  # five contestants, two single calls


def test_scaler_passes_keeps_a_figure_and_each_round(kept):
    assert (kept / "scaler_passes.svg").stat().st_size > 10_000
    results = json.loads((kept / "scaler_passes.json").read_text())["results"]
    assert [len(result["minamp"]) for result in results] == [5] * 12
    assert [len(result["torch_amp"]) for result in results] == [5] * 12


def test_a_ratio_over_its_bound_is_named():
    within = scaler_passes.Measured("step", "20 x 1M", [1.2], [1.0])
    over = scaler_passes.Measured("clip, step", "20 x 1M", [1.5], [2.0 - 0.1])
    assert scaler_passes.finding([within])[1]
    sentence, holds = scaler_passes.finding([within, over])
    assert not holds and "not 20 x 1M, clip, step: 0.79 (at most 0.75)" in sentence


def test_options_choose_steps_seeds_and_dtype(tmp_path):
    run_demo(
        "compare.py",
        *("--steps", "2", "--seeds", "2", "--dtype", "bf16", "--device", "cpu"),
        *("--out", str(tmp_path)),
    )
    results = json.loads((tmp_path / "compare.json").read_text())["results"]
    assert {len(result["losses"]) for result in results} == {2}
    assert {result["seed"] for result in results} == {0, 1}
    assert {result["contestant"]["dtype"] for result in results} == {"fp32", "bf16"}


# --- what the demos are made of --------------------------------------------------


@pytest.fixture
def traces() -> list[report.Trace]:
    """A reference, full precision, and a run of minamp that equals its reference."""
    made = []
    for who in (
        Contestant("fp32", "PyTorch"),
        Contestant("fp16", "torch.amp"),
        Contestant("fp16", "minamp autocast", "fp16_autocast"),
    ):
        trace = report.Trace("task", who, seed=0, peak_bytes=1)
        trace.losses, trace.scales = [2.0, 1.0], [8.0, 4.0]
        trace.score, trace.difference = Score(1.0, 0.9, 100), 0.0
        made.append(trace)
    return made


def test_a_command_that_takes_too_long_is_ended_and_said_so():
    check = record.run(["-c", "import time; print('x', flush=True); time.sleep(60)"], 2)
    assert check.ended == "out of time"
    assert check.output == "x"
    assert check.seconds < 30


def test_a_record_does_not_tell_where_the_source_tree_lies(tmp_path):
    folder = record.from_root(ROOT / "demos" / "results" / "a")
    assert str(folder) == "demos/results/a"
    assert record.from_root(tmp_path) == tmp_path


def test_a_command_that_fails_is_said_so():
    assert record.run(["-c", "raise SystemExit(3)"], 60).ended == "failed"


def test_equal_runs_are_found_equal(traces):
    assert report.finding(traces)[1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("losses", [2.0, 1.0000001]),
        ("scales", [8.0, 8.0]),
        ("difference", 1e-9),
        # Two standard errors of 90 right answers in 100 are 6 answers.
        ("score", Score(1.0, 0.839, 100)),
    ],
)
def test_a_run_that_differs_makes_the_finding_false(traces, name, value):
    setattr(traces[-1], name, value)
    assert not report.finding(traces)[1]


def test_a_false_finding_is_an_exit_status_of_1():
    assert _common.conclude("all is well", true=True) == 0
    assert _common.conclude("all is well", true=False) == 1


def test_a_skipped_step_is_a_scale_that_fell(traces):
    traces[0].scales = [8.0, 4.0, 4.0, 8.0, 4.0]
    assert traces[0].skipped == 2


def test_numbers_of_steps_and_seeds_start_at_one():
    assert _common.positive("1") == 1
    with pytest.raises(argparse.ArgumentTypeError, match="0 is not 1 or more"):
        _common.positive("0")


def test_live_bytes_are_those_of_storages_alive():
    with LiveBytes() as live:
        first = torch.ones(1000)
        view = first.view(10, 100)  # no bytes of its own
        assert (live.now, live.peak) == (4000, 4000)
        second = first + first
        assert (live.now, live.peak) == (8000, 8000)
        del first
        assert live.now == 8000  # the view keeps the storage
        del view
        assert (live.now, live.peak) == (4000, 8000)
        del second
    assert (live.now, live.peak) == (0, 8000)


def test_gradients_and_the_state_of_an_optimizer_count_too():
    def build():
        weight = torch.nn.Parameter(torch.ones(1000))
        optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5)

        def step():
            optimizer.zero_grad()
            weight.grad = torch.ones(1000)
            optimizer.step()

        return step

    assert peak_bytes(CPU, build) == 3 * 4000  # weight, gradient, momentum


def test_the_same_seed_draws_the_same_batch():
    for data in (Digits.load(CPU), Source.load(CPU, characters=20_000)):
        one, other = data.batch(seeded(1)), data.batch(seeded(1))
        assert all(map(torch.equal, one, other))
        assert not torch.equal(one[0], data.batch(seeded(2))[0])


def test_held_out_data_is_never_trained_on():
    digits = Digits.load(CPU)
    inputs, _ = digits.held_out()
    assert len(inputs) == 297
    source = Source.load(CPU, characters=20_000)
    last_trained = int(0.9 * len(source.text))
    generator = seeded(0)
    numbered = Source(torch.arange(len(source.text)))  # each character is its place
    for _ in range(100):
        assert numbered.batch(generator)[1].max() <= last_trained
    assert numbered.held_out()[0].min() >= last_trained


def test_each_target_is_the_character_after_its_input():
    source = Source.load(CPU, characters=20_000)
    inputs, targets = source.batch(seeded(0))
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
