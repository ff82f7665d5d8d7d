"""A dimension may have any text as its name: it is taken as it is, and comes back as it was."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnx_cfad as cfad
from tests.oracle import check_emitted, run_ort

NAMES = (
    "30_dim_0",
    "a b",
    "n+",
    "(",
    "x.1",
    "1",
    "-",
    "é",
    "n/2",
    "/Loop_dim_0",
    "a::b",
    "1e400",
    "2**9999999",
    "N",
    "E",
)


def model(name: str) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [name, 2]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Sin", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_kept(name: str) -> None:
    emitted = cfad.vjp(model(name)).proto()
    check_emitted(emitted)
    for value in (*emitted.graph.input, *emitted.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == name
    feeds = {"x": np.full((3, 2), 0.5, np.float32), "y_grad": np.ones((3, 2), np.float32)}
    np.testing.assert_allclose(run_ort(emitted, feeds)["x_grad"], np.cos(feeds["x"]), rtol=1e-6)


def test_two_names_that_look_alike_stay_apart() -> None:
    proto = model("a.b")
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "a/b"
    emitted = cfad.vjp(proto).proto()
    assert [v.type.tensor_type.shape.dim[0].dim_param for v in emitted.graph.output] == ["a/b", "a.b"]


def test_names_that_an_exporter_gave_to_several_sizes_are_told_apart() -> None:
    """The TorchScript exporter gives the results of two loops one name, whatever their sizes."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "M"])
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("y", ["Loopy_dim_0", "Loopy_dim_1"]), ("z", ["Loopy_dim_1", "N"]))
    ]
    nodes = [helper.make_node("Sin", ["x"], ["y"]), helper.make_node("Transpose", ["y"], ["z"])]
    graph = helper.make_graph(nodes, "g", [x], outputs)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    emitted = cfad.vjp(proto).proto()
    seeds = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in emitted.graph.input}
    assert seeds["y_grad"] == ["Loopy_dim_0", "Loopy_dim_1"]
    assert seeds["z_grad"] == ["Loopy_dim_1_1", "N"]
    check_emitted(emitted)
