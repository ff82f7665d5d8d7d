"""The conformance models of the onnx package that have a float input and a float output, with inputs for each.

Models with control flow that have no float input but constants inside it are examples too.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.backend.test.case.node import collect_testcases
from onnx.numpy_helper import to_array

from tests.conformance.tensors_only import through_tensors

FLOATS = frozenset((TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16))
CONTROL_FLOW = frozenset(("If", "Loop", "Scan", "SequenceMap"))
_PREFIX, _WRITTEN_OUT = "test_", re.compile(r"_expanded(_ver\d+)?$")


@dataclasses.dataclass(frozen=True)
class Example:
    """A conformance model.

    Attributes:
        name: As the onnx package calls it, without ``test_``.
        subject: The operator it is for.
        model: The model; sequences and optional values are put together inside.
        feeds: Inputs by name.
        by_weights: Its float inputs are none, and it is differentiated by the constants inside its branches and bodies.
    """

    name: str
    subject: str
    model: ModelProto
    feeds: dict[str, Any]
    by_weights: bool = False

    @property
    def operators(self) -> list[str]:
        """The operator types of all scopes and functions, sorted."""
        nodes = [*nodes_of(self.model.graph), *(node for f in self.model.functions for node in nodes_of(f))]
        return sorted({node.op_type for node in nodes} - {function.name for function in self.model.functions})

    @property
    def has_control_flow(self) -> bool:
        """Whether some operator runs a subgraph."""
        return not CONTROL_FLOW.isdisjoint(self.operators)


@functools.cache
def examples() -> tuple[Example, ...]:
    """Every conformance model with a float input and a float output, by name.

    Cost: about 10 seconds.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = sorted(collect_testcases(None), key=lambda case: case.name)
    subjects = {case.name: case.model.graph.node[0].op_type for case in cases if case.model is not None}
    found: list[Example] = []
    for case in cases:
        assert case.model is not None
        assert case.data_sets is not None
        inputs, outputs = case.data_sets[0]
        graph = case.model.graph
        model, feeds = through_tensors(case.model, _named(graph.input, inputs), _named(graph.output, outputs))
        subject = subjects.get(_WRITTEN_OUT.sub("", case.name), subjects[case.name])
        example = Example(
            case.name.removeprefix(_PREFIX), subject, model, feeds, by_weights=not _has_float(model.graph.input)
        )
        if _has_float(model.graph.output) and (not example.by_weights or example.has_control_flow):
            found.append(example)
    return tuple(found)


def nodes_of(graph: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    """Every node of ``graph`` and of the graphs inside it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs:
                yield from nodes_of(inner)


def _named(values: Iterable[ValueInfoProto], given: Iterable[Any]) -> dict[str, Any]:
    """The data of a case by name; an optional value that is absent is left out."""
    pairs = zip(values, given, strict=False)
    arrays = {value.name: to_array(x) if isinstance(x, TensorProto) else x for value, x in pairs}
    return {name: array for name, array in arrays.items() if array is not None}


def _has_float(values: Iterable[ValueInfoProto]) -> bool:
    return any(value.type.tensor_type.elem_type in FLOATS for value in values)
