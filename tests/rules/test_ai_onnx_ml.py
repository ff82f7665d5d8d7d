"""Classical models: differences of ONNX Runtime's kernels; what is a step has a zero gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import onnx_cfad as cfad
from tests.oracle import assert_vjp, check_emitted, node_model, run_ort

DOMAIN = "ai.onnx.ml"
RNG = np.random.default_rng(17)
X = RNG.uniform(0.2, 1.2, (3, 4)).astype(np.float32)
COEFFICIENTS = RNG.normal(size=8).round(2).tolist()
POST = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]


def check(
    op_type: str,
    x: Any = X,
    *,
    outputs: tuple[str, ...] = ("y",),
    types: Any = None,
    further: Any = None,
    **attributes: Any,
) -> None:
    feeds = {"x": np.asarray(x), **(further or {})}
    node = helper.make_node(op_type, list(feeds), list(outputs), domain=DOMAIN, **attributes)
    known = types or {"y": TensorProto.FLOAT}
    for dims in ("static", "symbolic"):
        model = node_model(node, feeds, outputs=known, dims=dims, domains=[DOMAIN])
        assert_vjp(model, feeds, wrt=["x"], outputs=["y"], atol=1e-4, step=1e-2, rtol=5e-3, check=dims == "static")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scaler(dtype: type) -> None:
    check("Scaler", X.astype(dtype), offset=[0.5, 1.0, 0.0, -1.0], scale=[2.0, 0.5, 1.0, -3.0])
    check("Scaler", X.astype(dtype), offset=[0.5], scale=[2.0])


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str) -> None:
    check("Normalizer", X * np.array([1, -1, 1, 0.5], np.float32), norm=norm)


def test_normalizer_of_zeros_has_no_derivative_there() -> None:
    node = helper.make_node("Normalizer", ["x"], ["y"], domain=DOMAIN, norm="L2")
    feeds = {"x": np.zeros((1, 3), np.float32)}
    model = node_model(node, feeds, outputs={"y": TensorProto.FLOAT}, domains=[DOMAIN])
    found = run_ort(cfad.vjp(model).proto(), {**feeds, "y_grad": np.ones((1, 3), np.float32)})
    assert not found["x_grad"].any()


@pytest.mark.parametrize("post", POST)
@pytest.mark.parametrize("targets", [1, 2])
def test_linear_regressor(targets: int, post: str) -> None:
    weights = (np.abs(np.asarray(COEFFICIENTS)) * 0.1).tolist() if post == "PROBIT" else COEFFICIENTS
    check(
        "LinearRegressor", targets=targets, coefficients=weights[: 4 * targets], intercepts=[0.1, 0.2][:targets],
        post_transform=post,
    )  # fmt: skip


@pytest.mark.parametrize("labels", [{"classlabels_ints": [0, 1]}, {"classlabels_strings": ["a", "b"]}])
@pytest.mark.parametrize(
    ("post", "rows"), [(post, rows) for post in POST for rows in (1, 2) if (post, rows) != (POST[4], 1)]
)
def test_linear_classifier(labels: dict[str, Any], post: str, rows: int) -> None:
    weights = (np.abs(np.asarray(COEFFICIENTS)) * 0.1).tolist() if post == "PROBIT" else COEFFICIENTS
    label = TensorProto.INT64 if "classlabels_ints" in labels else TensorProto.STRING
    check(
        "LinearClassifier", outputs=("label", "y"), types={"label": label, "y": TensorProto.FLOAT},
        coefficients=weights[: 4 * rows], intercepts=[0.1, 0.2][:rows], post_transform=post, **labels,
    )  # fmt: skip


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "PROBIT"])
def test_svm_regressor(kernel: str, post: str) -> None:
    scale = 0.05 if post == "PROBIT" else 1.0  # a probability before it
    check(
        "SVMRegressor", kernel_type=kernel, kernel_params=[0.4, 0.3, 3.0], support_vectors=RNG.normal(size=12).tolist(),
        coefficients=[0.5 * scale, -scale, 0.7 * scale], rho=[0.4], n_supports=3, post_transform=post,
    )  # fmt: skip


def test_svm_regressor_without_supports_is_linear() -> None:
    check(
        "SVMRegressor",
        kernel_type="LINEAR",
        coefficients=COEFFICIENTS[:4],
        rho=[0.2],
        n_supports=0,
        support_vectors=[0.0],
        kernel_params=[0.1, 0.0, 3.0],
    )


def test_columns_picked_by_index() -> None:
    check("ArrayFeatureExtractor", further={"i": np.array([[2, 0, 2]])})


@pytest.mark.parametrize("indices", [[[2, 0, 2]], [[1], [0], [2], [1]], [[1, 0], [2, 2]], [3]])
@pytest.mark.parametrize("dims", ["static", "symbolic"])
def test_indices_of_any_shape_are_counted(indices: list[Any], dims: str) -> None:
    """Exporters of classifiers look a vector of classes up by a column of indices; the shapes are those of the run."""
    for x in (np.arange(4, dtype=np.float32) + 1, np.arange(8, dtype=np.float32).reshape(2, 4)):
        picker = helper.make_node("ArrayFeatureExtractor", ["c", "i"], ["p"], domain=DOMAIN)
        nodes = [helper.make_node("Mul", ["x", "x"], ["c"]), picker, helper.make_node("Sin", ["p"], ["y"])]
        shapes = {"x": x.shape, "i": np.shape(indices)}
        inputs = [
            helper.make_tensor_value_info(
                name, kind, shapes[name] if dims == "static" else [f"{name}{k}" for k in range(len(shapes[name]))]
            )
            for name, kind in (("x", TensorProto.FLOAT), ("i", TensorProto.INT64))
        ]
        graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
        imports = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
        feeds = {"x": x, "i": np.asarray(indices)}
        gradient = cfad.vjp(model, wrt=["x"]).proto()
        y = run_ort(model, feeds)["y"]
        expected, seed = np.zeros_like(x), np.full(y.shape, 2, np.float32)
        for row in np.ndindex(x.shape[:-1]):
            for k in np.ravel(indices):
                expected[(*row, k)] += 4 * x[(*row, k)] * np.cos(x[(*row, k)] ** 2)
        np.testing.assert_allclose(run_ort(gradient, {**feeds, "y_grad": seed})["x_grad"], expected, rtol=1e-4)


def test_imputer_passes_what_it_keeps() -> None:
    """Against the closed form: a difference would change the number that is replaced."""
    x = np.where(X < 0.5, np.float32(-7), X)
    replaced: dict[str, Any] = {"imputed_value_floats": [0.1], "replaced_value_float": -7.0}
    node = helper.make_node("Imputer", ["x"], ["y"], domain=DOMAIN, **replaced)
    emitted = cfad.vjp(node_model(node, {"x": x}, outputs={"y": TensorProto.FLOAT}, domains=[DOMAIN])).proto()
    found = run_ort(emitted, {"x": x, "y_grad": X})
    np.testing.assert_array_equal(found["x_grad"], np.where(x == -7, 0, X))
    check("Imputer", X, **replaced)


STEPS: dict[str, dict[str, Any]] = {
    "Binarizer": {"threshold": 0.6},
    "TreeEnsembleRegressor": {
        "n_targets": 1, "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.6, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0],
        "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0],
    },
}  # fmt: skip


@pytest.mark.parametrize("op_type", STEPS)
def test_steps_have_a_zero_gradient(op_type: str) -> None:
    """The other path to the output is differentiated all the same."""
    step = helper.make_node(op_type, ["x"], ["s"], domain=DOMAIN, **STEPS[op_type])
    model = node_model(
        [step, helper.make_node("Mul", ["s", "x"], ["y"])], {"x": X}, outputs={"y": TensorProto.FLOAT}, domains=[DOMAIN]
    )
    emitted = cfad.vjp(model).proto()
    check_emitted(emitted)
    found = run_ort(emitted, {"x": X, "y_grad": np.ones_like(X)})
    np.testing.assert_allclose(found["x_grad"], found["y"] / X, rtol=1e-6)
