"""What every demo shares, so that all look alike: options, tables, figures, findings.

A demo asks one question, prints a table, saves a figure and a record, and ends in one
sentence that it has *checked*: where the sentence is false, the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)

console = Console(width=100 if not sys.stdout.isatty() else None)

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
COLOURS = {"fp32": "#4d4d4d", "fp16": "#c8561b", "bf16": "#1f6fa8"}


# --- options -----------------------------------------------------------------


def options(question: str, name: str) -> argparse.ArgumentParser:
    """The options of a demo that measures; `parse_args` on it gives the values."""
    parser = argparse.ArgumentParser(
        description=question, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a run of a few seconds")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU"
    )
    out = Path(__file__).parent / "out" / name
    parser.add_argument("--out", type=Path, default=out, help="folder for the files")
    return parser


def options_of_training(question: str, name: str) -> argparse.ArgumentParser:
    """The same, and those of a demo that trains."""
    parser = options(question, name)
    parser.add_argument("--steps", type=positive, help="training steps of each run")
    parser.add_argument(
        "--dtype", choices=("all", "fp16", "bf16"), default="all", help="beside fp32"
    )
    return parser


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def pick_device(choice: str) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU."""
    if choice == "auto":
        choice = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(choice)


# --- time --------------------------------------------------------------------


def now(device: torch.device) -> float:
    """Seconds, once everything queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def progress() -> Progress:
    return Progress(
        TextColumn("{task.description:32}"),
        BarColumn(bar_width=36),
        TextColumn("{task.completed:>4.0f}/{task.total:.0f}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


# --- what is shown -----------------------------------------------------------


def table(title: str, *columns: str) -> Table:
    """An empty table: names on the left, numbers on the right."""
    made = Table(title="\n" + title, box=SIMPLE_HEAD, pad_edge=False, header_style="")
    made.title_justify, made.title_style = "left", "bold"
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i else "left", no_wrap=True)
    return made


def figure(rows: int, columns: int, **options: Any) -> tuple[Any, Any]:
    """A matplotlib figure in the look of all demos."""
    look = {
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 11,
        "font.size": 10,
        "grid.color": "#e6e6e6",
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "svg.hashsalt": "minamp",  # the same picture gives the same file
    }
    plt.rcParams.update(look)
    size = (5.2 * columns, 2.5 * rows)
    return plt.subplots(
        rows, columns, figsize=size, squeeze=False, layout="constrained", **options
    )


def save_figure(drawn: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, facecolor="white", metadata={"Date": None})
    plt.close(drawn)
    console.print(f"figure  {path}")


def save_record(
    path: Path, device: torch.device, results: list[dict[str, Any]]
) -> None:
    """Write the results as JSON, one a line, below what is needed to repeat them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(json.dumps(result) for result in results)
    facts = json.dumps(environment(device), indent=1)
    text = f'{{"environment": {facts},\n"results": [\n{rows}\n]}}\n'
    path.write_text(text, encoding="utf-8")
    console.print(f"record  {path}")


def environment(device: torch.device) -> dict[str, Any]:
    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        return {**facts, "device": torch.cuda.get_device_name(device)}
    instructions = torch.backends.cpu.get_cpu_capability()
    instructions += ", bf16" if cpu_has_bf16() else ", no bf16"
    return {**facts, "device": cpu_name(), "instructions": instructions}


def cpu_name() -> str:
    return cpu_info().get("model name") or platform.processor() or platform.machine()


def cpu_has_bf16() -> bool:
    """Whether the processor multiplies bf16 by itself: only then is bf16 fast."""
    return "bf16" in cpu_info().get("flags", "")


def cpu_info() -> dict[str, str]:
    """What Linux says of the processor; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def conclude(sentence: str, true: bool) -> int:
    """Print the finding; the exit status is 0 if it is true, else 1."""
    console.print()
    if true:
        console.print(f"[bold]Found:[/] {sentence}", highlight=False)
    else:
        console.print(f"[bold red]This is false today:[/] {sentence}", highlight=False)
    return 0 if true else 1
