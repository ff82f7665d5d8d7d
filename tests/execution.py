"""Runs a model in ONNX Runtime, or in the reference evaluator where ONNX Runtime lacks a kernel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime
from onnx import AttributeProto, GraphProto, ModelProto
from onnx.reference import ReferenceEvaluator

from tests.convolution_operator import ConvTranspose
from tests.loop_operators import Loop, Scan

LEVELS = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")


def run_in_onnxruntime(
    model: ModelProto, feeds: Mapping[str, np.ndarray], level: str = "ENABLE_ALL"
) -> dict[str, np.ndarray]:
    """Every output of ``model`` by name, computed by one thread of ONNX Runtime's CPU provider.

    Args:
        model: The model.
        feeds: Its inputs by name.
        level: How far ONNX Runtime optimises: one of ``LEVELS``.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    options.log_severity_level = 4  # warnings about shapes that the exporter left open
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in model.graph.output]
    results = session.run(names, dict(feeds))
    return dict(zip(names, (np.asarray(result) for result in results), strict=True))


def run_in_reference(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output of ``model`` by name, computed by ONNX's own evaluator with a few operators of ours."""
    with np.errstate(all="ignore"):
        results = ReferenceEvaluator(model, new_ops=[ConvTranspose, Loop, Scan]).run(None, dict(feeds))
    names = [value.name for value in model.graph.output]
    return dict(zip(names, (np.asarray(result) for result in results), strict=True))


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """|found - expected| / |expected| in the 2-norm; where the expected value is zero, |found|."""
    scale = float(np.linalg.norm(expected))
    return float(np.linalg.norm(found.astype(np.float64) - expected)) / (scale if scale > 0 else 1.0)


def operators(model: ModelProto) -> set[str]:
    """The types of all nodes of ``model``, subgraphs included."""
    return _operators(model.graph)


def _operators(graph: GraphProto) -> set[str]:
    found = {node.op_type for node in graph.node}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                found |= _operators(attribute.g)
    return found
