"""Each solver alone, on random systems, against NumPy's dense solution."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from onnx_cfad.adjoint.expr import Builder, Expr, op
from onnx_cfad.names import Namer
from onnx_cfad.solvers import bicgstab
from onnx_cfad.solvers.choice import FIRST, SOLVERS, patience, solve
from onnx_cfad.solvers.least_squares import least_squares
from onnx_cfad.solvers.neumann import Patience
from onnx_cfad.solvers.system import System

Array = np.ndarray[Any, Any]

BATCH, SIZE = 3, 12
TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 5e-3}


def run(build: Any, feeds: dict[str, Array]) -> list[Array]:
    """What ``build`` records from expressions of the feeds, run in ONNX Runtime."""
    builder = Builder(Namer(set()), 21)
    inputs = [
        ir.Value(name=k, type=ir.TensorType(ir.DataType.from_numpy(v.dtype)), shape=ir.Shape(v.shape))
        for k, v in feeds.items()
    ]
    outputs: list[Expr] = build(builder, *map(builder.expr, inputs))
    graph = builder.graph(inputs, outputs, "test")
    model = ir.Model(graph, ir_version=10)
    model.graph.opset_imports[""] = 21
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(x) for x in session.run(None, feeds)]


def matrix(radius: float, *, symmetric: bool = False, seed: int = 0) -> Array:
    """A random normal matrix of a spectral radius; its eigenvalues come in complex pairs unless it is symmetric."""
    generator = np.random.default_rng(seed)
    q = np.linalg.qr(generator.standard_normal((SIZE, SIZE)))[0]
    sizes = radius * np.linspace(1, 0.1, SIZE // 2)
    turns = np.zeros(SIZE // 2) if symmetric else generator.uniform(0.2, 2.9, SIZE // 2)
    blocks = np.zeros((SIZE, SIZE))
    for k, (size, turn) in enumerate(zip(sizes, turns, strict=True)):
        c, s = size * np.cos(turn), size * np.sin(turn)
        blocks[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] = [[c, -s], [s, c]]
    return q @ blocks @ q.T


def solved(
    solver: str, a: Array, b: Array, *, going: bool = True, tol: float = 0.0, most: int = 0
) -> tuple[Array, bool, int, float, float]:
    """u = b + u A' for each row: the solution, whether it is one, iterations, error, contraction."""

    def build(builder: Builder, matrix_: Expr, right: Expr) -> list[Expr]:
        def apply(inner: Builder, us: list[Expr]) -> list[Expr]:
            return [op.MatMul(us[0], inner.expr(matrix_.value))]

        found = solve(solver, System.of(apply, [right], tol), builder.constant(going), most)
        rate = found.contraction if found.contraction is not None else found.error
        return [*found.values, found.solved, found.iterations, found.error, rate]

    u, fine, iterations, error, rate = run(build, {"a": np.ascontiguousarray(a.T), "b": b})
    return u, bool(fine), int(iterations), float(error), float(rate)


def expected(a: Array, b: Array) -> Array:
    return np.linalg.solve(np.eye(SIZE) - a.astype(np.float64), b.astype(np.float64).T).T


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("radius", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("solver", SOLVERS)
def test_solution_is_that_of_numpy(solver: str, radius: float, dtype: str) -> None:
    a = matrix(radius).astype(dtype)
    b = np.random.default_rng(1).standard_normal((BATCH, SIZE)).astype(dtype)
    u, fine, _, _, _ = solved(solver, a, b)
    assert fine
    assert u.dtype == b.dtype
    wanted = expected(a, b)
    error = np.linalg.norm(u - wanted) / np.linalg.norm(wanted)
    assert error <= TOLERANCE[dtype] / (1 - radius), error


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_what_is_called_solved_is(solver: str, dtype: str) -> None:
    """Far from normal, a solver may fail, but it says so."""
    generator = np.random.default_rng(5)
    claims = 0
    for radius in (0.5, 0.9, 0.97):
        a = generator.standard_normal((SIZE, SIZE))
        a = (a * (radius / np.abs(np.linalg.eigvals(a)).max())).astype(dtype)
        b = generator.standard_normal((BATCH, SIZE)).astype(dtype)
        u, fine, _, _, _ = solved(solver, a, b)
        wide = u.astype(np.float64)
        residual = np.linalg.norm(b - wide + wide @ a.T.astype(np.float64)) / np.linalg.norm(wide)
        claims += fine
        assert not fine or residual <= (1e-5 if dtype == "float32" else 1e-11)
    assert claims >= 2


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("solver", SOLVERS)
def test_scale_of_the_right_side_plays_no_part(solver: str, scale: float) -> None:
    a = matrix(0.5).astype(np.float32)
    b = np.random.default_rng(1).standard_normal((BATCH, SIZE)).astype(np.float32)
    u, fine, _, _, _ = solved(solver, a, (b * np.float32(scale)))
    assert fine
    np.testing.assert_allclose(u / np.float32(scale), expected(a, b), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("solver", SOLVERS)
def test_right_side_of_zeros(solver: str) -> None:
    u, fine, _, _, _ = solved(solver, matrix(0.5), np.zeros((BATCH, SIZE)))
    assert fine
    assert not u.any()


@pytest.mark.parametrize("solver", SOLVERS)
def test_stops_at_the_rounding_floor(solver: str) -> None:
    """A tolerance out of reach ends the Krylov solvers when nothing improves, and is no solution."""
    a = matrix(0.99).astype(np.float32)
    b = np.random.default_rng(1).standard_normal((BATCH, SIZE)).astype(np.float32)
    _, fine, iterations, _, _ = solved(solver, a, b, tol=1e-30)
    assert iterations < 1000 if solver not in ("neumann", "auto") else iterations < 20_000
    assert not fine or solver in ("neumann", "auto")  # the terms of the series shrink without end


@pytest.mark.parametrize("solver", SOLVERS)
def test_what_does_not_contract_is_told(solver: str) -> None:
    a = matrix(1.5)
    b = np.random.default_rng(1).standard_normal((BATCH, SIZE))
    _, fine, _, _, rate = solved(solver, a, b)
    assert not fine or rate >= 1
    assert rate >= 1 or solver in ("neumann", "auto")


@pytest.mark.parametrize("solver", SOLVERS)
def test_not_a_number_is_not_solved(solver: str) -> None:
    b = np.ones((BATCH, SIZE))
    b[0, 0] = np.nan
    assert not solved(solver, matrix(0.5), b)[1]


@pytest.mark.parametrize("solver", SOLVERS)
def test_not_going_is_not_solved(solver: str) -> None:
    assert not solved(solver, matrix(0.5), np.ones((BATCH, SIZE)), going=False)[1]


@pytest.mark.parametrize("solver", ["anderson", "gmres", "bicgstab"])
def test_takes_fewer_products_than_the_series(solver: str) -> None:
    a, b = matrix(0.99, symmetric=True), np.random.default_rng(1).standard_normal((BATCH, SIZE))
    assert solved(solver, a, b)[2] < solved("neumann", a, b)[2] / 3


def test_contraction_is_estimated() -> None:
    b = np.random.default_rng(1).standard_normal((BATCH, SIZE))
    for radius in (0.5, 0.9, 1.2):
        assert abs(solved("gmres", matrix(radius, symmetric=True), b)[4] - radius) < 0.05 * radius
    assert abs(solved("neumann", matrix(0.9, symmetric=True), b)[4] - 0.9) < 0.05


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_automatic_choice_goes_on_where_contraction_is_slow(dtype: str) -> None:
    """With BiCGStab, after 32 terms."""
    a, b = matrix(0.999, symmetric=True), np.random.default_rng(1).standard_normal((BATCH, SIZE))
    a, b = a.astype(dtype), b.astype(dtype)
    assert not solved("neumann", a, b)[1]
    u, fine, iterations, _, _ = solved("auto", a, b)
    assert fine
    assert FIRST < iterations < 80
    np.testing.assert_allclose(u, expected(a, b), rtol=1e-8 if dtype == "float64" else 2e-3, atol=1e-8)


def test_automatic_choice_sums_on_where_contraction_is_fast() -> None:
    a, b = matrix(0.7, symmetric=True), np.random.default_rng(1).standard_normal((BATCH, SIZE))
    assert solved("auto", a, b)[2] == solved("neumann", a, b)[2] > FIRST


def test_automatic_choice_goes_on_where_bicgstab_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the series from its beginning."""
    monkeypatch.setattr(bicgstab, "MAX_ITERATIONS", 2)
    a, b = matrix(0.95, symmetric=True), np.random.default_rng(1).standard_normal((BATCH, SIZE))
    u, fine, iterations, _, _ = solved("auto", a, b)
    assert fine
    assert FIRST + 3 + 400 < iterations < 1000
    np.testing.assert_allclose(u, expected(a, b), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("dtype", "elements", "terms"),
    [("FLOAT", 256, 128), ("FLOAT", 4096, 64), ("FLOAT", None, 64), ("DOUBLE", 1023, 128), ("DOUBLE", 1024, 48)],
)
def test_patience_depends_on_the_size_of_the_state(dtype: str, elements: int | None, terms: int) -> None:
    assert patience(ir.DataType[dtype], elements) == Patience(FIRST, terms)


def test_coupled_unknowns_of_different_shapes() -> None:
    generator = np.random.default_rng(2)
    a, c = 0.2 * generator.standard_normal((4, 6)), 0.2 * generator.standard_normal((6, 4))
    b, d = generator.standard_normal(6), generator.standard_normal((2, 2))

    def build(solver: str, builder: Builder, left: Expr, right: Expr, one: Expr, other: Expr) -> list[Expr]:
        def apply(inner: Builder, us: list[Expr]) -> list[Expr]:
            v = us[1].reshape([4])
            return [op.MatMul(inner.expr(right.value), v), op.MatMul(inner.expr(left.value), us[0]).reshape([2, 2])]

        return solve(solver, System.of(apply, [one, other]), builder.constant(True)).values

    whole = np.block([[np.zeros((6, 6)), c], [a, np.zeros((4, 4))]])
    wanted = np.linalg.solve(np.eye(10) - whole, np.concatenate([b, d.ravel()]))
    for solver in SOLVERS:
        u, v = run(lambda *x, s=solver: build(s, *x), {"a": a, "c": c, "b": b, "d": d})
        np.testing.assert_allclose(np.concatenate([u, v.ravel()]), wanted, rtol=1e-9, atol=1e-9, err_msg=solver)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_least_squares(dtype: str) -> None:
    generator = np.random.default_rng(3)
    a, b = generator.standard_normal((7, 4)).astype(dtype), generator.standard_normal(7).astype(dtype)
    (y,) = run(lambda _, m, r: [least_squares(m, r, 7, 4)], {"a": a, "b": b})
    np.testing.assert_allclose(y, np.linalg.lstsq(a, b)[0], rtol=1e-9 if dtype == "float64" else 1e-3, atol=1e-5)


def test_least_squares_of_dependent_columns() -> None:
    generator = np.random.default_rng(3)
    a, b = generator.standard_normal((7, 4)), generator.standard_normal(7)
    a[:, 2] = 0
    (y,) = run(lambda _, m, r: [least_squares(m, r, 7, 4)], {"a": a, "b": b})
    np.testing.assert_allclose(a @ y, a @ np.linalg.lstsq(a, b)[0], rtol=1e-9, atol=1e-9)
