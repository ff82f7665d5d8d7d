"""The command that runs a host program in a worker, over bodies that its build of TVM compiles."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx_cfad.targets.tvm.bodies import Body
from onnx_cfad.targets.tvm.commands import Arguments, Arrays, Refused, Result, command
from onnx_cfad.targets.tvm.compiler import Array, Compiler, Version, version_of
from onnx_cfad.targets.tvm.hostprog import HostProgram, HostProgramError, Machine
from onnx_cfad.targets.tvm.signatures import signature_from


class _Loaded:
    """A program with its bodies."""

    def __init__(self, arguments: Arguments, compiler: Compiler) -> None:
        program = HostProgram.from_json(Path(arguments["program"]).read_text(encoding="utf-8"))
        folder, options = Path(arguments["bodies"]), arguments.get("options", {})
        names = dict.fromkeys(call.body for call in program.calls())
        stems, guarded = arguments["stems"], arguments.get("guarded", {})
        self.bodies = {
            name: Body(name, folder / stems[name], compiler, options, guarded.get(name, ())) for name in names
        }
        self.machine = Machine(program, self.bodies)

    def counts(self) -> dict[str, Any]:
        """What became of each body."""
        return {name: dataclasses.asdict(body.counts) for name, body in self.bodies.items()}

    def compiled(self) -> dict[str, int]:
        """How many libraries each body was compiled to."""
        return {name: body.counts.compiled for name, body in self.bodies.items()}


def offer_programs(compiler: Compiler) -> None:
    """Enters ``run_program`` into the table of commands."""
    loaded: dict[Version, _Loaded] = {}

    @command
    def compile_body(arguments: Arguments, arrays: Arrays) -> Result:  # noqa: ARG001
        """Compiles the body ``name``, whose model lies at ``place``, for ``signature``; how many seconds it took."""
        start = time.perf_counter()
        options, guarded = arguments.get("options", {}), arguments.get("guarded", ())
        body = Body(arguments["name"], Path(arguments["place"]), compiler, options, guarded)
        body.prepare(signature_from(arguments["signature"]))
        return {"seconds": time.perf_counter() - start}, {}

    @command
    def run_program(arguments: Arguments, arrays: Arrays) -> Result:
        """Runs the host program in the file ``program``, ``repeat`` times.

        The model of each of its bodies lies in the folder ``bodies``, in a file that ``stems`` has the stem of;
        ``guarded`` says of which inputs of a body the values count. Arrays are its inputs by name, ``NAME[0]``, ...
        for a list that ``lists`` gives the length of; results likewise.
        """
        key = version_of(arguments["program"])
        if key not in loaded:
            loaded[key] = _Loaded(arguments, compiler)
        before = loaded[key].compiled()
        feeds = joined(arrays, arguments.get("lists", {}))
        seconds: list[float] = []
        results: dict[str, Any] = {}
        try:
            for _ in range(int(arguments.get("repeat", 1))):
                start = time.perf_counter()
                results = loaded[key].machine.run(feeds)
                seconds.append(time.perf_counter() - start)
        except HostProgramError as error:
            raise Refused(str(error)) from error
        flat, lists = split(results)
        now = {name: n - before[name] for name, n in loaded[key].compiled().items() if n > before[name]}
        return {"seconds": seconds, "lists": lists, "bodies": loaded[key].counts(), "compiled_now": now}, flat


def split(values: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, int]]:
    """Values as arrays alone, the elements of a list under ``NAME[0]``, ...; and the lengths of the lists."""
    flat: dict[str, Array] = {}
    lists: dict[str, int] = {}
    for name, value in values.items():
        if isinstance(value, list):
            lists[name] = len(value)
            flat.update((f"{name}[{index}]", element) for index, element in enumerate(value))
        else:
            flat[name] = value
    return flat, lists


def joined(flat: Arrays, lists: Mapping[str, int]) -> dict[str, Any]:
    """The values that ``split`` made arrays of."""
    elements = {f"{name}[{index}]" for name, length in lists.items() for index in range(length)}
    values: dict[str, Any] = {name: array for name, array in flat.items() if name not in elements}
    values.update((name, [flat[f"{name}[{index}]"] for index in range(length)]) for name, length in lists.items())
    return values
