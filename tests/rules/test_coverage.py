"""Every operator of the newest opset that a derivative could pass through has a way for it, or a reason against it.

The walk goes over ``onnx.defs``, so an operator that a new version of onnx brings is noticed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx.parser
import pytest
from onnx import helper

import onnx_cfad as cfad
from onnx_cfad.rules.function_body import vjp_by_body
from onnx_cfad.rules.registry import RUNTIME_OPERATORS, NoDerivative, Rule, entries
from tests.oracle import assert_vjp

# Not in the registry, and why a derivative passes all the same.
ELSEWHERE = {
    "LinearAttention": "written out as its specified body, which has a Scan, when a model is loaded",
    "Loop": "control flow: run backwards by an adjoint",
    "Scan": "control flow: run backwards by an adjoint",
    "Scatter": "deprecated: rewritten as ScatterElements when a model is loaded",
    "SequenceMap": "rewritten as a Loop",
    "Upsample": "deprecated: rewritten as Resize when a model is loaded",
}


def newest() -> dict[str, onnx.defs.OpSchema]:
    return {schema.name: schema for schema in onnx.defs.get_all_schemas() if schema.domain == ""}


def may_be_float(parameters: list[onnx.defs.OpSchema.FormalParameter]) -> bool:
    return any("float" in name or "double" in name for parameter in parameters for name in parameter.types)


def known() -> dict[str, Rule | NoDerivative]:
    return {name: entry for domain, name, entry in entries() if domain == ""}


def test_walk_sees_what_it_should() -> None:
    schemas = newest()
    floats = {name for name, s in schemas.items() if may_be_float(list(s.inputs)) and may_be_float(list(s.outputs))}
    assert {"Add", "Conv", "LSTM", "Loop", "SequenceAt", "Upsample"} <= floats
    assert floats.isdisjoint({"And", "Shape", "StringConcat"})


def test_every_float_operator_has_a_rule_a_body_or_a_reason() -> None:
    entry = known()
    missing = {
        name
        for name, schema in newest().items()
        if may_be_float(list(schema.inputs)) and may_be_float(list(schema.outputs)) and name not in entry
    }
    assert missing == set(ELSEWHERE)


def test_every_entry_is_an_operator() -> None:
    assert set(known()) - RUNTIME_OPERATORS <= set(newest())


def test_every_reason_is_a_sentence() -> None:
    reasons = [entry.reason for entry in known().values() if isinstance(entry, NoDerivative)]
    assert reasons
    assert all(len(reason.split()) >= 3 for reason in reasons)


def test_rules_through_a_body_have_one() -> None:
    through = [n for n, e in known().items() if isinstance(e, Rule) and e.function.__module__ == vjp_by_body.__module__]
    assert through
    for name in through:
        schema: Any = newest()[name]  # its stub lacks the function bodies
        assert schema.has_function or schema.has_context_dependent_function, name


DEPRECATED = {
    "Scatter": (10, "(double[3,2] x, double[1,2] u) => (double[3,2] y)", "i = Constant <value = int64[1,2] {2, 0}> ()"),
    "Upsample": (
        9,
        "(float[1,1,2,2] x) => (float[1,1,4,2] y)",
        "f = Constant <value = float[4] {1., 1., 2., 1.}> ()",
    ),
}


@pytest.mark.parametrize("name", DEPRECATED)
def test_deprecated_operators_differentiate(name: str) -> None:
    """The emitted model against differences of the original one, at the opset that had the operator."""
    opset, ports, constant = DEPRECATED[name]
    call = "Scatter (x, i, u)" if name == "Scatter" else "Upsample (x, f)"
    text = f'<ir_version: 8, opset_import: ["": {opset}]> old {ports} {{ {constant} y = {call} }}'
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    for value in model.graph.input:
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim]).astype(kind)
    assert_vjp(model, feeds)


def test_operator_without_an_entry_is_refused_by_name() -> None:
    text = '<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 3]> m (float[N,3] x) => (float[N,3] y) '
    model = onnx.parser.parse_model(text + "{ l, y = ai.onnx.ml.SVMClassifier <classlabels_ints = [0, 1]> (x) }")
    with pytest.raises(cfad.UnsupportedOp, match=r"ai\.onnx\.ml::SVMClassifier"):
        cfad.vjp(model, wrt=["x"])
