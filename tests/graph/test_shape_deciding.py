"""Which inputs decide shapes by their values."""

from __future__ import annotations

from onnx_cfad.graph.shape_deciding import shape_deciding_inputs
from onnx_cfad.graph.types import infer_types
from tests.graph.reading import parsed


def decided(text: str) -> tuple[int, ...]:
    model = parsed(text)
    infer_types(model)
    return shape_deciding_inputs(model.graph)


def test_bound_of_a_slice_decides_and_an_index_does_not() -> None:
    text = """(float[6] x, int64[1] end, int64 at) => (float[n] y, float z) {
        zero = Constant <value_ints = [0]> ()  more = Add (end, end)  y = Slice (x, zero, more, zero)
        z = Gather (x, at)
    }"""
    assert decided(text) == (1,)


def test_shape_of_a_tensor_is_no_value_of_it() -> None:
    text = """(int64[n] x, float[6] z) => (float[m] y) { s = Shape (x)  y = Expand (z, s) }"""
    assert decided(text) == ()


def test_axes_and_floats() -> None:
    text = """(float[2, 3] x, int64[k] axes, float w) => (float[a, b] y, int64[1, c] z) {
        y = ReduceSum (x, axes)  some = Cast <to = 9> (w)  z = NonZero (some)
    }"""
    assert decided(text) == (1,)
