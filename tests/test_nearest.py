"""A name that is not there is taken for the one that is most like it, or for none."""

from __future__ import annotations

import pytest

from onnx_cfad.nearest import did_you_mean, nearest

NAMES = ["u", "source", "main/Loop", "main/Loop/body/If", "layer.0.weight", "layer.0.bias", "steps"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("U", "u"),
        ("sorce", "source"),
        ("main/loop", "main/Loop"),
        ("Loop", "main/Loop"),
        ("0.weight", "layer.0.weight"),
        ("layer.0.wieght", "layer.0.weight"),
        ("quite another", None),
        ("", None),
    ],
)
def test_name_that_is_most_alike(name: str, found: str | None) -> None:
    assert nearest(name, NAMES) == found


def test_names_that_differ_in_capitals_alone_are_told_apart_by_letters() -> None:
    assert nearest("Ab", ["AB", "ab", "aB"]) in {"AB", "ab", "aB"}
    assert nearest("weight", ["a.weight", "b.weight"]) in {"a.weight", "b.weight"}


def test_remedy_names_it_or_says_what_else_to_do() -> None:
    assert did_you_mean("sorce", NAMES, "Check the name.") == "Did you mean 'source'?"
    assert did_you_mean("zzz", NAMES, "Check the name.") == "Check the name."
