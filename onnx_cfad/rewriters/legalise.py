"""A model in the form that a target's importer takes: ONNX to ONNX, so that ONNX Runtime can check each step."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnx_cfad.errors import TargetError
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.regions import LoopSite, control_flow, subgraphs_of
from onnx_cfad.graph.trips import trip_count
from onnx_cfad.graph.types import infer_types
from onnx_cfad.rewriters.decompose_for_tvm import RELAX, RELAY
from onnx_cfad.rewriters.decompose_max_pool import MAX_POOL
from onnx_cfad.rewriters.decompose_operators import DecomposeOperatorsPass, Decomposition
from onnx_cfad.rewriters.decompose_reductions import REDUCTIONS
from onnx_cfad.rewriters.expand_recurrent import RECURRENT
from onnx_cfad.rewriters.fold_constants import FoldConstantsPass
from onnx_cfad.rewriters.fold_known_values import FoldKnownValuesPass
from onnx_cfad.rewriters.preallocate_sequences import PreallocateSequencesPass
from onnx_cfad.rewriters.scan_to_loop import ScanToLoopPass
from onnx_cfad.rewriters.strip_mine import StripMinePass
from onnx_cfad.rewriters.supply_limits import SupplyLimitsPass

TABLES: dict[str, dict[str, Decomposition]] = {
    "relay": {**RELAY, **REDUCTIONS, **RECURRENT, **MAX_POOL},
    "relax": {**RELAX, **REDUCTIONS, **RECURRENT, **MAX_POOL},
}
"""What is decomposed for each target."""


LONG = 1_000
"""Trips from which on a loop is split in two levels for Relay, whose virtual machine holds some 17 kB for each."""

MOST_ROW_BYTES = 2**18
"""Rows of a sequence that a loop copies in each iteration rather than that the host keeps a list of its elements.

About where both take as long: a list costs the host two calls of bodies more in each iteration.
"""


def legalise(model: ir.Model, target: str, most_row_bytes: int | None = None) -> ir.Model:
    """A model with control flow in the form that ``target`` takes as a whole; ``model`` itself is not changed.

    Loops state their limits and conditions, and sequences are tensors. For Relay, a Scan of unknown or of great length
    is a Loop, and long loops have two levels; see ``StripMinePass``.

    Args:
        model: A normalised model. The more of its shapes are numbers, the more is known.
        target: ``relay`` or ``relax``.
        most_row_bytes: Rows in the place of a sequence that a loop may carry; None for any.
    """
    model = model.clone()
    legalise_operators(model, target)
    infer_types(model)
    if PreallocateSequencesPass(most_row_bytes)(model).modified:
        legalise_operators(model, target)
    changed = ScanToLoopPass(_is_long)(model).modified if target == "relay" else False
    changed |= SupplyLimitsPass()(model).modified
    if changed:
        fold_known(model)
    if target == "relay" and StripMinePass(LONG, unbounded=False)(model).modified:
        legalise_operators(model, target)
    return model


def _is_long(scan: LoopSite) -> bool:
    trips = trip_count(scan).static
    return trips is None or trips > LONG


def legalise_operators(model: ir.Model, target: str) -> ir.Model:
    """Folds what is known, and decomposes what ``target`` lacks or computes wrongly, in place.

    Args:
        model: A normalised model. The more of its shapes are numbers, the more is known.
        target: ``relay`` or ``relax``.

    Raises:
        TargetError: A node draws random numbers.
    """
    decompose(model, target)
    refuse_draws(model)
    return model


def decompose(model: ir.Model, target: str) -> None:
    """As ``legalise_operators``, for a target that leaves nodes to ONNX Runtime: those that draw stay."""
    fold_known(model)
    if DecomposeOperatorsPass(TABLES[target])(model).modified:
        fold_known(model)


def refuse_draws(model: ir.Model) -> None:
    """Refuses random numbers: TVM draws others than ONNX Runtime does, or none, so that no check could hold."""
    for node in model.graph.all_nodes():
        if not subgraphs_of(node) and not is_pure(node):
            path = control_flow(model).path_of(node)
            remedy = "Run it in ONNX Runtime, or make what is drawn an input."
            raise TargetError(path, "it draws random numbers, and TVM draws others than ONNX Runtime", remedy)


def fold_known(model: ir.Model) -> None:
    """Infers types and replaces what they fix by constants, until nothing new is known."""
    while _fold_once(model):
        _remove_unused(model)


def _fold_once(model: ir.Model) -> bool:
    by_types = FoldKnownValuesPass(infer_types(model).constants)(model).modified
    return FoldConstantsPass()(model).modified or by_types


def _remove_unused(model: ir.Model) -> None:
    """Removes nodes that nothing reads. The pass cuts absent inputs off, of which a Loop must have two all the same."""
    RemoveUnusedNodesPass()(model)
    for node in model.graph.all_nodes():
        if node.op_type == "Loop" and len(node.inputs) < 2:
            node.resize_inputs(2)
