"""External data: it stays where it is, unread, and may only be in the folder of the model."""

from __future__ import annotations

import pathlib
import resource
import tracemalloc
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import external_data_helper

import onnx_cfad as cfad
from onnx_cfad.errors import ModelError
from onnx_cfad.model import fingerprint, load, normalise, save
from onnx_cfad.runtime import Session
from tests.oracle import run_ort

X = np.array([1, 2, 3], np.float32)
W = np.array([4, 5, 6], np.float32)
V = np.array([7, 8, 9], np.float32)

MODEL = """
<ir_version: 8, opset_import: ["" : 11]>
m (float[3] x, bool c) => (float y)
<float[3] w = {4.0, 5.0, 6.0}, float[3] tied = {4.0, 5.0, 6.0}>
{
    scaled = Mul (x, w)
    chosen = If (c) <
        then_branch = t () => (float[3] r) <float[3] v = {7.0, 8.0, 9.0}> { a = Add (scaled, v) r = Add (a, tied) },
        else_branch = e () => (float[3] n) { n = Neg (scaled) }
    >
    y = ReduceSum <keepdims = 0> (chosen)
}
"""
EXPECTED = float((X * W + V + W).sum())


def outside(tensor: onnx.TensorProto, location: str, offset: int, length: int | None = None) -> None:
    """Makes a tensor of a message refer to a file."""
    content = onnx.numpy_helper.to_array(tensor).tobytes()
    tensor.ClearField("float_data")
    tensor.raw_data = content
    external_data_helper.set_external_data(tensor, location, offset, length if length is not None else len(content))
    tensor.ClearField("raw_data")


def write_model(
    folder: pathlib.Path, location: str = "weights.bin", offset: int = 16, length: int | None = None
) -> pathlib.Path:
    """A model whose three tensors, one of them inside a branch, lie in ``location``; two share a region."""
    folder.mkdir(exist_ok=True)
    proto = onnx.parser.parse_model(MODEL)
    main, branch = proto.graph.initializer, proto.graph.node[1].attribute[0].g.initializer
    outside(main[0], location, offset, length)
    outside(main[1], location, 16)
    outside(branch[0], location, 28)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    if not pathlib.Path(location).is_absolute():
        data = folder / location
        data.parent.mkdir(exist_ok=True, parents=True)
        data.write_bytes(bytes(16) + W.tobytes() + V.tobytes())
    return path


def result(path: pathlib.Path) -> float:
    import onnxruntime as ort

    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return float(session.run(["y"], {"x": X, "c": np.array(True)})[0])  # type: ignore[arg-type]


def locations(path: pathlib.Path) -> list[tuple[str, int, int]]:
    """Location, offset and length of each external tensor in a file."""
    model = ir.load(path)
    tensors = [v.const_value for graph in model.graphs() for v in graph.initializers.values()]
    return [(str(t.location), t.offset or 0, t.length or 0) for t in tensors if isinstance(t, ir.ExternalTensor)]


@pytest.mark.parametrize("location", ["weights.bin", "inner/weights.bin", "./weights.bin"])
def test_same_folder_keeps_the_references(tmp_path: pathlib.Path, location: str) -> None:
    source = write_model(tmp_path, location)
    before = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    save(normalise(load(source)), tmp_path / "out.onnx", source=source)
    assert locations(tmp_path / "out.onnx") == [(location, 16, 12), (location, 16, 12), (location, 28, 12)]
    assert sorted(p for p in tmp_path.rglob("*") if p.is_file()) == sorted([*before, tmp_path / "out.onnx"])
    assert result(tmp_path / "out.onnx") == EXPECTED


def test_other_folder_gets_the_weights_once(tmp_path: pathlib.Path) -> None:
    source = write_model(tmp_path / "source")
    (tmp_path / "out").mkdir()
    model = normalise(load(source))
    save(model, tmp_path / "out" / "g.onnx")
    assert locations(tmp_path / "out" / "g.onnx") == [
        ("g.onnx.data", 0, 12),
        ("g.onnx.data", 0, 12),
        ("g.onnx.data", 64, 12),
    ]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["g.onnx", "g.onnx.data"]
    assert result(tmp_path / "out" / "g.onnx") == EXPECTED
    assert [v.const_value.location for v in model.graph.initializers.values()] == ["weights.bin"] * 2  # type: ignore[union-attr]


def test_model_in_the_current_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    save(normalise(load("model.onnx")), "out.onnx")
    assert {location for location, _, _ in locations(tmp_path / "out.onnx")} == {"weights.bin"}
    assert result(tmp_path / "out.onnx") == EXPECTED


def test_weights_of_the_source_are_never_overwritten(tmp_path: pathlib.Path) -> None:
    """The new weights would be called like a file that other tensors of the same model stay in."""
    source = write_model(tmp_path, "out.onnx.data")
    model = normalise(load(source))
    other = load(write_model(tmp_path / "other"))
    model.graph.initializers["tied"].const_value = other.graph.initializers["tied"].const_value
    save(model, tmp_path / "out.onnx", source=source)
    assert [location for location, _, _ in locations(tmp_path / "out.onnx")] == [
        "out.onnx.data",
        "out.onnx.1.data",
        "out.onnx.data",
    ]
    assert result(tmp_path / "out.onnx") == result(source) == EXPECTED


def test_constant_in_an_attribute_moves_too(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        m (float[3] x) => (float[3] y) { w = Constant <value = float[3] {4.0, 5.0, 6.0}> () y = Mul (x, w) }
    """)
    outside(proto.graph.node[0].attribute[0].t, "w.bin", 0)
    (tmp_path / "a" / "m.onnx").write_bytes(proto.SerializeToString())
    (tmp_path / "a" / "w.bin").write_bytes(W.tobytes())
    save(normalise(load(tmp_path / "a" / "m.onnx")), tmp_path / "b" / "m.onnx")
    moved = onnx.load(tmp_path / "b" / "m.onnx")
    np.testing.assert_array_equal(run_ort(moved, {"x": X})["y"], X * W)


BAD_LOCATIONS: dict[str, Callable[[pathlib.Path], str]] = {
    "parent": lambda _: "../secret.bin",
    "through a folder": lambda _: "inner/../../secret.bin",
    "absolute": lambda folder: str(folder.parent / "secret.bin"),
    "link": lambda _: "link.bin",
    "linked folder": lambda _: "linked/secret.bin",
    "none": lambda _: "",
}


@pytest.mark.parametrize("what", BAD_LOCATIONS)
def test_data_outside_of_the_folder_is_refused(what: str, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(100))
    (folder / "inner").mkdir()
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "linked").symlink_to(tmp_path)
    proto = onnx.parser.parse_model(MODEL)
    outside(proto.graph.initializer[0], BAD_LOCATIONS[what](folder), 0)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="tensor 'w': its external data '.*' lies outside the folder of the model"):
        load(folder / "model.onnx")


def test_missing_data_is_refused(tmp_path: pathlib.Path) -> None:
    path = write_model(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match="tensor 'w': its external data file 'weights.bin' is missing"):
        load(path)


@pytest.mark.parametrize(
    ("offset", "length", "message"),
    [
        (30, 12, "tensor 'w': bytes 30 to 42 of 'weights.bin' are asked for, which has 40"),
        (-4, 12, "(offset.*-4|bytes -4 to 8 of 'weights.bin')"),
        (16, 8, "tensor 'w': it has 8 bytes of external data, its shape needs 12"),
        (16, 1 << 40, "tensor 'w': it has 1099511627776 bytes of external data, its shape needs 12"),
    ],
)
def test_region_that_does_not_fit_is_refused(offset: int, length: int, message: str, tmp_path: pathlib.Path) -> None:
    path = write_model(tmp_path, offset=offset, length=length)
    with pytest.raises(ModelError, match=message):
        load(path)


def test_large_weights_are_never_read(tmp_path: pathlib.Path) -> None:
    """A gigabyte of weights (a file with a hole), loaded, converted, hashed and saved without memory for it."""
    size = 1 << 28
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 11]>
        m (float[1] x) => (float y) { s = Mul (x, w) y = ReduceSum <axes = [0], keepdims = 0> (s) }
    """)
    tensor = proto.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT, dims=[size])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(4 * size)
    tracemalloc.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = normalise(load(tmp_path / "m.onnx"))
    fingerprint(model)
    save(model, tmp_path / "out.onnx")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100e3  # kilobytes
    assert (tmp_path / "out.onnx").stat().st_size < 1000


def cached(folder: pathlib.Path) -> pathlib.Path:
    """The model as a cache of downloads keeps it: the model and its data are links into a folder of blobs."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "main"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    write_model(folder, "model.onnx_data")
    for name, blob in (("model.onnx", "0123"), ("model.onnx_data", "4567")):
        (folder / name).rename(blobs / blob)
        (snapshot / name).symlink_to(pathlib.Path("..", "..", "blobs", blob))
    return snapshot / "model.onnx"


def test_links_into_one_folder_of_blobs_are_followed(tmp_path: pathlib.Path) -> None:
    path = cached(tmp_path)
    loaded = load(path)
    np.testing.assert_array_equal(loaded.graph.initializers["w"].const_value, W)
    feeds = {"x": X, "c": np.asarray(True)}
    np.testing.assert_allclose(Session(path).run(feeds)["y"], EXPECTED)
    gradient = cfad.vjp(path)
    gradient.save(path.with_name("gradient.onnx"))
    # a plain file beside the links could not refer to them: it takes its own copy
    assert not path.with_name("gradient.onnx.data").is_symlink()
    written = Session(path.with_name("gradient.onnx")).run({**feeds, "y_grad": np.asarray(1, np.float32)})
    np.testing.assert_allclose(written["y"], EXPECTED)


@pytest.mark.parametrize("what", ["data", "data beside a linked model"])
def test_a_link_of_data_to_elsewhere_is_refused(what: str, tmp_path: pathlib.Path) -> None:
    path = cached(tmp_path)
    data = path.with_name("model.onnx_data")
    content = data.read_bytes()
    data.unlink()
    (tmp_path / "elsewhere").write_bytes(content)
    data.symlink_to(tmp_path / "elsewhere")
    if what == "data":
        whole = path.read_bytes()
        path.unlink()
        path.write_bytes(whole)
    with pytest.raises(ModelError, match=r"its external data 'model\.onnx_data' lies outside the folder of the model"):
        load(path)


@pytest.mark.parametrize("location", ["a\0b", "x" * 300])
def test_a_location_that_no_file_can_have_is_refused(location: str, tmp_path: pathlib.Path) -> None:
    proto = onnx.parser.parse_model(MODEL)
    outside(proto.graph.initializer[0], location, 0)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="tensor 'w': its external data .* cannot be looked up"):
        load(path)
