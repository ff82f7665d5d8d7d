"""What is simplified before a model is planned and differentiated: branches that need none, and work that both share.

Everything that names control-flow sites (inspect, plan, profile, transform) looks at the simplified model, so that
paths are the same everywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

import onnx_ir as ir

from onnx_cfad.graph.regions import is_branch
from onnx_cfad.graph.types import Types, infer_types
from onnx_cfad.graph.walk import graphs_of, nodes_of, operators_of
from onnx_cfad.names import Namer
from onnx_cfad.options import Options
from onnx_cfad.rewriters.boolean_branch import BooleanBranchPass
from onnx_cfad.rewriters.capture_invariants import CaptureInvariantsPass
from onnx_cfad.rewriters.flag_optionals import FlagOptionalListsPass
from onnx_cfad.rewriters.fold_branch import FoldConstantBranchPass
from onnx_cfad.rewriters.imply_predicates import ImplyPredicatesPass
from onnx_cfad.rewriters.list_optionals import ListOptionalsPass
from onnx_cfad.rewriters.merge_branches import MergeBranchesPass
from onnx_cfad.rewriters.read_rows import ReadRowsPass
from onnx_cfad.rewriters.round_resize import RoundResizePass
from onnx_cfad.rewriters.separate_outputs import SeparateOutputsPass
from onnx_cfad.rewriters.unwrap_optionals import UnwrapOptionalsPass
from onnx_cfad.rewriters.write_rows import WriteRowsPass


def simplify_branches(model: ir.Model, options: Options) -> Types:
    """Simplifies the branches of a normalised ``model``, in place, until nothing changes.

    Where the user names values inside subgraphs, branches are folded only where their predicate is constant: what is
    named has to stay where it is.

    Args:
        model: The model.
        options: Their names count.

    Returns:
        The types of the simplified model.
    """
    present = operators_of(model.graph)  # what a model does not have needs no pass
    if not present.isdisjoint(("If", "Loop", "Scan")):
        SeparateOutputsPass(Namer.on_demand(model))(model)
    if _has_optionals(model, present):
        UnwrapOptionalsPass()(model)
        ListOptionalsPass()(model)
        FlagOptionalListsPass()(model)
    if not present.isdisjoint(("Loop", "Scan")):
        CaptureInvariantsPass(options.stop_gradient)(model)
    types = infer_types(model)
    if "Resize" in present:
        RoundResizePass()(model)
    if "Loop" in present:
        read_rows = ReadRowsPass(options.stop_gradient, functools.partial(_is_fixed, model.graph, options))
        rewritten = [rewrite(model).modified for rewrite in (read_rows, WriteRowsPass(options.stop_gradient))]
        types = infer_types(model) if any(rewritten) else types
    inside = _names_inside(model, options)
    while "If" in present and any(is_branch(node) for node in nodes_of(model.graph)):
        passes: list[ir.passes.PassBase] = [FoldConstantBranchPass(types.constants)]
        if not inside:
            passes += [ImplyPredicatesPass(), BooleanBranchPass(), MergeBranchesPass()]
        modified = [rewrite(model).modified for rewrite in passes]
        if not any(modified):
            break
        types = infer_types(model)
    return types


def _is_fixed(graph: ir.Graph, options: Options, value: ir.Value) -> bool:
    """Whether ``value`` enters the main ``graph`` and no derivative by it is asked for."""
    if value.graph is not graph or value.producer() is not None:
        return False
    if value.is_graph_input():
        return options.wrt is not None and value.name not in options.wrt
    return not options.wrt_initializers and value.name not in (options.wrt or ())


def _has_optionals(model: ir.Model, present: Collection[str]) -> bool:
    """Whether a value may be an optional: one that the model is given, or that an operator makes."""
    given = any(isinstance(value.type, ir.OptionalType) for value in model.graph.inputs)
    return given or any(operator.startswith("Optional") for operator in present)


def _names_inside(model: ir.Model, options: Options) -> bool:
    """Whether the options name a value of a subgraph."""
    if any(":" in name for name in options.wrt or ()):
        return True
    stopped = set(options.stop_gradient)
    if not stopped:
        return False
    values = (output.name for graph in graphs_of(model.graph)[1:] for node in graph for output in node.outputs)
    return any(name in stopped for name in values)
