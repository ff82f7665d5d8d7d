"""The corpus and the exported models, primal and differentiated, with feeds: what every target has to run."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto

import onnx_cfad as cfad
from onnx_cfad.runtime import Session
from tests.corpus import CORPUS, Maker
from tests.test_models import FOLDERS, NAMES, differentiate, float32_feeds, load

FORMS = ("primal", "taped", "checkpointed")


class Case(NamedTuple):
    """A model with its feeds."""

    model: ModelProto
    feeds: dict[str, Any]


def corpus_case(maker: Maker, form: str) -> Case | None:
    """A model of the corpus in float32 or its gradient; None where the plan is refused for it."""
    example = maker("float")
    if form == "primal":
        return Case(example.model, dict(example.feeds))
    try:
        gradient = cfad.vjp(example.model, wrt=example.wrt, outputs=example.outputs, plan=form).proto()
    except cfad.CfadError:
        return None
    primal = Session(example.model, threads=1).run(example.feeds)
    rng = np.random.default_rng(zlib.crc32(example.model.graph.name.encode()))
    feeds: dict[str, Any] = dict(example.feeds)
    for value in gradient.graph.input:
        if value.name not in feeds:
            output = primal[value.name.removesuffix("_grad")]
            feeds[value.name] = rng.standard_normal(output.shape).astype(output.dtype)
    return Case(gradient, feeds)


def exported_case(group: str, name: str, form: str) -> Case:
    """An exported model, or its gradient by inputs and parameters under the plan ``form``."""
    example = load(group, name)
    if form == "primal":
        return Case(example.model, example.feeds)
    if form == "auto":
        return Case(differentiate(group, name), float32_feeds(example))
    wrt = [*example.gradients, *example.candidates()]
    gradient = cfad.vjp(example.path, wrt=wrt, outputs=list(example.seeds), plan=form).proto()
    return Case(gradient, float32_feeds(example))


def corpus_makers() -> Iterator[tuple[str, Maker]]:
    """Every model of the corpus with its name."""
    for makers in CORPUS.values():
        yield from makers.items()


def exported_names() -> Iterator[tuple[str, str]]:
    """Group and name of every exported model that is here."""
    yield from ((group, name) for group, names in NAMES.items() if FOLDERS[group].is_dir() for name in names)
