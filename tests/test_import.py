"""What importing minamp costs, and which private names of PyTorch it lives on."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import minamp

PACKAGE = Path(minamp.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
# What a program may never have asked for: seconds of loading, or optional packages.
HEAVY = ("torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "matplotlib")
HEAVY += ("rich", "sklearn", "hypothesis", "triton")


def run_python(code: str) -> subprocess.CompletedProcess:
    # As users run it: with compiled modules from the second time on.
    environment = {**os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=PACKAGE.parent,
        env=environment,
    )


def test_importing_minamp_loads_nothing_heavy():
    code = (
        "import sys, torch; before = set(sys.modules); import minamp\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = run_python(code).stdout.split()
    assert "minamp" in loaded
    assert [name for name in loaded if name.startswith(HEAVY)] == []


def test_entering_a_region_does_not_load_the_compiler():
    code = (
        "import sys, torch; from minamp.autocasting.region import autocast\n"
        "before = set(sys.modules)\n"
        "x = torch.ones(2, 2)\n"
        "with autocast('cpu', dtype=torch.bfloat16): torch.mm(x, x)\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = run_python(code).stdout.split()
    assert [name for name in loaded if name.startswith(HEAVY)] == []


# --- private names -------------------------------------------------------------------


def private_names(source: Path) -> set[str]:
    """The dotted names in a file that begin with `torch.` and have a private part."""
    found = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            if name.startswith("torch.") and is_private(name):
                found.add(name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "")[:5] == "torch":
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in names if is_private(name)}
    # Of torch.a._b and torch.a._b.c the longer one says it all.
    return {n for n in found if not any(m.startswith(f"{n}.") for m in found)}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_private(name: str) -> bool:
    return any(p.startswith("_") and not p.startswith("__") for p in name.split("."))


def exists(name: str) -> bool:
    thing: object = torch
    for part in name.split(".")[1:]:
        thing = getattr(thing, part, None)
    return thing is not None


ALL_PRIVATE = {source: private_names(source) for source in SOURCES}
# Used where the running PyTorch has them; something else stands in where it has not.
WITH_A_SUBSTITUTE = {
    "torch._C._dynamo.eval_frame.set_code_exec_strategy",
    "torch._C._dynamo.eval_frame.skip_code",
}


def test_every_private_name_of_torch_that_minamp_uses_exists():
    import torch._C._dynamo.guards  # noqa: F401  (loaded by minamp when it is needed)
    import torch._dynamo.symbolic_convert  # noqa: F401

    used = set().union(*ALL_PRIVATE.values()) - WITH_A_SUBSTITUTE
    assert used, "the search has gone blind"
    assert sorted(name for name in used if not exists(name)) == []


def test_the_search_for_private_names_finds_those_of_the_dispatcher():
    floor = PACKAGE / "autocasting" / "floor.py"
    assert "torch._C._dispatch_tls_set_dispatch_key_included" in ALL_PRIVATE[floor]
    assert any("_functorch" in name for names in ALL_PRIVATE.values() for name in names)


def test_private_methods_of_tensors_and_attributes_of_dynamo_exist():
    """Those that no search for `torch.` finds."""
    x = torch.ones(2)
    assert x._version == 0 and x._base is None
    assert hasattr(torch.ops.aten.mm.default, "_schema")
    frames = torch._C._dynamo.eval_frame
    assert hasattr(frames, "set_code_exec_strategy") or hasattr(frames, "skip_code")
    from torch._dynamo.output_graph import OutputGraph
    from torch._dynamo.symbolic_convert import InstructionTranslator

    assert hasattr(InstructionTranslator, "current_tx")
    assert hasattr(OutputGraph, "add_cleanup_hook")


def test_functions_marked_for_dynamo_are_seen_so_by_dynamo():
    import torch._dynamo

    def one():
        """Never called."""

    assert torch._dynamo.assume_constant_result(one)._dynamo_marked_constant
    assert torch.compiler.disable(one)._torchdynamo_disable


# torch.amp and its kernels are what minamp explains, so it may not lean on them.
FORBIDDEN = ("torch.amp", "torch.autocast", "torch.cuda.amp", "torch.cpu.amp")


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: str(s.relative_to(PACKAGE)))
def test_minamp_calls_nothing_of_torch_amp(source):
    names = {
        dotted(node)
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute)
    }
    names |= {
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    used = {n for n in names if f"{n}.".startswith(tuple(f"{f}." for f in FORBIDDEN))}
    used |= {n for n in names if "_amp_" in n}
    assert used == set()
