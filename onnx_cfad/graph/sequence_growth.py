"""By how many elements a sequence grows in an iteration of the loop that carries it."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnx_cfad.graph.regions import branch_site, is_branch, loop_site
from onnx_cfad.graph.trips import constant_of, trip_count
from onnx_cfad.graph.walk import nodes_of


@dataclasses.dataclass(frozen=True)
class Growth:
    """The elements that a sequence has more than the one that it was made of.

    Attributes:
        most: At most so many; negative where it lost some.
        certain: It is always so many.
    """

    most: int
    certain: bool = True

    def plus(self, other: Growth | None) -> Growth | None:
        """Both, one after the other."""
        return None if other is None else Growth(self.most + other.most, self.certain and other.certain)


def growth(value: ir.Value, origin: ir.Value) -> Growth | None:
    """How ``value`` has grown since ``origin``; None where it was not made of it, or nothing bounds it."""
    if value is origin:
        return Growth(0)
    node = value.producer()
    if node is None:
        return None
    if is_branch(node):
        sides = [growth(side.outputs[value.index() or 0], origin) for side in branch_site(node).branches]
        first, second = sides
        if first is None or second is None:
            return None
        certain = first.certain and second.certain and first.most == second.most
        return Growth(max(first.most, second.most), certain)
    if node.op_type == "Loop":
        return _over_iterations(node, value, origin)
    source = node.inputs[0] if node.inputs else None
    if source is None or node.op_type not in ("Identity", "SequenceErase", "SequenceInsert"):
        return None
    if node.op_type == "SequenceInsert":
        erased = replaced(node)
        if erased is not None:
            return growth(erased, origin)
    step = {"Identity": 0, "SequenceErase": -1, "SequenceInsert": 1}[node.op_type]
    return Growth(step).plus(growth(source, origin))


def _over_iterations(node: ir.Node, value: ir.Value, origin: ir.Value) -> Growth | None:
    site = loop_site(node)
    carry = next(carry for carry in site.carries if carry.final is value)
    inner, trips = growth(carry.exit, carry.entry), trip_count(site)
    if inner is None or (inner.most > 0 and trips.bound is None):
        return None
    certain = inner.certain and (trips.static is not None or inner.most == 0)
    if certain and trips.static is not None:
        total = inner.most * trips.static
    else:
        total = max(inner.most, 0) * (trips.bound or 0)
    return Growth(total, certain).plus(growth(carry.initial, origin))


def insertions(body: ir.Graph, entry: ir.Value) -> int | None:
    """The most elements that any list made of ``entry`` gets in ``body``, were none taken away; None for no bound."""
    total = 0
    for node in nodes_of(body):
        if node.op_type == "SequenceInsert" and replaced(node) is None and node.inputs[0] is not None:
            times = _times(node.inputs[0], entry)
            if times is None:
                return None
            total += times
    return total


def loses(body: ir.Graph, entry: ir.Value) -> bool:
    """Whether an element is taken from a list that is made of ``entry``."""
    return any(
        node.op_type == "SequenceErase" and not _is_replaced(node) and _times(node.inputs[0], entry) != 0
        for node in nodes_of(body)
    )


def _times(value: ir.Value | None, entry: ir.Value) -> int | None:
    """How often ``value`` is computed in an iteration, if it is made of ``entry``: 0 where not, None for no bound."""
    while value is not None and value is not entry:
        node = value.producer()
        if node is None:
            return _times_inside(value, entry)
        if is_branch(node):
            sides = [_times(side.outputs[value.index() or 0], entry) for side in branch_site(node).branches]
            return None if None in sides else max(side for side in sides if side is not None)
        if node.op_type == "Loop":
            value = next(carry.initial for carry in loop_site(node).carries if carry.final is value)
        else:
            value = node.inputs[0] if node.op_type in ("Identity", "SequenceErase", "SequenceInsert") else None
    return 0 if value is None else 1


def _times_inside(value: ir.Value, entry: ir.Value) -> int | None:
    """As ``_times``, for an input of the body of a Loop that stands in the one that is asked about."""
    node = None if value.graph is None else _owner(value.graph, entry)
    if node is None:
        return 0
    site = loop_site(node)
    outside = _times(next((c.initial for c in site.carries if c.entry is value), None), entry)
    bound = trip_count(site).bound
    if outside == 0:
        return 0
    return None if outside is None or bound is None else outside * bound


def _owner(body: ir.Graph, entry: ir.Value) -> ir.Node | None:
    """The Loop with this body, inside of the one that carries ``entry``."""
    if entry.graph is None:
        return None
    loops = (node for node in nodes_of(entry.graph) if node.op_type == "Loop")
    return next((node for node in loops if loop_site(node).body is body), None)


def replaced(insert: ir.Node) -> ir.Value | None:
    """The list of which ``insert`` gives a copy with another element in one place; None where it does something else.

    The element at the place has been erased just before. The place counts from the front, so that it is the same in
    both lists.
    """
    erase = None if insert.inputs[0] is None else insert.inputs[0].producer()
    place = insert.inputs[2] if len(insert.inputs) > 2 else None
    if erase is None or place is None or erase.op_type != "SequenceErase" or len(erase.inputs) < 2:
        return None
    same = erase.inputs[1] is place and _counts_from_front(place)
    return erase.inputs[0] if same and len(erase.outputs[0].uses()) == 1 else None


def _is_replaced(erase: ir.Node) -> bool:
    uses = list(erase.outputs[0].uses())
    return len(uses) == 1 and uses[0].node.op_type == "SequenceInsert" and replaced(uses[0].node) is not None


def _counts_from_front(place: ir.Value) -> bool:
    """Whether ``place`` is not negative where it is a place at all: a constant, or a negative one plus the length."""
    known = constant_of(place)
    if known is not None:
        return int(known.reshape(-1)[0]) >= 0
    node = place.producer()
    if node is None or node.op_type != "Where":
        return False
    is_negative, from_end, given = node.inputs
    added = None if from_end is None else from_end.producer()
    return (
        added is not None
        and added.op_type == "Add"
        and added.inputs[0] is given
        and (constant_of(is_negative) is not None or _asks_sign(is_negative, given))
    )


def _asks_sign(value: ir.Value | None, given: ir.Value | None) -> bool:
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Less" or node.inputs[0] is not given:
        return False
    zero = constant_of(node.inputs[1])
    return zero is not None and not zero.any()
