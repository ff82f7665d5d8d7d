"""Opset conversion up to 18: older forms of operators rewritten in place, in every scope, without loading weights.

The converters of the onnx packages stop at the main graph or start at opset 18. Here every node is converted by
itself, wherever it is, and knows the version that it was written for, since inlined functions may bring their own.
Nothing depends on declared types: where a rewrite needs an element type or a rank, the graph computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx.defs
import onnx_ir as ir

from onnx_cfad.errors import ModelError
from onnx_cfad.graph.faults import Blamed
from onnx_cfad.graph.walk import nodes_of
from onnx_cfad.names import Namer

OLDEST = 7
"""The oldest default-domain opset that is understood: before it, broadcasting was an attribute."""

BASE = 18
"""Every model is brought up to this opset at least."""

Adapter = Callable[["Edit"], None]
AdapterFunction = TypeVar("AdapterFunction", bound=Adapter)

_ADAPTERS: dict[str, list[tuple[int, Adapter]]] = {}


def before(version: int, *op_types: str) -> Callable[[AdapterFunction], AdapterFunction]:
    """Registers how nodes written for an opset before ``version`` are brought to it; older adapters run first."""

    def register(function: AdapterFunction) -> AdapterFunction:
        for op_type in op_types:
            entries = _ADAPTERS.setdefault(op_type, [])
            if any(known == version for known, _ in entries):
                raise ValueError(f"{op_type} already has an adapter to opset {version}")
            entries.append((version, function))
            entries.sort(key=lambda entry: entry[0])
        return function

    return register


class Edit:
    """Edits around one node: it keeps its identity, its outputs and their names; what it needs is put before it.

    Attributes:
        node: The node that is converted.
        namer: Gives names that are new in every scope.
    """

    def __init__(self, node: ir.Node, namer: Namer) -> None:
        self.node = node
        self.namer = namer

    @property
    def inputs(self) -> tuple[ir.Value | None, ...]:
        """The inputs of the node."""
        return tuple(self.node.inputs)

    def input(self, index: int) -> ir.Value | None:
        """One input, None where it is absent."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    @property
    def x(self) -> ir.Value:
        """The first input, which every converted operator has.

        Raises:
            ModelError: It is absent.
        """
        value = self.input(0)
        if value is None:
            raise self.refusal("its first input is absent")
        return value

    def take(self, name: str, default: Any = None) -> Any:
        """Removes an attribute and gives its value, or ``default`` when the node does not have it."""
        attribute = self.node.attributes.pop(name, None)
        if attribute is None:
            return default
        return attribute.as_string() if attribute.type == ir.AttributeType.STRING else attribute.value

    def set(self, name: str, value: Any) -> None:
        """Sets an attribute."""
        self.node.attributes[name] = ir.convenience.convert_attribute(name, value)

    def set_inputs(self, *values: ir.Value | None) -> None:
        """Replaces the inputs; absent ones at the end are dropped."""
        while values and values[-1] is None:
            values = values[:-1]
        self.node.resize_inputs(len(values))
        for index, value in enumerate(values):
            self.node.replace_input_with(index, value)

    def insert(self, op_type: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> ir.Value:
        """Puts a node before the converted one and gives its first output."""
        return self.insert_node(op_type, inputs, 1, attributes)[0]

    def insert_node(
        self, op_type: str, inputs: Sequence[ir.Value | None], outputs: int, attributes: Mapping[str, Any]
    ) -> Sequence[ir.Value]:
        """Puts a node before the converted one and gives its outputs."""
        converted = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
        hint = f"{self.node.name or self.node.op_type}/{op_type}"
        name = self.namer.fresh(hint)
        node = ir.Node("", op_type, inputs, converted, num_outputs=outputs, name=name, version=BASE)
        for output in node.outputs:
            output.name = self.namer.fresh(f"{hint}.out")
        if self.node.graph is None:
            raise self.refusal("it belongs to no graph")
        self.node.graph.insert_before(self.node, node)
        return node.outputs

    def constant(self, value: Any, dtype: type[np.generic] = np.int64) -> ir.Value:
        """A Constant node before the converted one."""
        return self.insert("Constant", [], value=ir.tensor(np.asarray(value, dtype=dtype)))

    def constant_like(self, value: float, like: ir.Value) -> ir.Value:
        """A scalar constant of the element type of ``like``."""
        scalar = self.constant(value, np.float32)
        return scalar if like.dtype == ir.DataType.FLOAT else self.insert("CastLike", [scalar, like])

    def become(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> None:
        """Turns the node into another operator that makes the same outputs."""
        self.node.attributes.clear()
        self.node.op_type = op_type
        self.node.version = BASE
        for name, value in attributes.items():
            self.set(name, value)
        self.set_inputs(*inputs)

    def refusal(self, what: str) -> ModelError:
        """The error for a node that cannot be converted."""
        title = f"{self.node.op_type} '{self.node.name}'" if self.node.name else self.node.op_type
        return ModelError(title, f"written for opset {self.node.version}: {what}", "Export the model with opset 18.")


def stamp_versions(model: ir.Model) -> None:
    """Writes into every default-domain node the opset version it was written for.

    Raises:
        ModelError: A graph with default-domain nodes imports no default-domain opset, or one that is not understood.
    """
    newest = onnx.defs.onnx_opset_version()
    for owner in (model, *model.functions.values()):
        _merge_aliases(owner)
        graph = owner.graph
        where = "main" if isinstance(owner, ir.Model) else f"function {owner.domain}::{owner.name}"
        version = owner.opset_imports.get("")
        for node in nodes_of(graph):
            if node.domain in ("", "ai.onnx"):
                if version is None:
                    raise ModelError(
                        where, f"has ONNX operators ({node.op_type}) but imports no ONNX opset", "Export it again."
                    )
                node.domain, node.version = "", version
            elif node.domain not in owner.opset_imports:
                raise ModelError(
                    where, f"{node.op_type} is of domain '{node.domain}', which is not imported", "Import it."
                )
        if version is not None and not OLDEST <= version <= newest:
            raise ModelError(
                where,
                f"is written for opset {version}; understood are {OLDEST} to {newest}",
                "Export it with opset 18.",
            )


def _merge_aliases(owner: ir.Model | ir.Function) -> None:
    """The default domain has two names; the shorter one is kept."""
    alias = owner.opset_imports.pop("ai.onnx", None)
    if alias is not None:
        owner.opset_imports.setdefault("", alias)


def convert_opset(model: ir.Model) -> None:
    """Brings every node up to one opset: the newest that a node was written for, and at least ``BASE``.

    Args:
        model: A model without local functions, whose nodes carry their version (``stamp_versions``).

    Raises:
        ModelError: A node has no equal in the newer opset.
    """
    nodes = [node for node in nodes_of(model.graph) if node.domain == ""]
    target = max([BASE, model.opset_imports.get("", BASE), *(node.version or 0 for node in nodes)])
    if any((node.version or target) < target for node in nodes):
        from onnx_cfad import opset_adapters, opset_scan  # noqa: F401, PLC0415 - they register the adapters
    namer = Namer.on_demand(model)
    for node in nodes:
        written_for = node.version or target
        for version, adapter in _ADAPTERS.get(node.op_type, ()):
            if written_for < version <= target:
                with Blamed(node, f"it cannot be converted from opset {written_for}", model):
                    namer.read()
                    adapter(Edit(node, namer))
        node.version = target
    model.opset_imports[""] = target
