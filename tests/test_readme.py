"""What the README says runs: its code blocks, its commands, its links."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


@pytest.mark.parametrize("code", blocks("python"), ids=range(len(blocks("python"))))
def test_every_code_block_runs_by_itself(code):
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def test_the_three_added_lines_are_those_of_torch_amp():
    """Where a comment shows torch.amp's line, ours is the same but for the name."""
    (code,) = [code for code in blocks("python") if "torch.amp.GradScaler" in code]
    pairs = re.findall(r"minamp(\.\w+\(.*?\)).*# torch\.amp(\.\w+\(.*\))", code)
    assert len(pairs) == 2
    assert all(ours == theirs for ours, theirs in pairs)


def test_every_link_leads_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    missing = [
        link
        for link in links
        if not link.startswith("https://") and not (ROOT / link).exists()
    ]
    assert missing == []


def test_every_command_names_what_there_is():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    commands = "".join(blocks("sh"))
    extras = re.findall(r'-e "\.\[(\w+)\]"', commands)
    scripts = re.findall(r"python (\S+\.py)", commands)
    assert {"demos", "test"} <= set(extras)
    assert set(extras) <= set(setup["options.extras_require"])
    assert "demos/compare.py" in scripts
    assert all((ROOT / script).exists() for script in scripts)


def test_supported_versions_are_those_of_the_package():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    torch_needed = setup["options"]["install_requires"].split()[0]
    oldest, beyond = re.fullmatch(r"torch>=(2\.\d+),<2\.(\d+)", torch_needed).groups()
    assert f"PyTorch {oldest} to 2.{int(beyond) - 1}" in README
    python_needed = setup["options"]["python_requires"].removeprefix(">=")
    assert f"Python {python_needed} or newer" in README
