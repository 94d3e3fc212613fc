"""One command to check and measure minamp on this machine, and keep a dated record.

Continuous integration has no GPU, so whoever has one runs this there now and then:

    python demos/record.py

It runs the demos that measure, then the tests, and keeps a folder in `demos/results/`:
figures, numbers, and a page with what was said, versions and device.  It needs no
network; minamp need not be installed, but what its tests need must be.  All together
takes at most `--minutes`: a command that would take longer is ended, and the page says
so.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import _common as common

ROOT = Path(__file__).parents[1]
KEPT_LINES = 60  # the end of an output: tables, finding, the summary of the tests


@dataclass(frozen=True)
class Check:
    """One command: how it ended, in how many seconds, and what it said."""

    command: str
    ended: str  # "passed", "failed" or "out of time"
    seconds: float
    output: str


def main() -> int:
    args = options()
    device = common.pick_device(args.device)
    deadline = time.monotonic() + 60 * args.minutes
    folder = from_root(args.out / f"{time.strftime('%Y-%m-%d')}-{short_name(device)}")
    checks = []
    for command in commands(device, args, folder):
        check = run(command, deadline - time.monotonic())
        common.console.print(f"{check.ended}, {check.seconds:.0f} s: {check.command}")
        if check.ended != "passed":
            common.console.print(check.output, markup=False, highlight=False)
        checks.append(check)
    page = folder / "README.md"
    (ROOT / folder).mkdir(parents=True, exist_ok=True)
    (ROOT / page).write_text(as_page(device, checks), encoding="utf-8")
    common.console.print(f"record  {page}")
    passed = all(check.ended == "passed" for check in checks)
    return common.conclude("the tests and the demos' findings hold here.", passed)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="check, measure, keep a record")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all together")
    parser.add_argument("--quick", action="store_true", help="the demos in short")
    parser.add_argument("--tests", default="tests", help="a file or folder of tests")
    parser.add_argument("--out", type=Path, default=ROOT / "demos" / "results")
    return parser.parse_args()


def commands(
    device: torch.device, args: argparse.Namespace, folder: Path
) -> list[list[str]]:
    """The demos first: their numbers are what cannot be had elsewhere."""
    on_device = ["--device", device.type]
    for_demos = [*on_device, "--out", str(folder), *["--quick"][: args.quick]]
    return [
        ["demos/speed_and_memory.py", *for_demos],
        ["demos/scaler_passes.py", *for_demos],
        ["demos/compare.py", *for_demos],
        ["-m", "pytest", "-q", *on_device, args.tests],
    ]


def from_root(path: Path) -> Path:
    """Relative, if inside the source tree: a record must not tell where that lies."""
    path = path.resolve()
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def run(command: list[str], seconds: float) -> Check:
    """Run `python *command` at the root of the source tree, for at most `seconds`."""
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=max(seconds, 1.0))
        ended = "failed" if process.returncode else "passed"
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        ended = "out of time"
    last_lines = "\n".join(output.rstrip().splitlines()[-KEPT_LINES:])
    said = " ".join(["python", *command])
    return Check(said, ended, time.monotonic() - started, last_lines)


def as_page(device: torch.device, checks: list[Check]) -> str:
    """The record, in Markdown."""
    facts = common.environment(device)
    lines = [f"# {facts['device']}, {facts['date']}", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    for check in checks:
        lines += ["", f"## {check.command}", ""]
        lines += [f"{check.ended} in {check.seconds:.0f} s", ""]
        lines += ["```text", check.output, "```"]
    return "\n".join(lines) + "\n"


def short_name(device: torch.device) -> str:
    """The device's name for a file: `nvidia-h200`, `amd-epyc-avx2`."""
    facts = common.environment(device)
    name = f"{facts['device']} {facts.get('instructions', '')}".lower()
    return "-".join(re.findall(r"[a-z0-9]+", name)[:3])


if __name__ == "__main__":
    sys.exit(main())
