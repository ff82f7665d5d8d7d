"""One operator in every form that a model can have it: dimensions known, symbolic or without even a rank; integer
inputs constant or computed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import onnx_cfad as cfad
from tests.modes import MODE
from tests.oracle import DOUBLE, Array, assert_vjp, node_model, run_ort
from tests.rules.second_order import first_order

FORMS = ("static", "symbolic", "computed", "unranked")


@dataclasses.dataclass(frozen=True)
class Case:
    """A node and its inputs.

    Attributes:
        name: Of the test.
        node: Its inputs are names in ``floats``, ``integers`` or "".
        floats: Inputs to differentiate by.
        integers: Further inputs: constants in the forms "static" and "symbolic", else graph inputs.
        needs_rank: The rule refuses the form "unranked".
        outputs: Element types of the outputs; default: all float64.
        opset: Of the model.
        seeded: Outputs to differentiate; default: all.
        forms: To check.
    """

    name: str
    node: onnx.NodeProto
    floats: Mapping[str, Array]
    integers: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    needs_rank: bool = False
    outputs: Mapping[str, int] | None = None
    opset: int = 21
    seeded: tuple[str, ...] | None = None
    forms: tuple[str, ...] = FORMS


def case(
    name: str, op_type: str, inputs: Mapping[str, Any], *, outputs: Mapping[str, int] | None = None, **options: Any
) -> Case:
    """A case of ``op_type``: inputs in order (None where absent), node attributes among ``options``."""
    fields = {k: options.pop(k) for k in ("needs_rank", "opset", "seeded", "forms") if k in options}
    arrays = {k: np.asarray(v) for k, v in inputs.items() if v is not None}
    node = helper.make_node(
        op_type, [k if v is not None else "" for k, v in inputs.items()], list(outputs or {"y": 0}), **options
    )
    floats = {k: a for k, a in arrays.items() if a.dtype.kind == "f"}
    integers = {k: a for k, a in arrays.items() if a.dtype.kind != "f"}
    return Case(name, node, floats, integers, outputs=outputs, **fields)


def each_form(cases: list[Case], forms: tuple[str, ...] = FORMS) -> pytest.MarkDecorator:
    """One test for each case and form."""
    return pytest.mark.parametrize(
        ("case", "form"),
        [
            pytest.param(c, form, id=f"{c.name}-{form}")
            for c in cases
            for form in c.forms
            if form in forms and (c.integers or form != "computed")
        ],
    )


def check(case: Case, form: str, *, flat: bool = False, **options: Any) -> None:
    """Asserts that the gradient of ``case`` in ``form`` equals central differences; outputs as vectors if ``flat``."""
    computed = form in ("computed", "unranked")
    feeds = {**case.floats, **(case.integers if computed else {})}
    constants = {"flat": np.asarray([-1]), **({} if computed else case.integers)}
    nodes = [case.node]
    if form == "unranked":
        nodes, feeds = _without_ranks(case), {**feeds, "ranked": np.array(True)}
    if computed or flat:
        nodes = _with_vectors_out(nodes)
    model = node_model(
        nodes,
        feeds,
        constants=constants,
        outputs=case.outputs or {"y": DOUBLE},
        dims=_dims(form),
        opset=case.opset,
    )
    if form == "unranked" and case.needs_rank and MODE.get() == "reverse":
        with pytest.raises(cfad.UnsupportedOp, match="rank"):
            cfad.vjp(model, wrt=list(case.floats), outputs=case.seeded)
        return
    # The branch of the other rank is dead: an inference that finds the rank elsewhere may call it a contradiction.
    options.setdefault("check", form != "unranked")
    # Forward mode may get on without the rank that the VJP rule needs: it is not asked to refuse.
    may_refuse = form == "unranked" and case.needs_rank
    with pytest.raises((cfad.UnsupportedOp, _Held), match="rank|held") if may_refuse else contextlib.nullcontext():
        assert_vjp(model, feeds, wrt=list(case.floats), outputs=case.seeded, **options)
        if may_refuse:
            raise _Held("held")


class _Held(Exception):
    """A check that was allowed to refuse did not, and held."""


def check_second(case: Case, form: str) -> None:
    """Asserts the derivative of the emitted gradient by its seeds: the second order of a linear operator."""
    feeds = {**case.floats, **(case.integers if form == "computed" else {})}
    constants = {} if form == "computed" else case.integers
    outputs = case.outputs or {"y": DOUBLE}
    model = node_model(case.node, feeds, constants=constants, outputs=outputs, opset=case.opset, dims=_dims(form))
    first, seeds = first_order(model, run_ort(model, feeds), feeds, list(case.floats), case.seeded)
    assert_vjp(first, {**feeds, **seeds}, wrt=list(seeds))


def _dims(form: str) -> str:
    return "static" if form == "static" else "symbolic"


def _without_ranks(case: Case) -> list[onnx.NodeProto]:
    """The node with its float inputs behind an If whose branches give different ranks."""
    node = onnx.NodeProto.FromString(case.node.SerializeToString())
    before = [_unranked(name, f"{name}_view", case.floats[name].dtype) for name in case.floats]
    for index, name in enumerate(node.input):
        if name in case.floats:
            node.input[index] = f"{name}_view"
    return [*before, node]


def _with_vectors_out(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes with the last one's outputs flattened: an output of a model has a rank."""
    last = onnx.NodeProto.FromString(nodes[-1].SerializeToString())
    names = list(last.output)
    del last.output[:]
    last.output.extend(f"{name}_whole" for name in names)
    return [*nodes[:-1], last, *(helper.make_node("Reshape", [f"{name}_whole", "flat"], [name]) for name in names)]


def _unranked(source: str, name: str, dtype: np.dtype[Any]) -> onnx.NodeProto:
    elem = helper.np_dtype_to_tensor_dtype(dtype)
    same = helper.make_node("Identity", [source], [f"{name}_same"])
    flat = helper.make_node("Reshape", [source, "flat"], [f"{name}_flat"])
    branches = [
        helper.make_graph([part], part.output[0], [], [helper.make_tensor_value_info(part.output[0], elem, None)])
        for part in (same, flat)
    ]
    return helper.make_node("If", ["ranked"], [name], then_branch=branches[0], else_branch=branches[1])
