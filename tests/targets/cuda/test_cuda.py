"""CUDA: what the kernels compute (emulated, since no test has a GPU), their launches, and what nvcc makes of them."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from typer.testing import CliRunner

import onnx_cfad as cfad
from onnx_cfad.cli import app
from onnx_cfad.errors import TargetError
from onnx_cfad.model import load
from onnx_cfad.targets.base import Options
from onnx_cfad.targets.cuda import nvcc
from onnx_cfad.targets.cuda.device import file_for
from onnx_cfad.targets.cuda.instructions import Decisions, decisions, decisions_in_machine_code
from onnx_cfad.targets.cuda.target import Cuda, KernelProgram
from onnx_cfad.targets.manifest import InputEntry, Manifest
from onnx_cfad.targets.tvm.environments import build_generator, generator_folder, interpreter
from onnx_cfad.targets.tvm.worker import Worker
from tests.corpus import CORPUS
from tests.execution import relative_error, run_in_onnxruntime
from tests.rewriters.test_expand_recurrent import HIDDEN, SEQUENCES, STEPS, recurrent
from tests.targets.cuda.emulation import Emulated
from tests.targets.tvm.host_corpus import corpus_case

with_nvcc = pytest.mark.skipif(nvcc.find() is None, reason="nvcc is not installed")
with_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

BRANCH = """
<ir_version: 9, opset_import: ["" : 18]>
branch (float[64] x, bool p) => (float[64] y)
{
    y = If (p) <
        then_branch = yes () => (float[64] a) { s = Mul (x, x)  a = Add (s, x) },
        else_branch = no () => (float[64] b) { t = Neg (x)  b = Mul (t, x) }>
}
"""


def lowered(model: onnx.ModelProto, feeds: dict[str, Any], folder: Path) -> KernelProgram:
    """A model compiled into a folder, without a look at a GPU."""
    folder.mkdir()
    target = Cuda()
    made = target.lower(load(model), folder, feeds, Options(), lambda _: None)
    manifest = Manifest(
        target="cuda",
        form=made.form,
        model="",
        stamp={"architectures": list(nvcc.ARCHITECTURES)},
        inputs=tuple(InputEntry(name, np.asarray(feed).dtype.name, np.shape(feed)) for name, feed in feeds.items()),
        outputs=tuple(value.name for value in model.graph.output),
        program=made.program,
        errors=None,
        files={},
        notes=made.notes,
        seconds=0.0,
    )
    return KernelProgram(folder, manifest)


CASES = (
    ("branch_nests", "if_in_loop", "taped"),
    ("loops", "loop_dynamic_trips", "taped"),
    ("scans", "scan_axes_and_directions", "checkpointed"),
    ("captures", "loop_captured_at_depth_three", "taped"),
    ("carries", "loop_boolean_carry", "primal"),
    ("sequences", "sequence_read_by_index", "taped"),
)


@with_compiler
@pytest.mark.relax
@pytest.mark.parametrize(("group", "name", "form"), CASES)
def test_kernels_compute_what_onnxruntime_does(
    group: str, name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvcc, "find", lambda: None)  # the emulation compiles the source itself
    case = corpus_case(CORPUS[group][name], form)
    assert case is not None
    assert_kernels_compute(case.model, case.feeds, tmp_path)


def assert_kernels_compute(model: onnx.ModelProto, feeds: dict[str, Any], folder: Path) -> KernelProgram:
    """Every body is kernels, and they give what ONNX Runtime does."""
    program = lowered(model, feeds, folder / "artifact")
    assert not [note for note in program.manifest.notes if "stays on the CPU" in note]
    (program.folder / "kernels.sm_80.cubin").touch()
    gpu = Emulated(folder)
    found = program.run_on(gpu, feeds)
    assert gpu.launched
    for output, value in run_in_onnxruntime(model, feeds).items():
        assert found[output].shape == value.shape
        if value.dtype.kind == "f":
            assert relative_error(found[output], value) < 1e-5
        else:
            np.testing.assert_array_equal(found[output], value)
    return program


def lstm_gradient() -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The gradient of an LSTM, which keeps the operator for the primal."""
    model, feeds = recurrent("LSTM", "forward", ("b",), ("y",))
    seed = np.random.default_rng(2).standard_normal((STEPS, 1, SEQUENCES, HIDDEN))
    gradient = cfad.vjp(model, wrt=["x", "w", "r"]).proto()
    assert "LSTM" in [node.op_type for node in gradient.graph.node]
    return gradient, {**feeds, "y_grad": seed.astype(np.float32)}


@with_compiler
@pytest.mark.relax
def test_lstm_and_an_operator_that_its_specification_defines_are_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvcc, "find", lambda: None)
    assert_kernels_compute(*lstm_gradient(), tmp_path)
    swish = onnx.parser.parse_model(
        '<ir_version: 11, opset_import: ["" : 24]> s (float[5] x) => (float[5] y) { y = Swish <alpha = 0.5> (x) }'
    )
    (tmp_path / "swish").mkdir()
    x = np.linspace(-2, 2, 5, dtype=np.float32)
    program = assert_kernels_compute(swish, {"x": x}, tmp_path / "swish")
    assert program.manifest.form.startswith("1 kernels for 1 of 1 bodies")


@with_nvcc
@pytest.mark.relax
def test_nvcc_compiles_the_kernels_of_an_lstm(tmp_path: Path) -> None:
    program = lowered(*lstm_gradient(), tmp_path / "artifact")
    assert not [note for note in program.manifest.notes if "stays on the CPU" in note]
    for architecture in nvcc.ARCHITECTURES:
        assert (program.folder / f"kernels.{architecture}.cubin").read_bytes().startswith(b"\x7fELF")
        assert program.manifest.program["decisions"][f"{architecture} ptx"]


@pytest.mark.relax
def test_a_branch_that_the_samples_do_not_take_has_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its branches return other shapes, so it is not predicated; those of the side not taken follow from the model."""
    monkeypatch.setattr(nvcc, "find", lambda: None)
    text = BRANCH.replace("=> (float[64] y)", "=> (float[n] y)").replace("(float[64] b)", "(float[128] b)")
    text = text.replace("b = Mul (t, x)", "b = Concat <axis = 0> (t, x)")
    feeds = {"x": np.ones(64, np.float32), "p": np.array(True)}
    program = lowered(onnx.parser.parse_model(text), feeds, tmp_path / "artifact")
    assert "0 of 1 branches are predicated" in program.manifest.notes
    bodies = json.loads((program.folder / "launches.json").read_text())["bodies"]
    assert [name for name in bodies if "/else" in name]


@pytest.mark.relax
def test_launches_fit_their_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "find", lambda: None)
    case = corpus_case(CORPUS["branch_nests"]["if_in_loop"], "taped")
    assert case is not None
    folders = [lowered(case.model, case.feeds, tmp_path / name).folder for name in ("first", "second")]
    texts = [(folder / "kernels.cu").read_text() for folder in folders]
    plans = [json.loads((folder / "launches.json").read_text()) for folder in folders]
    assert (texts[0], plans[0]) == (texts[1], plans[1])  # the same model, the same text
    bounds = {name: int(n) for n, name in re.findall(r"__launch_bounds__\((\d+)\) (\w+)\([^)]*\) \{", texts[0])}
    counts = {name: len(p.split(",")) for name, p in re.findall(r"(\w+_kernel)\(([^)]*)\) \{", texts[0])}
    launches = [launch for body in plans[0]["bodies"].values() for plan in body.values() for launch in plan["launches"]]
    assert {launch["kernel"] for launch in launches} == set(bounds)
    for launch in launches:
        assert np.prod(launch["block"]) == bounds[launch["kernel"]] <= 1024
        assert len(launch["arguments"]) == counts[launch["kernel"]]


@with_nvcc
@pytest.mark.relax
def test_a_predicated_branch_is_a_select(tmp_path: Path) -> None:
    feeds = {"x": np.ones(64, np.float32), "p": np.array(True)}
    program = lowered(onnx.parser.parse_model(BRANCH), feeds, tmp_path / "artifact")
    assert "1 of 1 branches are predicated" in program.manifest.notes
    for architecture in nvcc.ARCHITECTURES:
        ptx = (program.folder / f"kernels.{architecture}.ptx").read_text()
        counts = decisions(ptx)
        assert sum(c.selects for c in counts.values()) >= 1
        assert not branches_on_loaded_bytes(ptx)
        assert program.manifest.program["decisions"][f"{architecture} ptx"]


@with_nvcc
@pytest.mark.relay
def test_relay_writes_the_same_kernels_with_and_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(onnx.parser.parse_model(BRANCH), tmp_path / "model.onnx")
    arguments = {"model": str(tmp_path / "model.onnx"), "arch": "sm_80"}
    ways: list[str] = []
    texts: list[str] = []
    for path in (os.environ["PATH"], str(tmp_path)):
        with monkeypatch.context() as patch:
            patch.setenv("PATH", path)
            worker = Worker("relay", interpreter("relay"))
            answer, _ = worker.call("relay_cuda_source", {**arguments, "folder": str(tmp_path / str(len(ways)))})
            worker.close()
        ways.append(answer["by"])
        texts.append(answer["source"])
    assert ways == [*(["shim"] if shutil.which("g++") else ["ctypes"]), "ctypes"]
    assert texts[0] == texts[1]
    names = re.findall(r"(\w+)\([^)]*\) \{", texts[0])
    assert names == sorted(names)
    assert len(names) >= 2
    for architecture in nvcc.ARCHITECTURES:
        assert nvcc.compiled(texts[0], architecture, "cubin").startswith(b"\x7fELF")


@pytest.mark.relay
def test_generator_of_relay_is_built_with_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    by = build_generator(interpreter("relay"))
    assert by == ("shim" if shutil.which("g++") else "ctypes")
    assert len(list(generator_folder().glob("relay_shim_*.so"))) == (by == "shim")


def branches_on_loaded_bytes(ptx: str) -> list[str]:
    """The branches whose predicate follows, through integer and predicate instructions, from a byte in memory.

    A bool is a byte, and nothing else in these models is.
    """
    tainted: set[str] = set()
    found: list[str] = []
    for line in ptx.splitlines():
        words = re.findall(r"%\w+", line)
        if re.match(r"\s*ld\.global[\w.]*\.[su]8", line):
            tainted.add(words[0])
        elif re.match(r"\s*@!?(%p\d+)\s+bra", line):
            found += [line] if words[0] in tainted else []
        elif re.match(r"\s*(setp|and|or|xor|not|cvt|mov|shl|shr|bfe)\b", line) and tainted.intersection(words[1:]):
            tainted.add(words[0])
    return found


def test_a_branch_on_a_byte_is_seen() -> None:
    ptx = """
    ld.global.nc.u8 %rs1, [%rd2];
    setp.eq.s16 %p1, %rs1, 0;
    @%p1 bra $L__BB0_2;
    setp.gt.s32 %p2, %r1, 63;
    @%p2 bra $L__BB0_3;
    """
    assert [line.strip() for line in branches_on_loaded_bytes(ptx)] == ["@%p1 bra $L__BB0_2;"]


def test_decisions_are_counted_for_each_kernel() -> None:
    ptx = """
.visible .entry first(
)
{
	setp.gt.s32 	%p1, %r1, 63;
	@%p1 bra 	$L__BB0_2;
	selp.f32 	%f3, %f1, %f2, %p2;
	bra.uni $L__BB0_2;
}
.visible .entry second(
)
{
	@!%p4 bra 	$L__BB0_2;
}
"""
    assert decisions(ptx) == {"first": Decisions(1, 1, 1), "second": Decisions(branches=1)}


SELECT = """
extern "C" __global__ void chosen(float* y, float* x, bool* p) {
  float a = x[threadIdx.x] * 2, b = x[threadIdx.x] + 1;
  y[threadIdx.x] = p[0] ? a : b;
}
"""


@with_nvcc
@pytest.mark.skipif(shutil.which("cuobjdump") is None, reason="cuobjdump is not installed")
def test_a_select_is_no_branch_in_machine_code() -> None:
    for architecture in nvcc.ARCHITECTURES:
        counts = decisions_in_machine_code(nvcc.compiled(SELECT, architecture, "cubin"))
        assert counts is not None
        assert counts["chosen"].branches == 0
        assert counts["chosen"].comparisons >= 1


def test_a_device_gets_the_file_that_it_can_run() -> None:
    known = ("sm_80", "sm_90")
    files = {own: file_for(own, known) for own in ("80", "86", "89", "90", "100")}
    assert files == {
        "80": "kernels.sm_80.cubin",
        "86": "kernels.sm_80.cubin",
        "89": "kernels.sm_80.cubin",
        "90": "kernels.sm_90.cubin",
        "100": "kernels.sm_90.ptx",
    }
    with pytest.raises(TargetError, match="sm_75"):
        file_for("75", known)


@with_nvcc
def test_source_that_nvcc_refuses_is_one_line() -> None:
    with pytest.raises(TargetError, match="nvcc: .*error: ") as caught:
        nvcc.compiled("__global__ void k() { nothing; }", "sm_80", "cubin")
    assert "\n" not in str(caught.value)


@pytest.mark.relax
def test_command_compiles_and_says_that_nothing_was_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "find", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    onnx.save(onnx.parser.parse_model(BRANCH), tmp_path / "branch.onnx")
    model, artifact = str(tmp_path / "branch.onnx"), str(tmp_path / "branch.cuda")
    done = CliRunner().invoke(app, ["compile", model, "--target", "cuda", "-o", artifact])
    assert done.exit_code == 0, done.output
    assert "for sm_80, sm_90" in done.output
    if Cuda().why_not_run() is not None:
        assert "compiled, not run" in done.output


def test_without_a_gpu_a_run_says_so(tmp_path: Path) -> None:
    reason = Cuda().why_not_run()
    if reason is None:
        pytest.skip("there is a GPU")
    assert "CuPy is not installed" in reason or "no GPU" in reason
    manifest = Manifest("cuda", "", "", {}, (), (), {"stems": {}}, None, {}, (), 0.0)
    with pytest.raises(TargetError, match="CuPy is not installed|no GPU"):
        KernelProgram(tmp_path, manifest).run({})
