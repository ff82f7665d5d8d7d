"""What may be computed again and gives the same value, and what must be saved."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.walk import subgraphs_of

_RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
)


def is_pure(node: ir.Node) -> bool:
    """Whether running ``node`` again on the same inputs gives the same outputs: no random draw at any depth."""
    if node.op_type in _RANDOM and node.domain in ("", "ai.onnx"):
        return False
    if node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None:
        training = ir.convenience.get_const_tensor(node.inputs[2])
        return training is not None and not bool(training.numpy().reshape(-1)[0])
    return all(is_pure(inner) for graph in subgraphs_of(node) for inner in graph)
