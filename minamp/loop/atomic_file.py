"""Write a file so that nobody ever sees half of it.

A process can be killed at any instruction, and a checkpoint that was being overwritten
at that moment is lost, the old one with it.  A *rename* within one folder is atomic: a
name means either the old file or the new one.  So

    write all to a file of another name, beside the real one
    fsync it: the bytes are on the disk, not only in the operating system's memory
    rename it over the real one
    fsync the folder: the name is on the disk too

and whoever dies on the way leaves the old file whole, and perhaps a ``.partial`` beside
it, which the next save overwrites.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO


def write_atomically(path: str | Path, write: Callable[[IO[bytes]], object]) -> None:
    """Call ``write(file)``; when it returns, ``path`` is what it wrote, else as before.

    Raises:
        OSError: the folder does not exist, or the disk is full ...
    """
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _fsync_folder(path.parent)


def _fsync_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # Windows opens no folders, and renames without our help
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
