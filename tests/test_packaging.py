"""What is promised about the package itself: one version, few needs, a light import."""

from __future__ import annotations

import configparser
import importlib
import subprocess
import sys
from pathlib import Path

import minamp
from minamp import version

ROOT = Path(__file__).parents[1]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")


def run_python(code: str) -> str:
    """What `code` prints in a fresh interpreter that sees this minamp."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_version_stands_in_one_place():
    assert SETUP["metadata"]["version"] == "attr: minamp.version.__version__"
    assert minamp.__version__ is version.__version__
    newest = (ROOT / "CHANGELOG.md").read_text().split("## ")[1].split()[0]
    assert newest == version.__version__


def test_the_core_needs_torch_and_numpy_alone():
    """Said in setup.cfg, and true: nothing else is loaded by the import."""
    needs = SETUP["options"]["install_requires"].split()
    assert [need.split(">")[0] for need in needs] == ["torch", "numpy"]
    loaded = run_python(
        "import sys, torch, numpy\n"
        "before = set(sys.modules)\n"
        "import minamp\n"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    assert set(loaded.split()) <= {"minamp"} | sys.stdlib_module_names


def test_every_folder_of_source_is_packed():
    """`packages = find:` takes only folders with an `__init__.py`."""
    sources = {path.parent for path in (ROOT / "minamp").rglob("*.py")}
    assert [folder for folder in sources if not (folder / "__init__.py").exists()] == []
    assert (ROOT / "minamp" / "py.typed").exists()
    assert SETUP["options.package_data"]["minamp"] == "py.typed"


def test_every_public_name_can_be_imported():
    assert minamp.__all__
    for name in minamp.__all__:
        assert getattr(minamp, name) is not None


def test_modules_of_the_floors_say_what_they_are():
    for path in sorted((ROOT / "minamp").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        module = importlib.import_module(name.removesuffix(".__init__"))
        assert module.__doc__, f"{path} has no docstring"
