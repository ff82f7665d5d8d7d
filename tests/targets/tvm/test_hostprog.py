"""The interpreter of host programs by itself: its bodies are Python functions here."""

from __future__ import annotations

import ast
import json
import pathlib
import subprocess
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import onnx_cfad
from onnx_cfad.targets.tvm.hostprog import (
    Block,
    Branch,
    Call,
    CarryStep,
    HostProgram,
    HostProgramError,
    ListStep,
    Machine,
    Repeat,
    SliceStep,
    StackStep,
    run,
)

Values = Sequence[Any]


def add(values: Values) -> Values:
    return [values[0] + values[1]]


def double(values: Values) -> Values:
    return [2 * values[0]]


def sum_of_rows(**fields: Any) -> HostProgram:
    """Adds the rows of xs to x0 and stacks the sums along axis 0."""
    loop = Repeat(
        "main/loop",
        Block((Call("add", ("x", "row"), ("next",)),), ()),
        carries=(CarryStep("x0", "x", "next", "last"),),
        slices=(SliceStep("xs", "row", fields.pop("axis_in", 0), fields.pop("reverse_in", False)),),
        stacks=(
            StackStep("next", "sums", fields.pop("axis_out", 0), fields.pop("reverse_out", False), "float32", (2,)),
        ),
        **fields,
    )
    return HostProgram(("x0", "xs"), ("last", "all"), Block((loop,), ("last", "sums")))


XS = np.arange(6, dtype=np.float32).reshape(3, 2)
SUMS = np.cumsum(XS, axis=0)
ZERO = np.zeros(2, dtype=np.float32)


def test_scan_carries_slices_and_stacks() -> None:
    found = run(sum_of_rows(), {"add": add}, {"x0": ZERO, "xs": XS})
    np.testing.assert_array_equal(found["last"], SUMS[-1])
    np.testing.assert_array_equal(found["all"], SUMS)


def test_scan_along_other_axes_and_backwards() -> None:
    program = sum_of_rows(axis_in=1, reverse_in=True, axis_out=-1, reverse_out=True)
    found = run(program, {"add": add}, {"x0": ZERO, "xs": np.ascontiguousarray(XS[::-1].T)})
    np.testing.assert_array_equal(found["last"], SUMS[-1])
    np.testing.assert_array_equal(found["all"], SUMS[::-1].T)


def test_scan_of_no_rows_gives_the_stated_row() -> None:
    found = run(sum_of_rows(axis_out=1), {"add": add}, {"x0": ZERO + 1, "xs": XS[:0]})
    np.testing.assert_array_equal(found["last"], ZERO + 1)
    assert found["all"].shape == (2, 0)
    assert found["all"].dtype == np.float32


def counting(limit: str, start: str = "", proceed: str = "") -> HostProgram:
    loop = Repeat(
        "main/loop",
        Block((Call("body", ("x", "i"), ("next", "again")),), ()),
        carries=(CarryStep("x0", "x", "next", "last"),),
        stacks=(StackStep("next", "all", 0, False, "int64", ()),),
        limit=limit, start=start, index="i", proceed=proceed,
    )  # fmt: skip
    return HostProgram(("x0", "n", "go"), ("last", "all"), Block((loop,), ("last", "all")))


def count(values: Values) -> Values:
    return [values[0] + values[1], np.asarray([values[1] < 39])]  # a condition of shape [1]


@pytest.mark.parametrize(
    ("program", "n", "go", "trips"),
    [
        (counting("n"), 5, True, 5),
        (counting("n", "go"), 5, False, 0),
        (counting("n", "go", "again"), 5, True, 5),
        (counting("n", "go", "again"), 2**63 - 1, True, 40),
        (counting("", "", "again"), 0, True, 40),
        (counting("n", "go", "again"), 1000, True, 40),
        (counting("n"), -3, True, 0),
    ],
)
def test_loop_ends_at_its_limit_or_by_its_condition(program: HostProgram, n: int, go: bool, trips: int) -> None:
    feeds = {"x0": np.asarray(0), "n": np.asarray([n]), "go": np.asarray(go)}
    found = run(program, {"body": count}, feeds)
    assert found["last"] == sum(range(trips))
    np.testing.assert_array_equal(found["all"], np.cumsum(np.arange(trips)))


def test_carries_swap() -> None:
    swap = Repeat(
        "main/loop", Block((), ()), carries=(CarryStep("p", "a", "b", "x"), CarryStep("q", "b", "a", "y")), limit="n"
    )
    program = HostProgram(("p", "q"), ("x", "y"), Block((swap,), ("x", "y")), {"n": np.asarray(3)})
    assert run(program, {}, {"p": 1, "q": 2}) == {"x": 2, "y": 1}


def test_only_the_taken_branch_runs() -> None:
    branch = Branch("main/if", "c", Block((Call("double", ("x",), ("a",)),), ("a",)), Block((), ("x",)), ("y",))
    program = HostProgram(("c", "x"), ("y",), Block((branch,), ("y",)))

    def refuse(_: Values) -> Values:
        raise AssertionError

    assert run(program, {"double": double}, {"c": np.asarray(True), "x": 3})["y"] == 6
    assert run(program, {"double": refuse}, {"c": np.asarray(False), "x": 3})["y"] == 3


def test_rows_of_different_shapes_are_an_error() -> None:
    program = counting("n")
    with pytest.raises(HostProgramError, match=r"'all': iteration 1 gives a row of shape \[2\], those before .* \[\]"):
        run(
            program,
            {"body": lambda v: [np.zeros(int(v[1]) + 1) if v[1] else np.asarray(0.0), None]},
            {"x0": np.asarray(0), "n": np.asarray(3), "go": np.asarray(True)},
        )


def test_missing_input_is_named() -> None:
    with pytest.raises(HostProgramError, match="no value is given for the input 'xs'"):
        run(sum_of_rows(), {"add": add}, {"x0": ZERO})


def test_values_are_dropped_after_their_last_reader() -> None:
    alive: list[weakref.ref[np.ndarray[Any, Any]]] = []
    most = 0

    def body(values: Values) -> Values:
        nonlocal most
        made = values[0] + 1
        alive.append(weakref.ref(made))
        most = max(most, sum(ref() is not None for ref in alive))
        return [made]

    steps = tuple(Call("body", (f"x{k}",), (f"x{k + 1}",)) for k in range(10))
    loop = Repeat("main/loop", Block(steps, ()), carries=(CarryStep("start", "x0", "x10", "end"),), limit="n")
    program = HostProgram(("start",), ("end",), Block((loop,), ("end",)), {"n": np.asarray(3)})
    assert run(program, {"body": body}, {"start": np.zeros(4)})["end"][0] == 30
    assert most <= 3


def test_program_runs_again_and_again() -> None:
    machine = Machine(sum_of_rows(), {"add": add})
    first, second = (machine.run({"x0": ZERO, "xs": XS})["all"] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert first is not second


@pytest.mark.parametrize("program", [sum_of_rows(), counting("n", "go", "again")])
def test_program_is_plain_data(program: HostProgram) -> None:
    constants: dict[str, Any] = {
        "f": np.array([1.5, np.nan], dtype=np.float32),
        "s": np.array(["é", ""], dtype=object),
        "n": np.asarray(2**63 - 1),
    }
    program = HostProgram(program.inputs, program.outputs, program.main, constants)
    text = program.to_json()
    json.loads(text)
    again = HostProgram.from_json(text)
    assert again.to_json() == text
    assert (again.inputs, again.outputs, again.main) == (program.inputs, program.outputs, program.main)
    for name, array in constants.items():
        np.testing.assert_array_equal(again.constants[name], array)


def listed(operator: str, inputs: tuple[str, ...], **attributes: int) -> HostProgram:
    step = ListStep(operator, inputs, ("y",), attributes)
    return HostProgram(tuple(name for name in inputs if name), ("y",), Block((step,), ("y",)))


def test_positions_count_from_both_ends() -> None:
    held = [np.full(1, k) for k in range(3)]
    at = listed("SequenceAt", ("s", "i"))
    assert run(at, {}, {"s": held, "i": np.asarray(-1)})["y"] is held[2]
    with pytest.raises(HostProgramError, match="SequenceAt that gives 'y': position 3 in a sequence of 3"):
        run(at, {}, {"s": held, "i": np.asarray(3)})
    insert = listed("SequenceInsert", ("s", "x", "i"))
    assert run(insert, {}, {"s": [1, 2], "x": 9, "i": np.asarray(2)})["y"] == [1, 2, 9]
    assert run(insert, {}, {"s": [1, 2], "x": 9, "i": np.asarray(-1)})["y"] == [1, 9, 2]
    assert run(listed("SequenceErase", ("s",)), {}, {"s": [1, 2]})["y"] == [1]
    assert run(listed("SequenceErase", ("s", "i")), {}, {"s": [1, 2], "i": np.asarray(-2)})["y"] == [2]


def test_sequence_is_not_changed_by_an_insertion() -> None:
    held = [1]
    run(listed("SequenceInsert", ("s", "x")), {}, {"s": held, "x": 2})
    assert held == [1]


def test_split_pieces() -> None:
    whole = np.arange(10).reshape(5, 2)
    by_two = run(listed("SplitToSequence", ("x", "n")), {}, {"x": whole, "n": np.asarray(2)})["y"]
    assert [piece.shape for piece in by_two] == [(2, 2), (2, 2), (1, 2)]
    by_list = run(listed("SplitToSequence", ("x", "n")), {}, {"x": whole, "n": np.asarray([1, 4])})["y"]
    assert [piece.shape for piece in by_list] == [(1, 2), (4, 2)]
    single = run(listed("SplitToSequence", ("x",), axis=1, keepdims=0), {}, {"x": whole})["y"]
    assert [piece.shape for piece in single] == [(5,), (5,)]


def test_optional_is_its_content_or_none() -> None:
    assert run(listed("Optional", ()), {}, {})["y"] is None
    assert run(listed("Optional", ("x",)), {}, {"x": 3})["y"] == 3
    assert not run(listed("OptionalHasElement", ("x",)), {}, {"x": None})["y"]
    assert run(listed("OptionalHasElement", ("x",)), {}, {"x": 3})["y"]


def test_file_needs_numpy_alone() -> None:
    """A worker imports it in an environment without what this package depends on."""
    root, numpy = (pathlib.Path(module.__file__ or "").parent for module in (onnx_cfad, np))
    code = f"""
import sys, types
sys.path.append({str(numpy.parent)!r})
for name, folder in (("onnx_cfad", ""), ("onnx_cfad.targets", "targets"), ("onnx_cfad.targets.tvm", "targets/tvm")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [{str(root)!r} + "/" + folder]
import onnx_cfad.targets.tvm.hostprog
print(sorted({{name.split(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names)))
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True)
    assert set(ast.literal_eval(done.stdout)) <= {"numpy", "onnx_cfad", "__main__", "__mp_main__"}
