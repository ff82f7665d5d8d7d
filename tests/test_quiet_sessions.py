"""ONNX Runtime has nothing to warn of when it loads a gradient, where it has nothing to say of the model itself."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest

import onnx_cfad as cfad
from tests.corpus import CORPUS
from tests.onnx_text import model
from tests.test_models import NAMES, ROOT

WARNED_OF = {
    "loop_condition_read_in_body": "a Cast of a constant, read in a loop together with the constant",
    "if_in_loop_weight_of_infinite_factor": "ONNX Runtime has no kernel of CastLike to fold the author's by",
}

TWO_BLOCKS = """g (float[4,6] x, float[6,6] a, float[6,6] b) => (float loss) <float zero = {0}> {
    m = ReduceMean <keepdims = 0> (x)
    p = Greater (m, zero)
    y = If (p) <
        then_branch = up () => (u) { s = MatMul (x, a)  u = Add (x, s) },
        else_branch = down () => (d) { t = MatMul (x, b)  d = Add (x, t) }
    >
    loss = ReduceSum <keepdims = 0> (y)
}"""

COUNTED = """g (float[4] x) => (float[4] y) {
    n = Constant <value_int = 5> ()
    unread = Constant <value_int = 5> ()
    go = Constant <value = bool {1}> ()
    y = Loop (n, go, x) <body = step (int64 i, bool c, float[4] a) => (bool d, float[4] b) {
        d = Identity (c)
        b = Sin (a)
    }>
}"""


def warnings(proto: onnx.ModelProto, capfd: pytest.CaptureFixture[str]) -> list[str]:
    capfd.readouterr()
    onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return [line for line in capfd.readouterr().err.splitlines() if "W:onnxruntime" in line]


@pytest.mark.parametrize("group", CORPUS)
def test_corpus(group: str, capfd: pytest.CaptureFixture[str]) -> None:
    for name, maker in CORPUS[group].items():
        source = maker("float").model
        if name not in WARNED_OF and not warnings(source, capfd):
            assert (name, warnings(cfad.vjp(source).proto(), capfd)) == (name, [])


@pytest.mark.parametrize("name", NAMES["own"])
def test_exports(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    source = onnx.load(ROOT / "models" / f"{name}.onnx")
    assert len(warnings(cfad.vjp(source).proto(), capfd)) <= len(warnings(source, capfd))


def test_seed_of_all_branches_expanded_for_some_of_their_nodes(capfd: pytest.CaptureFixture[str]) -> None:
    """A branch that reads both the expanded number and the number itself would be warned of."""
    gradient = cfad.grad(model(TWO_BLOCKS), loss="loss")
    assert warnings(gradient.proto(), capfd) == []


def test_constant_that_the_gradient_reads_no_more(capfd: pytest.CaptureFixture[str]) -> None:
    """As exporters write trip counts: a Scan needs none. What the author left unread stays, and is warned of."""
    proto = cfad.vjp(model(COUNTED)).proto()
    assert [node.output[0] for node in proto.graph.node if node.op_type == "Constant"] == ["unread"]
    assert all("'unread'" in line for line in warnings(proto, capfd))
