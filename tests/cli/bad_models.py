"""Files that are no model, or none that can be differentiated."""

from __future__ import annotations

from pathlib import Path

import onnx

from tests.cli.calls import saved
from tests.onnx_text import LOOP, model


def directory(folder: Path) -> Path:
    return folder


def text_file(folder: Path) -> Path:
    path = folder / "text.onnx"
    path.write_text("this is no model\n" * 20)
    return path


def truncated(folder: Path) -> Path:
    path = folder / "truncated.onnx"
    content = model(LOOP).SerializeToString()
    path.write_bytes(content[: len(content) * 2 // 3])
    return path


def absent(folder: Path) -> Path:
    return folder / "absent.onnx"


def empty(folder: Path) -> Path:
    path = folder / "empty.onnx"
    path.touch()
    return path


def integers(folder: Path) -> Path:
    return saved("g (int64[2] n) => (int64[2] m) { m = Add (n, n) }", folder / "integers.onnx")


def integer_inputs(folder: Path) -> Path:
    return saved("g (int64[2] n) => (float[2] y) { y = Cast <to = 1> (n) }", folder / "integer_inputs.onnx")


def unsupported(folder: Path) -> Path:
    proto = model("g (float[2] x) => (float[2] y) { y = Sin (x) }")
    proto.graph.node[0].op_type, proto.graph.node[0].domain, proto.graph.node[0].name = "Own", "own", "n"
    proto.opset_import.add(domain="own", version=1)
    onnx.save(proto, folder / "own.onnx")
    return folder / "own.onnx"


def unconverted(folder: Path) -> Path:
    proto = model("g (float[2] x) => (float[2] y) { y = Sin (x) }")
    proto.graph.node[0].op_type = "Erfc"
    onnx.save(proto, folder / "unconverted.onnx")
    return folder / "unconverted.onnx"


BAD_MODELS = [
    (directory, "is a directory"),
    (absent, "there is no such file"),
    (empty, "the file is empty"),
    (text_file, "is not an ONNX model"),
    (truncated, "is not an ONNX model"),
    (integers, "no floating-point output"),
    (integer_inputs, "no floating-point input"),
    (unsupported, "Own 'n': no VJP rule for own::Own"),
    (unconverted, "ONNX has no operator Erfc: the exporter left it as it was"),
]
