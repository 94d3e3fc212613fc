"""How the suite is run: on which device, against which implementation, how deep.

    pytest                                       minamp, on CUDA if there is one
    pytest --device cpu                          minamp, on the CPU
    pytest --implementation torch                the same laws, put to torch.amp
    pytest --implementation my_scaler.py         the same laws, put to your own
    pytest --hypothesis-profile quick            under a minute
    pytest --hypothesis-profile deep             thousands of examples a law

Tests that take the fixture `amp` are the common laws; the others are about minamp
alone. Where minamp means to differ from torch.amp, the test carries the marker
`intended_difference("name")`, and `intended_differences.py` says why. Put to another
implementation, such a test is expected to fail: strictly so for torch.amp, so the
table stays true.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings

import intended_differences
from implementations import Implementation, load_implementation

# Drawn tensors make some draws slow, and a loaded machine makes all of them slow:
# a deadline for each example would only measure the neighbours.
_COMMON = {
    "deadline": None,
    "print_blob": False,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("quick", max_examples=8, derandomize=True, **_COMMON)
settings.register_profile("ci", max_examples=40, derandomize=True, **_COMMON)
settings.register_profile("deep", max_examples=2000, **_COMMON)
settings.load_profile("ci")

# Small tensors gain nothing from threads, and on a busy machine threads that wait for
# each other cost ten times the work.
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where the laws are put to the test (auto: cuda if there is one)",
    )
    parser.addoption(
        "--implementation",
        default="minamp",
        help="minamp, torch, or the path of a module with autocast and GradScaler",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "intended_difference(name): minamp means to differ from torch.amp here; "
        "the reason stands in tests/intended_differences.py",
    )
    config.addinivalue_line(
        "markers", "slow: takes seconds; the profile quick leaves it out"
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    _leave_out_slow_tests_when_quick(config, items)
    _leave_out_tests_of_minamp_alone(config, items)
    for item in items:
        _expect_intended_difference(item, config.getoption("--implementation"))


# These start other processes, demos and compilers among them: seconds for each test.
STARTING_PROCESSES = (
    "test_compile.py",
    "test_demos.py",
    "test_lesson_demos.py",
    "test_packaging.py",
    "test_scaler_distributed.py",
)


def _is_slow(item: pytest.Item) -> bool:
    marked = item.get_closest_marker("slow") is not None
    return marked or item.path.name in STARTING_PROCESSES


def _profile_name(config: pytest.Config) -> str:
    return config.getoption("--hypothesis-profile") or "ci"


def _leave_out_slow_tests_when_quick(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    if _profile_name(config) == "quick":
        _deselect(config, items, _is_slow)


def _leave_out_tests_of_minamp_alone(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Another implementation is asked about the laws it can have, no others."""
    if config.getoption("--implementation") != "minamp":
        _deselect(config, items, lambda item: "amp" not in item.fixturenames)


def _deselect(config, items, is_unwanted) -> None:
    unwanted = [item for item in items if is_unwanted(item)]
    config.hook.pytest_deselected(items=unwanted)
    items[:] = [item for item in items if item not in unwanted]


def _expect_intended_difference(item: pytest.Item, implementation: str) -> None:
    marker = item.get_closest_marker("intended_difference")
    if marker is None or implementation == "minamp":
        return
    difference = intended_differences.by_name(marker.args[0])
    item.add_marker(
        pytest.mark.xfail(reason=difference.reason, strict=implementation == "torch")
    )


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """The device type the laws are tested on: "cpu" or "cuda"."""
    wanted = request.config.getoption("--device")
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted


@pytest.fixture(scope="session")
def amp(request: pytest.FixtureRequest) -> Implementation:
    """The implementation under test: its autocast, GradScaler and custom_fwd/bwd."""
    return load_implementation(request.config.getoption("--implementation"))


@pytest.fixture(scope="session")
def profile(request: pytest.FixtureRequest) -> str:
    """ "quick", "ci" or "deep": for tests that size their own work."""
    return _profile_name(request.config)
