"""What the README says that PyTorch's exporters do, against PyTorch's autograd."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import onnx
import pytest

import onnx_cfad as cfad
from tests.execution import run_in_onnxruntime

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

X = np.random.default_rng(2).standard_normal((2, 3)).astype(np.float32)
SEED = np.random.default_rng(3).standard_normal((2, 3)).astype(np.float32)


class Norms(torch.nn.Module):
    """Two norms whose weights are equal, as before training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(3), torch.nn.LayerNorm(3)

    def forward(self, x: Any) -> Any:
        return self.second(torch.tanh(self.first(x)))


class Hard(torch.nn.Module):
    """A step with the derivative of tanh."""

    def forward(self, x: Any) -> Any:
        soft = torch.tanh(x)
        return soft + ((soft > 0).to(x.dtype) - soft).detach()


def exported(module: Any, **options: Any) -> onnx.ModelProto:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.eval(), (torch.tensor(X),), None if options["dynamo"] else file, input_names=["x"],
            output_names=["y"], opset_version=18, verbose=False, **options,
        )  # fmt: skip
    return program.model_proto if options["dynamo"] else onnx.load_from_string(file.getvalue())


def gradients(model: onnx.ModelProto, wrt: Any = (cfad.INITIALIZERS, "x"), **options: Any) -> dict[str, np.ndarray]:
    """By name."""
    found = cfad.vjp(model, wrt=wrt, outputs=["y"], **options)
    values = run_in_onnxruntime(found.proto(), {"x": X, "y_grad": SEED})
    return {name: values[output] for name, output in found.report.gradients.items()}


def autograd(module: Any) -> dict[str, np.ndarray]:
    x = torch.tensor(X, requires_grad=True)
    module(x).backward(torch.tensor(SEED))
    return {"x": x.grad.numpy(), **{name: p.grad.numpy() for name, p in module.named_parameters()}}


@pytest.mark.parametrize("options", [{"dynamo": True}, {"dynamo": False}])
def test_equal_parameters_are_one_initializer_with_the_sum_of_their_gradients(options: dict[str, Any]) -> None:
    found, expected = gradients(exported(Norms(), **options)), autograd(Norms())
    assert set(found) == {"first.weight", "first.bias", "x"}
    for part in ("weight", "bias"):
        both = expected[f"first.{part}"] + expected[f"second.{part}"]
        np.testing.assert_allclose(found[f"first.{part}"], both, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["x"], expected["x"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"dynamo": True, "optimize": False},
        {"dynamo": False, "keep_initializers_as_inputs": True},
        {"dynamo": False, "training": torch.onnx.TrainingMode.TRAINING},
    ],
    ids=["optimize", "inputs", "training"],
)
def test_equal_parameters_stay_apart_where_asked_to(options: dict[str, Any]) -> None:
    found, expected = gradients(exported(Norms(), **options)), autograd(Norms())
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamo", [True, False])
def test_detached_value_is_named(dynamo: bool) -> None:
    model, expected = exported(Hard(), dynamo=dynamo), autograd(Hard())
    (name,) = [node.output[0] for node in model.graph.node if node.op_type == "Sub"]
    np.testing.assert_array_equal(gradients(model, ["x"])["x"], np.zeros_like(X))
    np.testing.assert_allclose(gradients(model, ["x"], stop_gradient=[name])["x"], expected["x"], rtol=1e-5)
