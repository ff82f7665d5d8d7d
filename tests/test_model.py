"""Loading: every kind of source, and every kind of unusable source with one clear line."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import onnx_cfad
from onnx_cfad.errors import ModelError
from onnx_cfad.model import fingerprint, load, normalise, save
from tests.oracle import run_ort

SIMPLE = """
<ir_version: 8, opset_import: ["" : 11]>
simple (float[2,3] x) => (float[2] y)
<float[3] w = {1.0, 2.0, 3.0}>
{
    scaled = Mul (x, w)
    y = ReduceSum <axes = [1], keepdims = 0> (scaled)
}
"""
X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def simple() -> onnx.ModelProto:
    return onnx.parser.parse_model(SIMPLE)


def as_path(folder: pathlib.Path) -> pathlib.Path:
    path = folder / "simple.onnx"
    path.write_bytes(simple().SerializeToString())
    return path


SOURCES: dict[str, Callable[[pathlib.Path], Any]] = {
    "Path": as_path,
    "str": lambda folder: str(as_path(folder)),
    "ModelProto": lambda _: simple(),
    "ir.Model": lambda _: ir.from_proto(simple()),
    "program": lambda _: SimpleNamespace(model=ir.from_proto(simple())),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_model(kind: str, tmp_path: pathlib.Path) -> None:
    model = normalise(load(SOURCES[kind](tmp_path)))
    np.testing.assert_array_equal(run_ort(ir.to_proto(model), {"x": X})["y"], [14, 32])


def test_torch_program_is_a_source() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.onnx")

    class Twice(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.tanh(x) * 2

    program = _export_quietly(torch, Twice())
    model = normalise(load(program))
    (name,) = [value.name for value in model.graph.inputs]
    (result,) = run_ort(ir.to_proto(model), {name or "": X}).values()
    np.testing.assert_allclose(result, np.tanh(X) * 2, rtol=1e-6)


def _export_quietly(torch: Any, module: Any) -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.onnx.export(module, (torch.zeros(2, 3),), dynamo=True, verbose=False)


SHADOWED = """
<ir_version: 8, opset_import: ["" : 17]>
shadowed (float[2] x, bool c) => (float[2] y)
{
    y = If (c) <
        then_branch = then () => (float[2] t) <float[2] inner = {1.0, 2.0}> { t = Add (x, inner) },
        else_branch = else () => (float[2] e) <float[2] inner = {3.0, 4.0}> { e = Mul (x, inner) }
    >
}
"""


@pytest.mark.parametrize("kind", ["ModelProto", "ir.Model"])
def test_source_is_never_changed(kind: str) -> None:
    proto = onnx.parser.parse_model(SHADOWED)
    source = proto if kind == "ModelProto" else ir.from_proto(proto)
    before = _dump(proto), _dump(source)
    ir.to_proto(normalise(load(source)))
    assert (_dump(proto), _dump(source)) == before


def _dump(model: onnx.ModelProto | ir.Model) -> bytes:
    proto = model if isinstance(model, onnx.ModelProto) else ir.to_proto(model)
    return proto.SerializeToString(deterministic=True)


def test_initializer_inputs_of_old_ir_versions_are_no_inputs() -> None:
    model = simple()
    model.ir_version = 3
    model.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3]))
    assert [value.name for value in normalise(load(model)).graph.inputs] == ["x"]


def test_initializer_inputs_stay_inputs_with_a_default() -> None:
    model = simple()
    model.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3]))
    converted = ir.to_proto(normalise(load(model)))
    assert [value.name for value in converted.graph.input] == ["x", "w"]
    assert run_ort(converted, {"x": X})["y"].tolist() == [14, 32]
    assert run_ort(converted, {"x": X, "w": np.ones(3, np.float32)})["y"].tolist() == [6, 15]


def _write(content: bytes, name: str = "bad.onnx") -> Callable[[pathlib.Path], pathlib.Path]:
    def write(folder: pathlib.Path) -> pathlib.Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


def _without_graph() -> bytes:
    return onnx.ModelProto(ir_version=8, producer_name="nobody").SerializeToString()


BAD_FILES: dict[str, tuple[Callable[[pathlib.Path], Any], str]] = {
    "missing": (lambda folder: folder / "nothing.onnx", "there is no such file"),
    "directory": (lambda folder: folder, "is a directory, not an ONNX model"),
    "empty": (_write(b""), "the file is empty"),
    "truncated": (_write(simple().SerializeToString()[:-20]), "is not an ONNX model, or is cut short"),
    "truncated to a field": (_write(simple().SerializeToString()[:2]), "is not an ONNX model: it has no graph"),
    "text": (_write(b"import onnx\n# not a model\n", "model.onnx"), "is not an ONNX model"),
    "ONNX text": (_write(SIMPLE.encode(), "model.onnxtxt"), "is not an ONNX model"),
    "JSON": (_write(b'{"irVersion": "8"}', "model.json"), "is not an ONNX model"),
    "no graph": (_write(_without_graph()), "is not an ONNX model: it has no graph"),
    "zeros": (_write(bytes(1000)), "is not an ONNX model"),
    "device": (lambda _: "/dev/zero", "is not a regular file"),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_bad_file_is_one_clear_line(what: str, tmp_path: pathlib.Path) -> None:
    make, message = BAD_FILES[what]
    path = make(tmp_path)
    with pytest.raises(ModelError) as caught:
        load(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_truncation_is_an_error_of_ours() -> None:
    content = simple().SerializeToString()
    for length in range(1, len(content)):
        try:
            proto = onnx.ModelProto.FromString(content[:length])
        except Exception:  # noqa: BLE001 - the bytes are not a protobuf message: `load` is tested with files
            continue
        with pytest.raises(ModelError):
            normalise(load(proto))


@pytest.mark.parametrize("source", [None, 3, b"bytes", SimpleNamespace(model="no model")])
def test_what_is_no_source_is_refused(source: Any) -> None:
    with pytest.raises(ModelError, match="is no model"):
        load(source)


def _scalar(name: str, kind: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, [])


def _deep(depth: int) -> onnx.ModelProto:
    """Loops inside loops: one subgraph a level, so that the model grows with the depth only."""
    model = onnx.ModelProto(ir_version=8)
    model.opset_import.append(helper.make_opsetid("", 18))
    graph = model.graph
    graph.input.extend([_scalar("x", onnx.TensorProto.FLOAT), _scalar("m", onnx.TensorProto.INT64)])
    for level in range(depth):
        graph.output.append(onnx.ValueInfoProto(name=f"y{level}"))
        node = graph.node.add(op_type="Loop", input=["m"], output=[f"y{level}"], name=f"loop{level}")
        graph = node.attribute.add(name="body", type=onnx.AttributeProto.GRAPH).g
        graph.input.extend([onnx.ValueInfoProto(name=f"i{level}"), onnx.ValueInfoProto(name=f"going{level}")])
        graph.node.add(op_type="Identity", input=[f"going{level}"], output=[f"going{level}.next"])
        graph.output.append(onnx.ValueInfoProto(name=f"going{level}.next"))
    graph.output.append(onnx.ValueInfoProto(name="last"))
    graph.node.add(op_type="Tanh", input=["x"], output=["last"])
    return model


@pytest.mark.parametrize("depth", [1, 10, 60])
def test_deep_nesting_is_fine(depth: int) -> None:
    model = normalise(load(load(_deep(depth))))
    assert len(list(model.graph.subgraphs())) == depth


@pytest.mark.parametrize("depth", [70, 300, 3000])
def test_too_deep_nesting_is_refused(depth: int) -> None:
    with pytest.raises(ModelError, match="nested"):
        load(_deep(depth))


def test_too_deep_file_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "deep.onnx"
    path.write_bytes(_deep(90).SerializeToString())
    with pytest.raises(ModelError, match="nested too deep"):
        load(path)


@pytest.mark.parametrize(
    "tensor",
    [
        onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[10**6, 10**6], raw_data=bytes(12)),
        onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[3], raw_data=bytes(11)),
        onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[-3], raw_data=bytes(12)),
        onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[4], float_data=[1, 2, 3]),
        onnx.TensorProto(name="w", data_type=onnx.TensorProto.INT64, dims=[10**9]),
    ],
    ids=["far too few bytes", "too few bytes", "negative", "too few elements", "no elements"],
)
def test_tensor_that_does_not_fill_its_shape_is_refused(tensor: onnx.TensorProto) -> None:
    model = simple()
    model.graph.initializer[0].CopyFrom(tensor)
    with pytest.raises(ModelError, match="tensor 'w': it holds .* its shape .* needs"):
        load(model)


@pytest.mark.parametrize(
    "array",
    [
        np.array([1, 2, 3], np.float16),
        np.array([True, False]),
        np.array([1, -2], np.int8),
        np.array([2**63], np.uint64),
        np.array([1j, 2], np.complex64),
        np.array([1j], np.complex128),
        np.zeros((0, 3), np.float32),
        np.array(["a", "bc"], object),
        np.array(3.5),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
@pytest.mark.parametrize("raw", [True, False])
def test_tensor_of_any_type_is_accepted(array: np.ndarray[Any, Any], raw: bool) -> None:
    model = simple()
    if raw or array.size == 0:
        tensor = numpy_helper.from_array(array, "more")
    else:
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = helper.make_tensor("more", kind, array.shape, array.ravel().tolist())
    model.graph.initializer.append(tensor)
    loaded = load(model).graph.initializers["more"].const_value
    assert loaded is not None
    expected = [text.encode() for text in array] if array.dtype == object else array.tolist()
    assert loaded.numpy().tolist() == expected


def test_damaged_bytes_are_an_error_or_a_model(tmp_path: pathlib.Path) -> None:
    """Whatever a byte becomes, nothing but our own error comes out."""
    content = onnx.parser.parse_model(SHADOWED).SerializeToString()
    random = np.random.default_rng(0)
    outcomes: set[bool] = set()
    for _ in range(500):
        damaged = bytearray(content)
        for position in random.integers(len(damaged), size=random.integers(1, 4)):
            damaged[position] = random.integers(256)
        (tmp_path / "m.onnx").write_bytes(damaged)
        try:
            model = normalise(load(tmp_path / "m.onnx"))
            fingerprint(model)
            save(model, tmp_path / "out.onnx")
            outcomes.add(True)
        except ModelError:
            outcomes.add(False)
    assert outcomes == {True, False}


CALLS: dict[str, Callable[[ir.Model], object]] = {
    "vjp": onnx_cfad.vjp,
    "grad": lambda model: onnx_cfad.grad(model, loss="y"),
    "plan": onnx_cfad.plan,
    "validate": onnx_cfad.validate,
}


@pytest.mark.parametrize("call", CALLS)
def test_an_ir_model_is_the_same_after_each_call(call: str) -> None:
    scalar = SHADOWED.replace("(float[2] y)", "(float y)").replace("y = If", "chosen = If")
    proto = onnx.parser.parse_model(scalar.replace("\n    >\n", "\n    >\n    y = ReduceSum <keepdims = 0> (chosen)\n"))
    source = ir.from_proto(proto)
    before = ir.to_proto(source).SerializeToString(deterministic=True)
    CALLS[call](source)
    assert ir.to_proto(source).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("what", ["metadata key", "documentation"])
def test_text_that_is_not_utf8_is_refused_before_anything_is_written(what: str, tmp_path: pathlib.Path) -> None:
    proto = simple()
    if what == "metadata key":
        proto.metadata_props.add(key="replaced", value="text")
    else:
        proto.graph.doc_string = "replaced"
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString().replace(b"replaced", b"repl\xff\xfeed"))
    with pytest.raises(ModelError, match="model: cannot be written: 'utf-8' codec"):
        onnx_cfad.vjp(path)


def test_a_name_that_is_too_long_for_a_file_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelError, match=r"x\.onnx: cannot be read: File name too long"):
        load(tmp_path / f"{'x' * 300}.onnx")
    with pytest.raises(ModelError, match=r"x\.onnx: cannot be written: File name too long"):
        save(load(simple()), tmp_path / f"{'x' * 300}.onnx")


def test_data_in_a_field_that_no_reader_looks_into_is_refused() -> None:
    proto = simple()
    tensor = proto.graph.initializer[0]
    tensor.int32_data.extend([1, 2, 3])
    tensor.ClearField("float_data")
    with pytest.raises(ModelError, match="tensor 'w': it holds data in another field than float_data"):
        load(proto)
