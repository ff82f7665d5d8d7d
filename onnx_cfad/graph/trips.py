"""How often a loop runs, as far as the model itself says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.regions import LoopSite, is_branch
from onnx_cfad.graph.walk import subgraphs_of

_ARITHMETIC: dict[str, Callable[..., np.ndarray]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Neg": np.negative,
    "Reciprocal": np.reciprocal,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TripCount:
    """The trip count of a loop.

    Attributes:
        static: The count where the model fixes it, in iterations.
        bound: An upper bound where the model fixes one, in iterations.
        conditional: A computed condition may end the loop before its limit.
    """

    static: int | None = None
    bound: int | None = None
    conditional: bool = False

    @property
    def positive(self) -> bool:
        """Whether the loop certainly runs at least once."""
        return self.static is not None and self.static > 0

    def __str__(self) -> str:
        if self.static is not None:
            return str(self.static)
        return f"at most {self.bound}" if self.bound is not None else "dynamic"


_UNBOUNDED = 2**62


def trip_count(site: LoopSite) -> TripCount:
    """The trip count of ``site`` from constants and shapes; a Scan over an empty axis is an error in ONNX Runtime."""
    if site.is_scan:
        length = _scan_length(site)
        return TripCount(static=length, bound=length)
    limit = constant_of(site.limit)
    bound = None if limit is None else max(int(limit.reshape(-1)[0]), 0)
    bound = None if bound is not None and bound >= _UNBOUNDED else bound
    conditional = not (_is_true(site.start) and goes_on(site))
    if conditional:
        start = constant_of(site.start)
        if start is not None and not bool(start.reshape(-1)[0]):
            return TripCount(static=0, bound=0, conditional=True)
        return TripCount(bound=bound, conditional=True)
    return TripCount(static=bound, bound=bound)


def runs(site: LoopSite) -> bool:
    """Whether ``site`` certainly has an iteration; a Scan over an empty axis is an error in ONNX Runtime."""
    if site.is_scan:
        return True
    limit = constant_of(site.limit)
    return _is_true(site.start) and (site.limit is None or (limit is not None and int(limit.reshape(-1)[0]) > 0))


def constant_of(value: ir.Value | None, depth: int = 8) -> np.ndarray | None:
    """The constant that ``value`` holds; None where the run decides, or it is empty.

    Seen through Identity and Cast, and through arithmetic of single numbers that an exporter did not fold, at most
    ``depth`` operators of it: torch.onnx computes the exponent of torch.cdist from three constants.
    """
    while value is not None:
        tensor = ir.convenience.get_const_tensor(value)
        if tensor is not None:
            return None if value.is_graph_input() or tensor.size == 0 else tensor.numpy()
        node = value.producer()
        if node is None or node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type in _ARITHMETIC:
            return _computed(node, depth)
        if node.op_type not in ("Identity", "Cast"):
            return None
        value = node.inputs[0]
    return None


def _computed(node: ir.Node, depth: int) -> np.ndarray | None:
    """What arithmetic of real numbers gives."""
    operands = [constant_of(v, depth - 1) for v in node.inputs] if depth else []
    known = [a for a in operands if a is not None and a.size == 1 and a.dtype.kind == "f"]
    if not known or len(known) < len(node.inputs):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(_ARITHMETIC[node.op_type](*known))


def _is_true(value: ir.Value | None) -> bool:
    if value is None:
        return True
    constant = constant_of(value)
    return constant is not None and bool(constant.reshape(-1)[0])


def goes_on(site: LoopSite) -> bool:
    """Whether the body's condition is true whenever the one it was given is."""
    value = site.proceed
    while value is not None and value is not site.predicate:
        node = value.producer()
        if node is None or node.op_type not in ("Identity", "Cast"):
            return _is_true(value)
        value = node.inputs[0]
    return value is site.predicate


def _scan_length(site: LoopSite) -> int | None:
    for source in site.inputs:
        length = source.source.shape[source.axis] if source.source.shape is not None else None
        if isinstance(length, int):
            return length
    return None


def decides_by_index(site: LoopSite) -> bool:
    """Whether the body asks a question that the iteration number alone answers: a branch or an inner trip count.

    Written out, such a loop loses its branches and dynamic trip counts.
    """
    known = {site.index} if site.index is not None else set[ir.Value]()
    for node in site.body:
        inputs = [v for v in node.inputs if v is not None]
        question = inputs[:1] if is_branch(node) or node.op_type == "Loop" else []
        if any(v in known for v in question):
            return True
        from_index = any(v in known for v in inputs) and all(v in known or constant_of(v) is not None for v in inputs)
        if from_index and not subgraphs_of(node):
            known.update(node.outputs)
    return False
