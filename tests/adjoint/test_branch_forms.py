"""All forms of a branch give the same gradient: residuals saved or recomputed, and masked where that is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_cfad as cfad
from onnx_cfad.adjoint.routed import RESIDUALS
from onnx_cfad.graph.maskable import why_not_masked
from onnx_cfad.graph.regions import branch_site, control_flow, is_branch
from onnx_cfad.model import load, normalise
from onnx_cfad.options import Options
from onnx_cfad.simplify import simplify_branches
from tests.adjoint.agreement import all_makers, run, seeds
from tests.corpus import Maker
from tests.oracle import assert_vjp

ROUTED = tuple(f"routed(residuals={kind})" for kind in RESIDUALS if kind != "auto")
FORMS = (*ROUTED, "masked")


def branches_of(model: onnx.ModelProto) -> dict[str, str | None]:
    """The paths of the Ifs, each with the reason why it cannot be masked."""
    found = normalise(load(model))
    simplify_branches(found, Options())
    sites = control_flow(found).sites()
    return {s.path: why_not_masked(branch_site(s.node)) for s in sites if is_branch(s.node)}


def with_if() -> list[Any]:
    return [
        pytest.param(maker, id=name)
        for name, maker in all_makers().items()
        if any(node.op_type == "If" for node in _nodes(maker().model.graph))
    ]


def _nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return [*graph.node, *(node for subgraph in inner for node in _nodes(subgraph))]


@pytest.mark.parametrize("maker", with_if())
def test_forms_agree_on_the_corpus(maker: Maker) -> None:
    example = maker()
    reasons = branches_of(example.model)
    feeds = {**example.feeds, **seeds(example)}
    found: list[dict[str, Any]] = []
    for form in ("routed(residuals=saved)", "routed(residuals=recomputed)", "masked"):
        sites = [f"{path}={form}" for path, reason in reasons.items() if form != "masked" or reason is None]
        emitted = cfad.vjp(example.model, wrt=list(example.wrt), outputs=example.outputs, sites=sites).proto()
        onnx.checker.check_model(emitted, full_check=True)
        found.append(run(emitted, feeds, "ORT_ENABLE_ALL"))
    for other in found[1:]:
        for name, value in found[0].items():
            np.testing.assert_allclose(other[name], value, rtol=1e-12, atol=1e-13, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("maker", with_if())
def test_forms_agree_in_second_order_and_with_forward_mode(maker: Maker) -> None:
    """<x_grad, t> is <y_grad, J t>, and the tangents of x_grad are the same in every form."""
    example = maker()
    wrt, reasons = list(example.wrt), branches_of(example.model)
    generator = np.random.default_rng(0)
    tangents = {f"{name}_tangent": generator.standard_normal(np.shape(example.feeds[name])) for name in wrt}
    feeds = {**example.feeds, **seeds(example)}
    pushed = cfad.jvp(example.model, wrt=wrt, outputs=example.outputs)
    forward = run(pushed.proto(), {**example.feeds, **tangents}, "ORT_ENABLE_ALL")
    along = sum(np.sum(feeds[f"{y}_grad"] * forward[t]) for y, t in pushed.report.pushed.items())
    found: list[dict[str, Any]] = []
    for form in ("routed(residuals=saved)", "routed(residuals=recomputed)", "masked"):
        sites = [f"{path}={form}" for path, reason in reasons.items() if form != "masked" or reason is None]
        first = cfad.vjp(example.model, wrt=wrt, outputs=example.outputs, sites=sites)
        second = cfad.jvp(first.model, wrt=wrt, outputs=list(first.report.gradients.values()))
        result = run(second.proto(), {**feeds, **tangents}, "ORT_ENABLE_ALL")
        back = sum(np.sum(result[g] * tangents[f"{x}_tangent"]) for x, g in first.report.gradients.items())
        np.testing.assert_allclose(back, along, rtol=1e-9, atol=1e-11)
        found.append({name: result[name] for name in second.report.pushed.values()})
    for other in found[1:]:
        for name, value in found[0].items():
            np.testing.assert_allclose(other[name], value, rtol=1e-10, atol=1e-12, err_msg=name)


DEPTH = 8


def nest(level: int = 0) -> str:
    """Ifs inside each other; every level reads what all levels around it made, and the inputs."""
    if level == DEPTH:
        return f"y{level} = Mul (s{level - 1}, s0)"
    around = f"s{level - 1}" if level else "x"
    return f"""y{level} = If (p{level}) <
        then_branch = t{level} () => (double[3] y{level + 1}) {{
            m{level} = Mul ({around}, w)  s{level} = Sin (m{level})  {nest(level + 1)} }},
        else_branch = e{level} () => (double[3] c{level}) {{
            n{level} = Add ({around}, x)  c{level} = Cos (n{level}) }}>"""


def deepest(first_false: int) -> tuple[onnx.ModelProto, dict[str, Any]]:
    predicates = ", ".join(f"bool p{level}" for level in range(DEPTH))
    text = f'<ir_version: 10, opset_import: ["": 21]> nest (double[3] x, double[3] w, {predicates}) => (double[3] y0)'
    feeds: dict[str, Any] = {f"p{level}": np.asarray(level != first_false) for level in range(DEPTH)}
    values = {"x": np.asarray([0.4, -0.3, 0.8]), "w": np.asarray([1.3, 0.9, -1.1])}
    return onnx.parser.parse_model(f"{text} {{ {nest()} }}"), {**values, **feeds}


@pytest.mark.parametrize("first_false", [0, 3, 7, DEPTH])
def test_eight_levels_in_all_forms(first_false: int) -> None:
    model, feeds = deepest(first_false)
    paths = list(branches_of(model))
    assert len(paths) == DEPTH
    seed = {"y0_grad": np.asarray([1.0, -2.0, 0.5])}
    if first_false in (0, DEPTH):
        assert_vjp(model, feeds, wrt=["x", "w"])
    found = [
        run(cfad.vjp(model, wrt=["x", "w"], sites=[f"{path}={form}" for path in paths]).proto(), {**feeds, **seed},
            "ORT_ENABLE_ALL")
        for form in FORMS
    ]  # fmt: skip
    alternating = [f"{path}={'masked' if k % 2 else 'routed(residuals=saved)'}" for k, path in enumerate(paths)]
    mixed = cfad.vjp(model, wrt=["x", "w"], sites=alternating).proto()
    found.append(run(mixed, {**feeds, **seed}, "ORT_ENABLE_ALL"))
    for other in found[1:]:
        for name, value in found[0].items():
            np.testing.assert_allclose(other[name], value, rtol=1e-13, atol=1e-15, err_msg=name)


LOOP = """<ir_version: 10, opset_import: ["": 21]>
loop (double[3] x, double[3] w, double[3] v, bool p, int64 trips) => (double[3] y)
<double zero = {0}, int64 three = {3}> {
    y = If (p) <
        then_branch = outer () => (double[3] a) {
            k = Sin (w)
            a = Loop (COUNT, , x) <body = body (int64 i, bool going, double[3] h) => (bool again, double[3] next) {
                again = Identity (going)
                total = ReduceSum <keepdims = 0> (h)
                q = Greater (total, zero)
                next = If (q) <
                    then_branch = l () => (double[3] c) { s = Sin (h)  t = Mul (s, k)  c = Sub (t, w) },
                    else_branch = r () => (double[3] d) { e = Exp (h)  f = Mul (e, k)  g = Tanh (f)  d = Add (g, v) }>
            }> },
        else_branch = other () => (double[3] b) { b = Mul (x, w) }>
}"""
FEEDS = {
    "x": np.asarray([0.4, -0.3, 0.8]), "w": np.asarray([1.3, 0.9, -1.1]), "v": np.asarray([0.2, 0.5, 0.1]),
    "p": np.asarray(True), "trips": np.asarray(6),
}  # fmt: skip


@pytest.mark.parametrize("count", ["trips", "three"])
@pytest.mark.parametrize("plan", ["taped", "checkpointed"])
def test_a_branch_in_a_loop_in_a_branch(count: str, plan: str) -> None:
    model = onnx.parser.parse_model(LOOP.replace("COUNT", count))
    reasons = branches_of(model)
    seed = {"y_grad": np.asarray([1.0, -2.0, 0.5])}
    found = []
    for form in FORMS:
        sites = [f"{path}={form}" for path, reason in reasons.items() if form != "masked" or reason is None]
        emitted = cfad.vjp(model, wrt=["x", "w", "v"], plan=plan, segment=2, sites=sites).proto()
        found.append(run(emitted, {**FEEDS, **seed}, "ORT_ENABLE_ALL"))
    for other in found[1:]:
        for name, value in found[0].items():
            np.testing.assert_allclose(other[name], value, rtol=1e-12, err_msg=name)
    assert_vjp(model, FEEDS, wrt=["x", "w", "v"])


@pytest.mark.parametrize("form", FORMS)
def test_a_branch_that_no_iteration_takes_leaves_exact_zeros(form: str) -> None:
    """v is read where the sum of the carry is not positive; with these inputs it always is."""
    model = onnx.parser.parse_model(LOOP.replace("COUNT", "three").replace("Sub (t, w)", "Add (t, x)"))
    feeds = {**FEEDS, "x": np.asarray([800.0, 900.0, 750.0]), "w": np.asarray([0.1, 0.2, 0.1])}
    path = next(path for path in branches_of(model) if path.endswith("body/if_0"))
    emitted = cfad.vjp(model, wrt=["x", "w", "v"], sites=[f"{path}={form}"]).proto()
    found = run(emitted, {**feeds, "y_grad": np.ones(3)}, "ORT_ENABLE_ALL")
    np.testing.assert_array_equal(found["v_grad"].view(np.int64), 0)
    assert np.isfinite(found["x_grad"]).all()
    assert np.abs(found["x_grad"]).max() > 0


def stacks(model: onnx.ModelProto) -> list[tuple[int, int]]:
    """Element type and elements of one slice of everything that the loop of the primal stacks."""
    loop = next(node for node in model.graph.node if node.op_type in ("Loop", "Scan"))
    body = loop.attribute[[a.name for a in loop.attribute].index("body")].g
    skipped = 2 if loop.op_type == "Loop" else 1  # the condition, and the carry
    found = [output.type.tensor_type for output in list(body.output)[skipped:]]
    return sorted((t.elem_type, int(np.prod([d.dim_value for d in t.shape.dim]))) for t in found)


UNEVEN = """<ir_version: 10, opset_import: ["": 21]>
uneven (double[4] x, double[4] w) => (double[4] y) <double zero = {0}, int64 trips = {50}> {
    y = Loop (trips, , x) <body = body (int64 i, bool going, double[4] h) => (bool again, double[4] next) {
        again = Identity (going)
        total = ReduceSum <keepdims = 0> (h)
        q = Greater (total, zero)
        next = If (q) <
            then_branch = l () => (double[4] c) { s = Sin (h)  t = Sin (s)  u = Sin (t)  c = Mul (u, w) },
            else_branch = r () => (double[4] d) { e = Exp (h)  f = Exp (e)  g = Tanh (f)  k = Sin (g)  d = Mul (k, w) }>
    }>
}"""


def test_a_tape_holds_one_byte_an_iteration_and_the_residuals_of_one_branch() -> None:
    """Recomputed: the carry and the mask. Saved: also as many values as the branch with more of them needs."""
    model = onnx.parser.parse_model(UNEVEN)
    path = next(iter(branches_of(model)))
    kinds = {form: stacks(cfad.vjp(model, sites=[f"{path}={form}"]).proto()) for form in ROUTED}
    real, mask = (onnx.TensorProto.DOUBLE, 4), (onnx.TensorProto.BOOL, 1)
    assert kinds["routed(residuals=recomputed)"] == sorted([real, mask])
    residuals = {form: kind.count(real) - 1 for form, kind in kinds.items()}
    assert all(kind.count(mask) == 1 for kind in kinds.values())
    assert residuals["routed(residuals=then_saved)"] == 3  # sin h, sin sin h, and the factor of w
    assert residuals["routed(residuals=else_saved)"] == 4
    assert residuals["routed(residuals=saved)"] == 4


INSIDE = """<ir_version: 10, opset_import: ["": 21]> inside (double[3] x, double[3] w, bool p) => (double[3] y) {
    y = If (p) <
        then_branch = l () => (double[3] a) { s = Sin (x)  r = Round (s)  t = Mul (r, w)  a = Add (t, s) },
        else_branch = r () => (double[3] b) { u = Mul (x, w)  b = Cos (u) }>
}"""


@pytest.mark.parametrize("form", FORMS)
def test_straight_through_inside_a_branch(form: str) -> None:
    model = onnx.parser.parse_model(INSIDE)
    x, w, seed = FEEDS["x"], FEEDS["w"], np.asarray([1.0, -2.0, 0.5])
    for estimators, expected in (((), np.cos(x)), (("Round",), np.cos(x) * (1 + w))):
        emitted = cfad.vjp(model, wrt=["x"], sites=[f"main/if_0={form}"], straight_through=estimators).proto()
        for p, value in ((True, expected), (False, -np.sin(x * w) * w)):
            found = run(emitted, {"x": x, "w": w, "p": np.asarray(p), "y_grad": seed}, "ORT_ENABLE_ALL")
            np.testing.assert_allclose(found["x_grad"], seed * value, rtol=1e-13)


@pytest.mark.parametrize("form", FORMS)
def test_stop_gradient_inside_a_branch(form: str) -> None:
    """The then-branch is cut at s, so that nothing passes to x there: exact zeros."""
    model = onnx.parser.parse_model(INSIDE)
    x, w, seed = FEEDS["x"], FEEDS["w"], np.asarray([1.0, -2.0, 0.5])
    emitted = cfad.vjp(model, wrt=["x", "w"], stop_gradient=["s"], sites=[f"main/if_0={form}"]).proto()
    found = run(emitted, {"x": x, "w": w, "p": np.asarray(True), "y_grad": seed}, "ORT_ENABLE_ALL")
    np.testing.assert_array_equal(found["x_grad"].view(np.int64), 0)
    np.testing.assert_allclose(found["w_grad"], seed * np.round(np.sin(x)), rtol=1e-13)
    found = run(emitted, {"x": x, "w": w, "p": np.asarray(False), "y_grad": seed}, "ORT_ENABLE_ALL")
    np.testing.assert_allclose(found["x_grad"], -seed * np.sin(x * w) * w, rtol=1e-13)
