"""A Scan as a Loop that reads its slices by number: for what takes a Scan of known length alone, or none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.regions import LoopSite, ScanOutput, loop_site
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.recorder import Recorder
from onnx_cfad.rewriters.rewrite_nodes import RewriteNodesPass

_TO_THE_FRONT = -(2**62)


class ScanToLoopPass(RewriteNodesPass):
    """Replaces Scans by Loops, in the main graph and all subgraphs.

    Given ``hs = Scan (x)``, the result is ``hs = Loop (length of x, true)`` whose body begins with
    ``row = Gather (x, i)``. Rows of other directions and axes are turned after the loop. The operators of the body
    stay, so results are bit-equal. The ranks of values have been inferred; a Scan is left alone where one that is
    needed is not known.

    Args:
        wanted: Which Scans are replaced.
    """

    def __init__(self, wanted: Callable[[LoopSite], bool] = lambda site: True) -> None:  # noqa: ARG005
        super().__init__()
        self._wanted = wanted

    def rewrite(self, node: ir.Node, graph: ir.Graph, namer: Namer) -> bool:
        """Replaces a Scan that is wanted."""
        if node.op_type != "Scan":
            return False
        site = loop_site(node)
        wanted = self._wanted(site) and all(o.axis == 0 or o.element.shape is not None for o in site.outputs)
        if wanted:
            _replace(graph, site, Recorder(namer, node.name or "scan"))
        return wanted


def _replace(graph: ir.Graph, site: LoopSite, op: Recorder) -> None:
    node, body = site.node, site.body
    length = _length(op, site)
    index = op.variable("index", ir.DataType.INT64)
    going = op.variable("going", ir.DataType.BOOL)
    inner = op.inside()
    backward = any(s.reverse for s in site.inputs)
    last = inner.Sub(inner.Sub(length, inner.constant(np.array(1))), index) if backward else index
    for given in site.inputs:
        row = inner.Gather(given.source, last if given.reverse else index, axis=given.axis)
        row.type, row.shape = given.slice.type, given.slice.shape
        ir.convenience.replace_all_uses_with(given.slice, row, replace_graph_outputs=True)
    inner.put_first(body)
    following = op.inside()
    proceed = following.Identity(going)
    body.extend(following.nodes)
    del body.inputs[len(site.carries) :]
    for position, value in enumerate((index, going)):
        body.inputs.insert(position, value)
    body.outputs.insert(0, proceed)
    initials = [carry.initial for carry in site.carries]
    results = op.Loop(length, op.constant(np.array(True)), *initials, body=body, _outputs=len(node.outputs))
    made = [results] if isinstance(results, ir.Value) else list(results)
    for k, output in enumerate(site.outputs, start=len(initials)):
        made[k] = _turned(op, made[k], output)
    op.replace(graph, node, made)


def _length(op: Recorder, site: LoopSite) -> ir.Value:
    given = site.inputs[0]
    shape = given.source.shape
    axis = given.axis if given.axis >= 0 or shape is None else given.axis + shape.rank()
    if shape is not None and isinstance(shape[axis], int):
        return op.constant(np.array(shape[axis]))
    sizes = op.Shape(given.source, start=axis, end=axis + 1 if axis != -1 else None)
    return op.Squeeze(sizes, op.ints(0))


def _turned(op: Recorder, rows: ir.Value, output: ScanOutput) -> ir.Value:
    """Rows in the order and at the axis that the Scan gives them."""
    if output.reverse:
        rows = op.Slice(rows, op.ints(-1), op.ints(_TO_THE_FRONT), op.ints(0), op.ints(-1))
    if output.axis == 0:
        return rows
    assert output.element.shape is not None, "the pass has asked"
    axes = list(range(1, output.element.shape.rank() + 1))
    axes.insert(output.axis if output.axis >= 0 else output.axis + len(axes) + 1, 0)
    return op.Transpose(rows, perm=axes)
