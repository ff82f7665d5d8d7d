"""Mutated models end in a message that says where, or in a valid gradient; nothing else, by any way in."""

from __future__ import annotations

import collections
import contextlib
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from onnx import ModelProto
from typer.testing import CliRunner

import onnx_cfad as cfad
from onnx_cfad.cli import app
from onnx_cfad.errors import CfadError
from tests.corpus import CORPUS, Example
from tests.hostile.mutations import mutated, parsed
from tests.hostile.verdicts import judge, look_at

COMMANDS = ("transform", "inspect", "plan", "validate", "run")


@functools.cache
def originals() -> list[Example]:
    return [maker() for group in CORPUS.values() for maker in group.values()]


def write(seed: int, folder: pathlib.Path) -> tuple[pathlib.Path, Example]:
    example = originals()[seed % len(originals())]
    path = folder / "model.onnx"
    path.write_bytes(mutated(example.model, seed))
    return path, example


def survive(seeds: range, folder: pathlib.Path) -> collections.Counter[str]:
    """Every seed is judged; failures are told together, with their seeds."""
    found: collections.Counter[str] = collections.Counter()
    failures: list[str] = []
    for seed in seeds:
        path, example = write(seed, folder)
        try:
            found[judge(path, example.feeds)] += 1
            if seed % 5 == 0:
                look_at(path)
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            failures.append(f"seed {seed}: {type(error).__name__}: {str(error)[:200]}")
    assert not failures, "\n".join(failures)
    return found


def test_a_seed_always_gives_the_same_mutation() -> None:
    model = originals()[0].model
    assert mutated(model, 7) == mutated(model, 7)
    assert len({mutated(model, seed) for seed in range(50)}) > 25


def test_mutations_are_of_both_kinds() -> None:
    """Most parse, so that what comes after parsing is tried; some do not."""
    found = [parsed(mutated(originals()[0].model, seed)) for seed in range(200)]
    assert 120 < sum(isinstance(model, ModelProto) for model in found) < 200


def test_some_hundred_mutated_models(tmp_path: pathlib.Path) -> None:
    found = survive(range(400), tmp_path)
    assert found["refused"] > 100
    assert found["differentiated"] > 50
    assert found["suspected"] < 10  # what a check at loading could have named


@pytest.mark.slow
def test_some_thousand_mutated_models(tmp_path: pathlib.Path) -> None:
    survive(range(10_000, 11_500), tmp_path)


OPTIONS: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "checkpointed": (cfad.vjp, {"plan": "checkpointed", "segment": 3, "levels": 3}),
    "unrolled": (cfad.vjp, {"plan": "unrolled"}),
    "implicit": (cfad.vjp, {"plan": "implicit", "implicit_outputs": True}),
    "no memory": (cfad.vjp, {"memory": 1, "tape": "float16"}),
    "weights, many seeds": (cfad.vjp, {"seeds": "K", "wrt": cfad.INITIALIZERS}),
    "clipped": (cfad.vjp, {"clip_norm": 1.0, "clip_carries": True, "replace_nan": True}),
    "masked": (cfad.vjp, {"target": "cuda"}),
    "many tangents": (cfad.jvp, {"seeds": 2}),
    "plan": (cfad.plan, {"plan": "unrolled"}),
    "expand": (cfad.expand, {}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_mutated_models_under_options(name: str, tmp_path: pathlib.Path) -> None:
    function, options = OPTIONS[name]
    first = 50_000 + 100 * list(OPTIONS).index(name)
    for seed in range(first, first + 25):
        path, _ = write(seed, tmp_path)
        with contextlib.suppress(CfadError):
            function(path, **options)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_with_one_line(command: str, tmp_path: pathlib.Path) -> None:
    refused = 0
    (tmp_path / "out").mkdir()
    for seed in range(1000, 1025):
        path, _ = write(seed, tmp_path)
        arguments = {
            "transform": ["-o", str(tmp_path / "out" / "g.onnx")],
            "run": ["--inputs", str(tmp_path / "none.npz"), "-o", str(tmp_path / "out" / "y.npz")],
        }.get(command, [])
        result = CliRunner().invoke(app, [command, str(path), *arguments])
        assert result.exit_code in (0, 1, 2), (seed, result.output)
        assert "unexpected" not in result.stderr, (seed, result.stderr)
        assert "Traceback" not in result.stderr, (seed, result.stderr)
        if result.exit_code == 2:
            refused += 1
            assert result.stderr.startswith("error: "), (seed, result.stderr)
            assert not list((tmp_path / "out").iterdir()), seed
        for written in (tmp_path / "out").iterdir():
            written.unlink()
    assert refused > 5
