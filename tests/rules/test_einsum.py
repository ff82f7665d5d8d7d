"""Rules of rules/einsum.py and rules/determinant.py against central differences."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import onnx_cfad as cfad
from tests.oracle import DOUBLE, assert_vjp, node_model, run_reference
from tests.rules.forms import FORMS, Case, case, check, each_form
from tests.rules.second_order import assert_second_order
from tests.rules.single_precision import assert_same_gradient

RNG = np.random.default_rng(41)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape))


def einsum(equation: str, *shapes: tuple[int, ...], forms: tuple[str, ...] = FORMS) -> Case:
    needs_rank = "..." in equation and any(len(shape) > 1 for shape in shapes)
    name = equation.replace(" ", "")
    operands = {f"x{k}": normal(*shape) for k, shape in enumerate(shapes)}
    return case(name, "Einsum", operands, equation=equation, needs_rank=needs_rank, forms=forms)


# onnx infers the length 1 for a letter that is stretched where the first operand has it, and refuses 5.
UNDECLARED = ("symbolic", "unranked")
EQUATIONS = [
    einsum("ij,jk->ik", (2, 3), (3, 4)),
    einsum("ij,jk", (2, 3), (3, 4)),
    einsum("bij,bjk->bik", (5, 2, 3), (5, 3, 4)),
    einsum("bhid,bhjd->bhij", (2, 2, 3, 4), (2, 2, 5, 4)),
    einsum("nkc,nqkh->nqhc", (2, 3, 4), (2, 2, 3, 2)),
    einsum("ij->ji", (2, 3)),
    einsum("ba", (2, 3)),
    einsum("ij->", (2, 3)),
    einsum("ij->i", (2, 3)),
    einsum("ijk->k", (2, 3, 4)),
    einsum("i,i->", (3,), (3,)),
    einsum("i,j->ij", (3,), (4,)),
    einsum("i,j->ji", (3,), (4,)),
    einsum(",ij->ij", (), (2, 3)),
    einsum("ij,->ij", (2, 3), ()),
    einsum(",", (), ()),
    einsum("->", ()),
    einsum("ii->i", (3, 3)),
    einsum("ii", (3, 3)),
    einsum("ii->", (3, 3)),
    einsum("iji->j", (3, 2, 3)),
    einsum("iij,j->i", (3, 3, 2), (2,)),
    einsum("iii->i", (3, 3, 3)),
    einsum("iijj->ij", (2, 2, 3, 3)),
    einsum("ii,jj->ij", (3, 3), (2, 2)),
    einsum("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    einsum("i,i,i->i", (3,), (3,), (3,)),
    einsum("ijk,jl,kl->il", (2, 3, 4), (3, 2), (4, 2)),
    einsum("ij,jk->i", (2, 3), (3, 4)),
    einsum("ij,kl->jk", (2, 3), (4, 2)),
    einsum("...ij,...jk->...ik", (5, 2, 3), (5, 3, 4)),
    einsum("...ij,jk->...ik", (5, 2, 3), (3, 4)),
    einsum("...i->...", (2, 3, 4)),
    einsum("i...->...i", (2, 3, 4)),
    einsum("i...j->j...i", (2, 3, 4)),
    einsum("...ii->...i", (2, 3, 3)),
    einsum("...,...", (2, 3), (2, 3)),
    einsum("...ij", (5, 2, 3)),
    einsum("A b , b C -> A C", (2, 3), (3, 4)),
    einsum("Zy->yZ", (2, 3)),
    einsum("ij,jk->ik", (2, 1), (3, 4)),
    einsum("ij,jk->ik", (2, 3), (1, 4)),
    einsum("bij,bjk->bik", (1, 2, 3), (5, 3, 4), forms=UNDECLARED),
    einsum("bij,bjk->bik", (5, 2, 3), (1, 3, 4)),
    einsum("ij,i->i", (2, 3), (1,)),
    einsum("...i,...i->...", (1, 4, 3), (2, 1, 3)),
    einsum("ij,jk->ik", (0, 3), (3, 4)),
]


@each_form(EQUATIONS)
def test_equation(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize("case", [c for c in EQUATIONS if 0 not in c.floats["x0"].shape], ids=lambda case: case.name)
def test_single_precision(case: Case) -> None:
    wrt = list(case.floats)
    assert_same_gradient(case.node, case.floats, wrt=wrt, dtype=np.float32, runner="ort", dims="symbolic")


@pytest.mark.parametrize("case", EQUATIONS, ids=lambda case: case.name)
def test_second_order(case: Case) -> None:
    assert_second_order(case.node, case.floats, wrt=list(case.floats))


def test_ellipses_of_different_width() -> None:
    """The specification has them stretch each other; ONNX Runtime 1.32 refuses such a model."""
    feeds = {"a": normal(4, 2, 3), "b": normal(5, 4, 3, 2)}
    node = helper.make_node("Einsum", ["a", "b"], ["y"], equation="...ij,...jk->...ik")
    assert_vjp(node, feeds, runner="reference", check=False)
    model = node_model(node, feeds)
    found = run_reference(cfad.vjp(model, wrt=["a"]).proto(), {**feeds, "y_grad": np.ones((5, 4, 2, 2))})
    np.testing.assert_allclose(found["a_grad"], np.einsum("eajk->aj", feeds["b"])[:, None].repeat(2, 1))


def test_a_transposition_stays_one() -> None:
    emitted = cfad.vjp(node_model(EQUATIONS[5].node, EQUATIONS[5].floats), wrt=["x0"]).proto()
    assert [node.op_type for node in emitted.graph.node if node.op_type != "Identity"] == ["Einsum", "Transpose"]


SQUARES = [
    case(f"{'-'.join(map(str, shape))}", "Det", {"x": normal(*shape)}, needs_rank=True)
    for shape in ((1, 1), (2, 2), (3, 3), (4, 4), (5, 2, 2), (2, 3, 3, 3), (2, 1, 1))
]


@each_form(SQUARES, ("static", "unranked"))
def test_determinant(case: Case, form: str) -> None:
    check(case, form, runner="reference")


@pytest.mark.parametrize("case", [c for c in SQUARES if "1" not in c.name], ids=lambda case: case.name)
def test_determinant_of_unknown_size(case: Case) -> None:
    check(case, "symbolic", runner="reference")


@pytest.mark.parametrize("dims", ["static", "symbolic"])
@pytest.mark.parametrize("case", [c for c in SQUARES if "1" not in c.name], ids=lambda case: case.name)
def test_determinant_in_single_precision(case: Case, dims: str) -> None:
    assert_same_gradient(
        case.node, case.floats, wrt=["x"], dtype=np.float32, runner="reference", dims=dims, tolerance=1e-4
    )


@pytest.mark.parametrize("size", [2, 3, 4])
def test_determinant_of_singular_matrices(size: int) -> None:
    """Of rank n - 1 the gradient is the matrix of cofactors, which has rank 1; of rank n - 2 and less it is 0."""
    x = normal(size, size)
    x[0] = x[1]
    assert_vjp(helper.make_node("Det", ["x"], ["y"]), {"x": x}, runner="reference")
    low = np.zeros((size, size))
    low[0, 0] = size == 2
    model = node_model(helper.make_node("Det", ["x"], ["y"]), {"x": low}, outputs={"y": DOUBLE})
    found = run_reference(cfad.vjp(model, wrt=["x"]).proto(), {"x": low, "y_grad": np.asarray(1.0)})["x_grad"]
    np.testing.assert_array_equal(found, [[0, 0], [0, 1]] if size == 2 else np.zeros((size, size)))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_second_order_of_determinant(size: int) -> None:
    assert_second_order(helper.make_node("Det", ["x"], ["y"]), {"x": normal(size, size)}, wrt=["x"], runner="reference")


def test_a_large_determinant_is_refused() -> None:
    model = node_model(helper.make_node("Det", ["x"], ["y"]), {"x": normal(100, 100)})
    with pytest.raises(cfad.UnsupportedOp, match="100 x 100"):
        cfad.vjp(model, wrt=["x"])
