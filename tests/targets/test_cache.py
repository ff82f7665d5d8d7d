"""The cache of artifacts: entries appear whole, the first of several wins, the least used go, and nobody finds half."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from onnx_cfad.targets.cache import Cache, key_of


def folder(path: Path, text: str, size: int = 0) -> Path:
    """A folder with a file in it and one below."""
    (path / "inner").mkdir(parents=True)
    (path / "a").write_text(text)
    (path / "inner" / "b").write_bytes(bytes(size))
    return path


def test_entry_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    assert not cache.fetch("key", tmp_path / "none")
    assert not any((tmp_path / "none").iterdir())
    cache.store("key", folder(tmp_path / "source", "text", 3))
    assert cache.fetch("key", tmp_path / "copy")
    assert (tmp_path / "copy" / "a").read_text() == "text"
    assert (tmp_path / "copy" / "inner" / "b").read_bytes() == bytes(3)
    assert cache.size() == (1, 7)
    assert cache.clean() == 7
    assert not cache.fetch("key", tmp_path / "gone")


def test_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", most_bytes=250)
    for age, key in enumerate(("new", "old")):
        cache.store(key, folder(tmp_path / key, "", 100))
        os.utime(cache.folder / key, (1000 - age, 1000 - age))
    assert cache.fetch("old", tmp_path / "used")  # which makes it the newer one
    cache.store("third", folder(tmp_path / "third", "", 100))
    assert {path.name for path in cache.folder.iterdir()} == {"old", "third"}


def test_entry_that_is_larger_than_the_cache_is_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", most_bytes=50)
    cache.store("key", folder(tmp_path / "source", "", 100))
    assert cache.size() == (0, 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_cache_that_cannot_be_written_to_is_none(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    cache = Cache(tmp_path / "locked" / "cache")
    cache.store("key", folder(tmp_path / "source", ""))
    assert cache.size() == (0, 0)


def test_key_depends_on_every_part() -> None:
    keys = {key_of(parts) for parts in ({"a": 1}, {"a": 2}, {"b": 1}, {"a": 1, "b": None}, {"a": [1]})}
    assert len(keys) == 5
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})


def use(cache: Path, own: Path, name: str) -> None:
    """Stores, fetches and removes the same entries again and again; what is found is always whole."""
    for turn in range(20):
        store = Cache(cache, most_bytes=2_500)  # two entries of the three
        key = str(turn % 3)
        store.store(key, folder(own / f"{turn}", name * 500, 500))
        target = own / f"copy{turn}"
        if store.fetch(key, target):
            text = (target / "a").read_text()
            assert len(text) == 500
            assert len(set(text)) == 1
            assert len((target / "inner" / "b").read_bytes()) == 500
        else:
            assert not any(target.iterdir())


def test_processes_that_write_the_same_entries_at_once_do_no_harm(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    own = [tmp_path / name for name in "xy"]
    processes = [context.Process(target=use, args=(tmp_path / "cache", path, path.name)) for path in own]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert not [path for path in (tmp_path / "cache").iterdir() if path.name.startswith(".")]
