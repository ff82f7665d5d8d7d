"""The commands about targets: `compile`, and `targets list|install|check|clean`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_cfad.cli_options import AsJson, Model, Quiet
from onnx_cfad.command_errors import DOES_NOT_HOLD, reports_errors
from onnx_cfad.model_file import check_model_file

targets = typer.Typer(name="targets", help="What compiles and runs models besides ONNX Runtime.", no_args_is_help=True)

Kinds = Annotated[list[str] | None, typer.Argument(metavar="[relay|relax]...", help="Default: all.")]


@targets.command("list")
@reports_errors
def list_targets(
    context: typer.Context,  # noqa: ARG001 - read by the decorator
    *,
    as_json: AsJson = False,
) -> None:
    """Show which targets there are, and where they are installed."""
    from onnx_cfad.report.plain_data import to_json  # noqa: PLC0415 - heavy, as everything below
    from onnx_cfad.report.target_tables import inventory_table  # noqa: PLC0415
    from onnx_cfad.report.terminal import show  # noqa: PLC0415
    from onnx_cfad.targets.inventory import inventory  # noqa: PLC0415

    found = inventory()
    if as_json:
        typer.echo(to_json({}, targets=found))
    else:
        show(inventory_table(found))


@targets.command()
@reports_errors
def install(
    context: typer.Context,  # noqa: ARG001
    *,
    kinds: Annotated[list[str], typer.Argument(metavar="relay|relax...", show_default=False)],
    quiet: Quiet = False,
) -> None:
    """Install a build of TVM into the user's data folder, in an environment of its own, from pinned packages."""
    from onnx_cfad.report.terminal import working  # noqa: PLC0415
    from onnx_cfad.targets.tvm.environments import install as install_kind  # noqa: PLC0415

    for kind in kinds:
        with working(f"installing {kind}", quiet=quiet) as tell:
            folder = install_kind(kind, tell)
        if not quiet:
            typer.echo(f"installed: {folder}")


@targets.command()
@reports_errors
def check(
    context: typer.Context,  # noqa: ARG001
    *,
    kinds: Kinds = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compile and run a small model with each build of TVM that is installed; exit code 1 where one does not work."""
    from onnx_cfad.report.plain_data import to_json  # noqa: PLC0415
    from onnx_cfad.report.target_tables import trial_table  # noqa: PLC0415
    from onnx_cfad.report.terminal import show, working  # noqa: PLC0415
    from onnx_cfad.targets.trial import trials  # noqa: PLC0415

    with working("checking targets", quiet=quiet or as_json) as tell:
        found = trials(kinds, tell)
    if as_json:
        typer.echo(to_json({}, targets=found))
    elif not quiet:
        show(trial_table(found))
    if not all(trial.works for trial in found):
        raise typer.Exit(DOES_NOT_HOLD)


@targets.command()
@reports_errors
def clean(
    context: typer.Context,  # noqa: ARG001
    *,
    quiet: Quiet = False,
) -> None:
    """Remove every compiled model from the user's cache folder."""
    from onnx_cfad.sizes import format_bytes  # noqa: PLC0415
    from onnx_cfad.targets.compilation import artifact_cache  # noqa: PLC0415

    cache = artifact_cache()
    removed = cache.clean()
    if not quiet:
        typer.echo(f"removed: {format_bytes(removed)} from {cache.folder}")


@reports_errors
def compile_for_target(
    context: typer.Context,  # noqa: ARG001
    *,
    model: Model,
    target: Annotated[
        str, typer.Option("--target", metavar="llvm|cuda", help="What to compile for.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write.", show_default=False)
    ],
    build: Annotated[
        str | None,
        typer.Option("--with", metavar="relay|relax", help="The build of TVM; default: relay where it is installed."),
    ] = None,
    form: Annotated[
        str,
        typer.Option("--form", metavar="auto|whole|host", help="One program of the target, or bodies run by a host."),
    ] = "auto",
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs",
            metavar="X.npz",
            help="Sample inputs, whose shapes are compiled for; default: made up.",
            readable=False,
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compare with ONNX Runtime on them.")] = True,
    rtol: Annotated[float | None, typer.Option("--rtol", help="Relative error that holds; default by type.")] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="What real runs did, from `onnx-cfad profile -o`: hot branches first.",
            readable=False,
        ),
    ] = None,
    tune: Annotated[
        float | None,
        typer.Option("--tune", metavar="SECONDS", help="Search for faster schedules, so long over all bodies."),
    ] = None,
    processor: Annotated[
        str, typer.Option("--processor", metavar="NAME", help="LLVM's name, such as x86-64-v3; native: this one.")
    ] = "native",
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads that a compiled kernel may use.")] = 1,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds that each step may take.")] = 600,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="BYTES", help="What a worker may hold; default: half of all.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compile MODEL for a target and write it, with a manifest, to DIR; checked against ONNX Runtime."""
    check_model_file(model)
    from onnx_cfad.arrays import read_npz  # noqa: PLC0415
    from onnx_cfad.planning import profile_text  # noqa: PLC0415
    from onnx_cfad.report.plain_data import to_json  # noqa: PLC0415
    from onnx_cfad.report.target_tables import manifest_table  # noqa: PLC0415
    from onnx_cfad.report.terminal import show, working  # noqa: PLC0415
    from onnx_cfad.sizes import parse_bytes  # noqa: PLC0415
    from onnx_cfad.targets.base import Limits, Options  # noqa: PLC0415
    from onnx_cfad.targets.compilation import compile_model  # noqa: PLC0415

    limits = Limits(timeout, None if memory is None else parse_bytes(memory))
    options = Options(build, form, processor, threads, limits, profile_text(profile), tune)
    feeds = None if inputs is None else read_npz(inputs)
    with working(f"compiling {model}", quiet=quiet or as_json) as tell:
        artifact = compile_model(
            model, target, output, feeds=feeds, options=options, check=check, rtol=rtol,
            tell=lambda text: tell(f"compiling {model}: {text}"),
        )  # fmt: skip
    if as_json:
        typer.echo(to_json(artifact.manifest, output=output))
    elif not quiet:
        show(manifest_table(artifact.manifest, output))
