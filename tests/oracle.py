"""The check of a gradient that shares no code with the rules: central differences of the primal in float64.

``assert_vjp`` differentiates a model, runs the result in ONNX Runtime (and the reference evaluator), and compares
``<seed, J t>`` by differences with ``<gradient, t>`` for random directions t, and every element of small inputs. In
the mode "forward" (``tests.modes``) it checks the tangents instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.reference
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import onnx_cfad as cfad
from tests.modes import MODE

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]

TOLERANCE = {np.dtype(np.float64): 1e-6, np.dtype(np.float32): 3e-3, np.dtype(np.float16): 5e-2}


def session(model: onnx.ModelProto, *, optimise: bool = True) -> ort.InferenceSession:
    """An ONNX Runtime session on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_ort(model: onnx.ModelProto, feeds: Feeds, *, optimise: bool = True) -> dict[str, Array]:
    """All outputs of ``model`` in ONNX Runtime."""
    names = [output.name for output in model.graph.output]
    results: Any = session(model, optimise=optimise).run(names, dict(feeds))
    return dict(zip(names, results, strict=True))


def run_reference(model: onnx.ModelProto, feeds: Feeds) -> dict[str, Array]:
    """All outputs of ``model`` in the reference evaluator."""
    names = [output.name for output in model.graph.output]
    return dict(zip(names, onnx.reference.ReferenceEvaluator(model).run(names, dict(feeds)), strict=True))  # type: ignore[arg-type]


RUNNERS = {"ort": run_ort, "reference": run_reference}


def node_model(
    node: onnx.NodeProto | Sequence[onnx.NodeProto],
    feeds: Feeds,
    *,
    constants: Mapping[str, Array] | None = None,
    outputs: Mapping[str, int] | None = None,
    dims: str = "static",
    opset: int = 21,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model of one or more nodes.

    Args:
        node: The nodes, in order.
        feeds: Inputs, which give types and shapes.
        constants: Initializers.
        outputs: Names and element types of outputs; default: all outputs of the last node, typed like the first
            floating-point feed.
        dims: "static", "symbolic" (a name for each dimension of each input) or "unranked" (no shape at all, through
            an Identity so that the input itself stays valid).
        opset: Opset of the default domain.
        domains: Further domains, at version 1.
    """
    nodes = [node] if isinstance(node, onnx.NodeProto) else list(node)
    kind = next((a.dtype for a in feeds.values() if a.dtype.kind == "f"), np.dtype(np.float32))
    elem = helper.np_dtype_to_tensor_dtype(kind)
    outputs = outputs or {name: elem for name in nodes[-1].output if name}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), _shape(name, a, dims))
        for name, a in feeds.items()
    ]
    graph = helper.make_graph(
        nodes,
        "test",
        inputs,
        [helper.make_tensor_value_info(name, type_, None) for name, type_ in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _shape(name: str, array: Array, dims: str) -> list[int | str] | None:
    if dims == "static":
        return list(array.shape)
    if dims == "symbolic":
        return [f"{name}_{axis}" for axis in range(array.ndim)]
    return None


def check_emitted(model: onnx.ModelProto) -> None:
    """The promises about every emitted model: full check, strict shape inference, standard operators only."""
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


def assert_vjp(
    model: onnx.ModelProto | onnx.NodeProto | Sequence[onnx.NodeProto],
    feeds: Feeds,
    *,
    wrt: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    runner: str = "ort",
    primal_runner: str | None = None,
    rtol: float | None = None,
    atol: float = 1e-6,
    step: float | None = None,
    seed: int = 0,
    check: bool = True,
    **build: Any,
) -> dict[str, Array]:
    """Asserts that the gradient that onnx_cfad emits equals central differences of the primal.

    Args:
        model: A model, or nodes for ``node_model`` (which takes the further keywords).
        feeds: Inputs. Differences are taken in the feeds' type: use float64 feeds where the runner can.
        wrt: Names to differentiate by; default: the floating-point feeds.
        outputs: Names to differentiate.
        runner: "ort" or "reference", for the gradient.
        primal_runner: The same for the differences; default: ``runner``.
        rtol: Relative tolerance; default by element type.
        atol: Absolute tolerance.
        step: Step of the differences; default by element type.
        seed: Of the random cotangents and directions.
        check: Also check the emitted model's validity.

    Returns:
        The outputs of the gradient model.
    """
    proto = model if isinstance(model, onnx.ModelProto) else node_model(model, feeds, **build)
    wrt = list(wrt) if wrt is not None else [name for name, a in feeds.items() if a.dtype.kind == "f"]
    if MODE.get() == "forward":
        return assert_jvp(
            proto, feeds, wrt=wrt, outputs=outputs, runner=runner, primal_runner=primal_runner, rtol=rtol, atol=atol,
            step=step, seed=seed, check=check,
        )  # fmt: skip
    emitted = cfad.vjp(proto, wrt=wrt, outputs=outputs).proto()
    if check:
        check_emitted(emitted)
    rng = np.random.default_rng(seed)
    primal = RUNNERS[primal_runner or runner]
    base = primal(proto, feeds)
    names = [i.name[: -len("_grad")] for i in emitted.graph.input if i.name not in feeds]
    cotangents = {name: np.asarray(rng.standard_normal(base[name].shape)).astype(base[name].dtype) for name in names}
    found = RUNNERS[runner](emitted, {**feeds, **{f"{n}_grad": c for n, c in cotangents.items()}})
    for name, expected in base.items():
        np.testing.assert_array_equal(found[name], expected, err_msg=f"primal output {name} changed")

    def value(point: Feeds) -> float:
        result = primal(proto, point)
        return float(sum(np.sum(c.astype(np.float64) * result[n].astype(np.float64)) for n, c in cotangents.items()))

    for name in wrt:
        gradient = found[f"{name}_grad"]
        assert gradient.shape == feeds[name].shape, f"{name}: gradient {gradient.shape}, input {feeds[name].shape}"
        assert gradient.dtype == feeds[name].dtype
        _compare(name, gradient, feeds, value, rng, rtol, atol, step)
    return found


def assert_jvp(
    model: onnx.ModelProto | onnx.NodeProto | Sequence[onnx.NodeProto],
    feeds: Feeds,
    *,
    wrt: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    runner: str = "ort",
    primal_runner: str | None = None,
    rtol: float | None = None,
    atol: float = 1e-6,
    step: float | None = None,
    seed: int = 0,
    check: bool = True,
    **build: Any,
) -> dict[str, Array]:
    """Asserts that the tangents that onnx_cfad emits equal central differences of the primal, element by element.

    Arguments and result are those of ``assert_vjp``. A random direction is compared for each input, then one for all.
    """
    proto = model if isinstance(model, onnx.ModelProto) else node_model(model, feeds, **build)
    wrt = list(wrt) if wrt is not None else [name for name, a in feeds.items() if a.dtype.kind == "f"]
    derived = cfad.jvp(proto, wrt=wrt, outputs=outputs)
    emitted, names = derived.proto(), derived.report
    if check:
        check_emitted(emitted)
    rng = np.random.default_rng(seed)
    primal = RUNNERS[primal_runner or runner]
    base = primal(proto, feeds)
    found: dict[str, Array] = {}
    for alone in (*(wrt if len(wrt) > 1 else ()), None):
        tangents = {
            name: np.asarray(rng.standard_normal(feeds[name].shape) * (alone in (None, name))).astype(feeds[name].dtype)
            for name in wrt
        }
        found = RUNNERS[runner](emitted, {**feeds, **{names.tangents[name]: t for name, t in tangents.items()}})
        for name, expected in base.items():
            np.testing.assert_array_equal(found[name], expected, err_msg=f"primal output {name} changed")
        size = step or min({"float64": 1e-6, "float32": 1e-2, "float16": 5e-2}[t.dtype.name] for t in tangents.values())
        moved = [{n: np.asarray(feeds[n] + s * t, t.dtype) for n, t in tangents.items()} for s in (size, -size)]
        ahead, behind = (primal(proto, {**feeds, **each}) for each in moved)
        for name, given in names.pushed.items():
            tangent = found[given]
            assert tangent.shape == base[name].shape, f"{name}: tangent {tangent.shape}, output {base[name].shape}"
            assert tangent.dtype == base[name].dtype
            numeric = (ahead[name].astype(np.float64) - behind[name].astype(np.float64)) / (2 * size)
            scale = float(np.max(np.abs(numeric), initial=0.0)) + float(np.max(np.abs(base[name]), initial=0.0))
            limit = atol + (TOLERANCE[feeds[wrt[0]].dtype] if rtol is None else rtol) * max(scale, 1.0)
            np.testing.assert_allclose(tangent, numeric, rtol=0, atol=limit, err_msg=f"{name} by {alone or wrt}")
    return found


def _compare(
    name: str,
    gradient: Array,
    feeds: Feeds,
    value: Any,
    rng: np.random.Generator,
    rtol: float | None,
    atol: float,
    step: float | None,
) -> None:
    x = feeds[name]
    rtol = TOLERANCE[x.dtype] if rtol is None else rtol
    step = step or {"float64": 1e-6, "float32": 1e-2, "float16": 5e-2}[x.dtype.name]
    directions = [np.asarray(rng.standard_normal(x.shape)) for _ in range(2)]
    if 0 < x.size <= 12:
        directions += [np.eye(x.size)[k].reshape(x.shape) for k in range(x.size)]
    for direction in directions:
        ahead, behind = x + step * direction, x - step * direction
        ahead, behind = np.asarray(ahead, x.dtype), np.asarray(behind, x.dtype)
        numeric = (value({**feeds, name: ahead}) - value({**feeds, name: behind})) / (2 * step)
        exact = float(np.sum(gradient.astype(np.float64) * direction))
        scale = max(abs(numeric), float(np.linalg.norm(gradient.astype(np.float64)) * np.linalg.norm(direction)))
        assert abs(numeric - exact) <= atol + rtol * scale, f"{name}: differences give {numeric}, the gradient {exact}"


FLOAT, DOUBLE, INT64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64
