"""One lossless checkpoint of a whole training run.

What decides the next step lies in many places: weights, masters, moments, the loss
scale and its counters, the learning rate, random generators.  Leave one out, and it is
another run that goes on.  Masters are in ``optimizer.state_dict()`` already (how is in
``weights/optimizer_memory.py``), so

    state = TrainingState(model=model, optimizer=optimizer, scaler=scaler)
    state.save("run.pt", epoch=3)
    notes = state.load("run.pt")                 # {"epoch": 3}

and a run resumed at any step equals the run never stopped, to the bit.

Loading is all or nothing.  The file is checked for damage first, then the parts are
loaded, and if one refuses, all get back what they had.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from zipfile import ZipFile, is_zipfile

import torch
from torch.optim import Optimizer

from minamp.loop.atomic_file import write_atomically
from minamp.tensors.random_state import RandomState

# Entries of a checkpoint beside the parts.
OPTIMIZERS = "optimizer_classes"  # what moments mean, only the same class knows
NOTES = "notes"


class Part(Protocol):
    """A model, an optimizer, a scaler, a scheduler ..."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class TrainingState:
    """The parts of a training run, saved and loaded together, under names you choose.

    The random generators are a part too, named ``random``.

    ``load_state_dict`` takes a checkpoint of torch.amp as well: a dictionary with the
    states of model, optimizer and GradScaler under the same names.  What it has
    besides is left alone.
    """

    def __init__(self, **parts: Part) -> None:
        self.parts: dict[str, Part] = {**parts, "random": RandomState()}

    def state_dict(self) -> dict[str, Any]:
        """The state of each part under its name.  It shares the parts' tensors."""
        states = {name: part.state_dict() for name, part in self.parts.items()}
        return {**states, OPTIMIZERS: self._optimizer_classes()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load every part, or none.

        Needs memory for a second copy of the state while it works.

        Raises:
            ValueError: a part is missing, an optimizer is of another class, or a part
                refused its state.  Everything is as it was before.
        """
        names = self._checked_names(state)
        before = copy.deepcopy({name: self.parts[name].state_dict() for name in names})
        try:
            for name in names:
                self._load(name, state)
        except BaseException:
            # All of them: what a model refuses half-way may have reached masters.
            for name in names:
                self._load(name, before)
            raise

    def _load(self, name: str, state: Mapping[str, Any]) -> None:
        try:
            self.parts[name].load_state_dict(state[name])
        except Exception as error:
            raise ValueError(_REFUSED.format(name=name, error=error)) from error

    def save(self, path: str | Path, **notes: Any) -> None:
        """Write a checkpoint; killed at any moment, it leaves the old one or the new.

        ``notes`` are plain numbers and strings, such as ``epoch=3``.
        """
        state = {**self.state_dict(), NOTES: notes}
        write_atomically(path, lambda file: torch.save(state, file))

    def load(self, path: str | Path) -> dict[str, Any]:
        """Load what ``save`` wrote, or ``torch.save`` of a dictionary; the notes.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is damaged or no checkpoint; or as `load_state_dict`.
                Nothing is changed.
        """
        state = read_checkpoint(path)
        self.load_state_dict(state)
        notes: dict[str, Any] = state.get(NOTES, {})
        return notes

    def _optimizer_classes(self) -> dict[str, str]:
        return {
            name: type(part).__name__
            for name, part in self.parts.items()
            if isinstance(part, Optimizer)
        }

    def _checked_names(self, state: Mapping[str, Any]) -> list[str]:
        """The parts that ``state`` has: all, but for the generators in foreign ones."""
        missing = self.parts.keys() - state.keys() - {"random"}
        if missing:
            raise ValueError(_MISSING.format(missing=sorted(missing), has=[*state][:9]))
        here, saved = self._optimizer_classes(), state.get(OPTIMIZERS, {})
        if any(saved.get(name, kind) != kind for name, kind in here.items()):
            raise ValueError(_OTHER_OPTIMIZER.format(saved=saved, here=here))
        return [name for name in self.parts if name in state]


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The dictionary in a file of ``torch.save``, on the CPU, checked for damage.

    ``torch.load`` reads past a flipped bit; the checksums of the zip file do not.  Only
    data is read, never code (``weights_only``).
    """
    try:
        damaged = ZipFile(path).testzip() if is_zipfile(path) else None
        if damaged is not None:
            raise ValueError(f"the checksum of {damaged} is wrong")
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            raise ValueError(f"it holds a {type(state).__name__}, not a dictionary")
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(_UNREADABLE.format(path=path, error=error)) from error
    return state


_UNREADABLE = (
    "{path} is damaged, or is no checkpoint: {error}.  Nothing was loaded.  Use the "
    "checkpoint before it."
)
_MISSING = (
    "the checkpoint has nothing for {missing}, only {has}.  Nothing was loaded.  Give "
    "TrainingState the parts that were saved, under the names they had."
)
_OTHER_OPTIMIZER = (
    "the checkpoint was written by the optimizers {saved}, here are {here}, and the "
    "moments of one mean nothing to another.  Nothing was loaded.  Build the same "
    "optimizer, or load the model alone: TrainingState(model=model)."
)
_REFUSED = (
    "'{name}' refused its part of the checkpoint; all parts are as they were before.  "
    "It said: {error}"
)
