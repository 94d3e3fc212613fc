"""Every numbered demo runs with --quick, and the sentence it ends in is true."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

DEMOS = Path(__file__).parents[1] / "demos"
LESSONS = sorted(path.name for path in DEMOS.glob("[0-9][0-9]_*.py"))
WITHOUT_FIGURE = ("06_the_three_added_lines.py",)


def run_quick(name: str, out: Path) -> subprocess.CompletedProcess[str]:
    """One thread, since a lesson computes next to nothing."""
    settings = {"PYTHONPATH": str(DEMOS.parent), "OMP_NUM_THREADS": "1"}
    options = ["--quick", "--device", "cpu", "--out", str(out)]
    return subprocess.run(
        [sys.executable, "-W", "error", str(DEMOS / name), *options],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("lessons")


@pytest.fixture(scope="module")
def runs(out):
    """All lessons, two at a time: most of a run is waiting for imports."""
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(run_quick, name, out / name) for name in LESSONS}


def test_the_lessons_are_numbered_one_to_ten():
    assert [int(name[:2]) for name in LESSONS] == list(range(1, 11))


@pytest.mark.parametrize("name", LESSONS)
def test_lesson_ends_in_a_true_sentence(
    name: str, runs: dict[str, Future[subprocess.CompletedProcess[str]]], out: Path
):
    done = runs[name].result()
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.strip().split("\n\n")[-1]
    assert last.startswith("Found: ") and last.endswith(".")
    figures = list((out / name).glob("*.svg"))
    assert len(figures) == (name not in WITHOUT_FIGURE)


def test_a_false_sentence_is_an_exit_status_of_1(monkeypatch, capsys, tmp_path):
    """A lesson in which torch reads the bits otherwise than the formula does."""
    monkeypatch.syspath_prepend(str(DEMOS))
    path = DEMOS / "01_where_floats_live.py"
    spec = importlib.util.spec_from_file_location("lesson", path)
    lesson = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lesson)
    monkeypatch.setattr(lesson, "finite_numbers", lambda fmt: (2**16, False))
    for setting in ("set_num_threads", "use_deterministic_algorithms"):
        monkeypatch.setattr(torch, setting, lambda value: None)
    monkeypatch.setattr(sys, "argv", [path.name, "--out", str(tmp_path)])
    assert lesson.main() == 1
    assert "This is false today" in capsys.readouterr().out


def test_each_lesson_is_in_the_table_of_the_demos():
    page = (DEMOS / "README.md").read_text(encoding="utf-8")
    for name in LESSONS:
        assert f"[`python demos/{name}`]({name})" in page
