"""The suite bites: it finds what is wrong with each implementation in tests/broken."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
BROKEN = TESTS / "broken"
LAWS_OF_SCALERS = ("test_scaler_laws.py", "test_finite_check_laws.py")
# Where to look, and one law (of several, perhaps) that must catch the mistake.
CAUGHT_BY = {
    "unscales_with_the_new_scale": (
        "test_scaler_laws.py",
        "test_gradients_are_divided_by_the_scale_they_were_multiplied_with",
    ),
    "checks_by_summing": (
        "test_finite_check_laws.py",
        "test_nothing_finite_is_flagged_up_to_the_largest_number",
    ),
    "grows_one_step_late": (
        "test_scaler_laws.py",
        "test_the_scale_grows_right_after_the_last_step_of_the_interval",
    ),
    "forgets_to_restore": (
        "test_region_laws.py",
        "test_an_exception_restores_every_region_it_passes",
    ),
    "caches_across_updates": (
        "test_cache_laws.py",
        "test_a_weight_changed_between_two_regions_is_seen_changed",
    ),
}


def laws_broken_by(name: str, device: str, *laws: str) -> set[str]:
    """Put an implementation to some laws; the name of the first one it breaks."""
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider"]
    options = [f"--implementation={BROKEN / name}.py", f"--device={device}"]
    result = subprocess.run(
        [*command, *options, "--tb=no", *(str(TESTS / law) for law in laws)],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )
    # 0 is "all passed" and 1 "some failed"; anything else is no verdict.
    assert result.returncode in (0, 1), result.stdout + result.stderr
    return set(re.findall(r"^FAILED .*?::(\w+)", result.stdout, re.MULTILINE))


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUGHT_BY)
def test_each_broken_implementation_is_caught(name, device):
    file, law = CAUGHT_BY[name]
    assert laws_broken_by(name, device, f"{file}::{law}") == {law}


@pytest.mark.slow
def test_the_plain_scaler_they_are_made_from_breaks_no_law(device):
    assert laws_broken_by("plain_scaler", device, *LAWS_OF_SCALERS) == set()


def test_every_broken_implementation_is_in_the_table():
    files = {path.stem for path in BROKEN.glob("*.py")}
    assert files == {*CAUGHT_BY, "plain_scaler"}
