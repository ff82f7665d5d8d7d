"""Compiled artifacts by content: the key is a hash of everything that they depend on, so an entry never changes.

An entry is made in a folder of its own and then renamed, so it appears whole or not at all, whoever else is writing.
What was not used for longest goes when all entries together pass a size.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onnx_cfad.targets.scratch import remove_abandoned, scratch_folder

MOST_BYTES = 4 * 2**30


class Cache:
    """A folder of entries, each a folder.

    Args:
        folder: Where they lie; made when the first one is written.
        most_bytes: What they may take together.
    """

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self._most_bytes = most_bytes

    def fetch(self, key: str, target: Path) -> bool:
        """Copies the entry ``key`` into the empty folder ``target``; whether there was one."""
        entry = self.folder / key
        try:
            os.utime(entry)
            shutil.copytree(entry, target, dirs_exist_ok=True)
        except (OSError, shutil.Error):  # it was not there, or has been removed meanwhile
            _empty(target)
            return False
        return True

    def store(self, key: str, source: Path) -> None:
        """Copies the folder ``source`` to the entry ``key``; the first of several that store it wins."""
        with contextlib.suppress(OSError):  # a cache that cannot be written to is none: the artifact itself is there
            self.folder.mkdir(parents=True, exist_ok=True)
            with scratch_folder(self.folder / key) as temporary:
                shutil.copytree(source, temporary, dirs_exist_ok=True)
                with contextlib.suppress(OSError):
                    temporary.rename(self.folder / key)
        self._shrink(self._most_bytes)

    def clean(self) -> int:
        """Removes every entry; how many bytes they took."""
        return self._shrink(0)

    def size(self) -> tuple[int, int]:
        """How many entries there are, and the bytes that they take."""
        entries = list(self._entries())
        return len(entries), sum(map(_bytes, entries))

    def _entries(self) -> Iterator[Path]:
        if self.folder.is_dir():
            yield from (path for path in self.folder.iterdir() if not path.name.startswith("."))

    def _shrink(self, limit: int) -> int:
        remove_abandoned(self.folder)
        used = sorted(((_used(path), _bytes(path), path) for path in self._entries()), reverse=True)
        kept = removed = 0
        for _, size, path in used:
            if kept + size <= limit:
                kept += size
                continue
            removed += size
            going = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
            with contextlib.suppress(OSError):  # renamed first, so that nobody finds half of it
                path.rename(going)
                shutil.rmtree(going, ignore_errors=True)
        return removed


def key_of(parts: Mapping[str, Any]) -> str:
    """The key of an entry that depends on ``parts``, plain data."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _used(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
