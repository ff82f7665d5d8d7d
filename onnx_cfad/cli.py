"""The command line `onnx-cfad`: it parses, calls, prints. Everything else is done elsewhere."""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from onnx_cfad import __version__
from onnx_cfad.cli_options import (
    AsJson,
    ClipCarries,
    ClipNorm,
    ClipValue,
    ImplicitFallback,
    ImplicitOutputs,
    Levels,
    Loss,
    Memory,
    Mode,
    Model,
    Outputs,
    Plan,
    ProfileFile,
    Quiet,
    ReplaceNan,
    Seeds,
    Segment,
    Sites,
    StopGradient,
    StraightThrough,
    Tape,
    Target,
    Trips,
    Wrt,
    WrtInitializers,
)
from onnx_cfad.cli_targets import compile_for_target, targets
from onnx_cfad.command_errors import DOES_NOT_HOLD, reporting_output, reports_errors
from onnx_cfad.interruptions import leave_on_signals
from onnx_cfad.model_file import check_model_file
from onnx_cfad.options import INITIALIZERS, Initializers, Options, seed_count

app = typer.Typer(
    name="onnx-cfad",
    help="Differentiates ONNX models that contain control flow, and writes the gradient as plain ONNX.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Runs the command line; what libraries would print on the console is kept off it."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    leave_on_signals()
    if sys.stdout is None:  # where the caller closed it
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # names of models and files are in any script, or any bytes
    with reporting_output():
        app(prog_name="onnx-cfad")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"onnx-cfad {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and warnings.")] = False,
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Differentiates ONNX models that contain control flow, and writes the gradient as plain ONNX."""
    context.obj = debug
    if debug:
        logging.disable(logging.NOTSET)
        warnings.resetwarnings()


@app.command()
@reports_errors
def transform(
    context: typer.Context,  # noqa: ARG001 - read by the decorator
    *,
    model: Model,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT", help="Default: MODEL.grad.onnx (.jvp, .hvp by --mode) beside it."
        ),
    ] = None,
    wrt: Wrt = None,
    wrt_initializers: WrtInitializers = False,
    outputs: Outputs = None,
    loss: Loss = None,
    stop_gradient: StopGradient = None,
    straight_through: StraightThrough = None,
    mode: Mode = "reverse",
    plan: Plan = "auto",
    site: Sites = None,
    segment: Segment = None,
    levels: Levels = None,
    tape: Tape = None,
    implicit_fallback: ImplicitFallback = None,
    memory: Memory = None,
    trips: Trips = None,
    target: Target = None,
    profile: ProfileFile = None,
    clip_value: ClipValue = None,
    clip_norm: ClipNorm = None,
    clip_carries: ClipCarries = False,
    replace_nan: ReplaceNan = False,
    implicit_outputs: ImplicitOutputs = False,
    seeds: Seeds = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Differentiate MODEL and write the result; prints the plan and what it costs."""
    check_model_file(model)  # before the second that the imports take; as in the other commands
    from onnx_cfad.planning import with_plan  # noqa: PLC0415
    from onnx_cfad.report.plain_data import to_json  # noqa: PLC0415 - heavy, as everything below
    from onnx_cfad.report.tables import report_table  # noqa: PLC0415
    from onnx_cfad.report.terminal import show, working  # noqa: PLC0415
    from onnx_cfad.transform import transform as transform_file  # noqa: PLC0415

    chosen = Options.of(_wrt(wrt, wrt_initializers), outputs, loss, stop_gradient or ())
    chosen = dataclasses.replace(
        chosen, straight_through=tuple(straight_through or ()), mode=mode,
        clip_value=clip_value, clip_norm=clip_norm, clip_carries=clip_carries, replace_nan=replace_nan,
        implicit_outputs=implicit_outputs, seeds=seed_count(seeds),
    )  # fmt: skip
    chosen = with_plan(
        chosen,
        plan,
        sites=site or (),
        segment=segment,
        levels=levels,
        tape=tape,
        implicit_fallback=implicit_fallback,
        memory=memory,
        trips=trips,
        target=target,
        profile=profile,
    )
    with working(f"differentiating {model}", quiet=quiet or as_json):
        written, gradient = transform_file(model, output, chosen)
    if as_json:
        typer.echo(to_json(gradient.report, output=written))
    elif not quiet:
        show(report_table(gradient.report, written))


@app.command()
@reports_errors
def inspect(
    context: typer.Context,  # noqa: ARG001
    *,
    model: Model,
    wrt: Wrt = None,
    wrt_initializers: WrtInitializers = False,
    outputs: Outputs = None,
    as_json: AsJson = False,
) -> None:
    """Show the control flow of MODEL: sites, trip counts, carries, captured values, operators without a rule."""
    check_model_file(model)
    from onnx_cfad.inspection import inspect as inspect_model  # noqa: PLC0415
    from onnx_cfad.report.plain_data import to_json  # noqa: PLC0415
    from onnx_cfad.report.tables import inspection_tree  # noqa: PLC0415
    from onnx_cfad.report.terminal import show, working  # noqa: PLC0415

    with working(f"reading {model}", quiet=as_json):
        inspection = inspect_model(model, Options.of(_wrt(wrt, wrt_initializers), outputs))
    if as_json:
        typer.echo(to_json(inspection))
    else:
        show(inspection_tree(inspection))


@app.command("plan")
@reports_errors
def print_plan(
    context: typer.Context,  # noqa: ARG001
    *,
    model: Model,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PLAN.json", help="Also write it, for --plan PLAN.json; - prints it."),
    ] = None,
    plan: Plan = "auto",
    site: Sites = None,
    segment: Segment = None,
    levels: Levels = None,
    tape: Tape = None,
    implicit_fallback: ImplicitFallback = None,
    memory: Memory = None,
    trips: Trips = None,
    target: Target = None,
    profile: ProfileFile = None,
    as_json: AsJson = False,
) -> None:
    """Show how each loop and branch of MODEL would be run backwards, the tape it would take, and why."""
    check_model_file(model)
    from onnx_cfad.api import plan as plan_of  # noqa: PLC0415
    from onnx_cfad.model import load  # noqa: PLC0415
    from onnx_cfad.report.tables import plan_table  # noqa: PLC0415
    from onnx_cfad.report.terminal import show, working  # noqa: PLC0415
    from onnx_cfad.saving import write_text  # noqa: PLC0415
    from onnx_cfad.weights import files  # noqa: PLC0415

    with working(f"planning {model}", quiet=as_json):
        found = plan_of(
            model,
            plan=plan,
            sites=site or (),
            segment=segment,
            levels=levels,
            tape=tape,
            implicit_fallback=implicit_fallback,
            memory=memory,
            trips=trips,
            target=target,
            profile=profile,
        )
    if output is not None and str(output) != "-":
        write_text(output, found.to_json() + "\n", sources=[model, *files(load(model))])
    if as_json or str(output) == "-":
        typer.echo(found.to_json(with_warnings=as_json))
    else:
        show(plan_table(found))


@app.command("profile")
@reports_errors
def run_profile(
    context: typer.Context,  # noqa: ARG001
    *,
    model: Model,
    inputs: Annotated[
        list[Path],
        typer.Option(
            "--inputs", metavar="X.npz", help="Inputs by name, or a folder of such files; may be repeated.",
            readable=False, show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="Also write it, for --profile OUT.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Run MODEL on inputs and count: outcomes of branches, iterations of loops, time in each region."""
    check_model_file(model)
    from onnx_cfad.model import load  # noqa: PLC0415
    from onnx_cfad.profiling import profile_files  # noqa: PLC0415
    from onnx_cfad.report.tables import profile_table  # noqa: PLC0415
    from onnx_cfad.report.terminal import counting, show  # noqa: PLC0415
    from onnx_cfad.saving import write_text  # noqa: PLC0415
    from onnx_cfad.weights import files  # noqa: PLC0415

    with counting(f"running {model}", quiet=quiet or as_json) as tell:
        found = profile_files(model, inputs, tell)
    if output is not None:
        write_text(output, found.to_json() + "\n", sources=[model, *inputs, *files(load(model))])
    if as_json:
        typer.echo(found.to_json())
    elif not quiet:
        show(profile_table(found))


@app.command()
@reports_errors
def validate(
    context: typer.Context,  # noqa: ARG001
    *,
    model: Model,
    gradient: Annotated[
        Path | None,
        typer.Argument(
            metavar="[GRADIENT]", help="What transform wrote; default: differentiate first.", readable=False
        ),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", metavar="X.npz", help="The inputs by name; default: made up.", readable=False),
    ] = None,
    wrt: Wrt = None,
    wrt_initializers: WrtInitializers = False,
    outputs: Outputs = None,
    loss: Loss = None,
    mode: Mode = "reverse",
    rtol: Annotated[float | None, typer.Option("--rtol", help="Relative error that holds; default by type.")] = None,
    directions: Annotated[int, typer.Option("--directions", min=1, help="Random directions for each gradient.")] = 3,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of everything random.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Check a gradient against finite differences of MODEL; exit code 1 where it does not hold, or none is checked."""
    for path in filter(None, (model, gradient)):
        check_model_file(path)
    from onnx_cfad.arrays import read_npz  # noqa: PLC0415
    from onnx_cfad.report.plain_data import to_json  # noqa: PLC0415
    from onnx_cfad.report.tables import validation_table  # noqa: PLC0415
    from onnx_cfad.report.terminal import is_narrow, show, working  # noqa: PLC0415
    from onnx_cfad.validation import validate as validate_model  # noqa: PLC0415

    feeds = None if inputs is None else read_npz(inputs)
    with working(f"validating {model}", quiet=quiet or as_json) as tell:
        validation = validate_model(
            model, gradient, feeds, wrt=_wrt(wrt, wrt_initializers), outputs=outputs, loss=loss, rtol=rtol,
            directions=directions, seed=seed, mode=mode,
            progress=lambda done, total, name: tell(f"validating {model}: {done} of {total}, {name}"),
        )  # fmt: skip
    if as_json:
        typer.echo(to_json(validation, holds=validation.holds, checked=validation.checked))
    elif not quiet:
        show(validation_table(validation, narrow=is_narrow()))
    if not validation.holds:
        raise typer.Exit(DOES_NOT_HOLD)


@app.command()
@reports_errors
def expand(
    context: typer.Context,  # noqa: ARG001
    *,
    model: Model,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT", help="Default: MODEL.expanded.onnx beside the model."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write MODEL with its Gradient, Adagrad, Adam and Momentum nodes written out in standard operators."""
    check_model_file(model)
    from onnx_cfad.expand_training import expand_training, training_operators  # noqa: PLC0415
    from onnx_cfad.model import load, normalise  # noqa: PLC0415
    from onnx_cfad.report.plain_data import to_json  # noqa: PLC0415
    from onnx_cfad.report.terminal import working  # noqa: PLC0415
    from onnx_cfad.saving import save  # noqa: PLC0415

    with working(f"expanding {model}", quiet=quiet or as_json):
        source = load(model)
        nothing = "" if training_operators(source) else "nothing to expand: the model has no training operators"
        expanded = expand_training(normalise(source))
        target = model.with_name(f"{model.stem}.expanded.onnx") if output is None else output
        save(expanded, target, source=model)
    if as_json:
        typer.echo(to_json({}, output=target, warnings=[nothing] if nothing else []))
    elif not quiet:
        typer.echo(f"warning: {nothing}\nwritten: {target}" if nothing else f"written: {target}")


@app.command()
@reports_errors
def run(
    context: typer.Context,  # noqa: ARG001
    *,
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL|DIR", help="The .onnx file, or what compile wrote.", readable=False, show_default=False
        ),
    ],
    inputs: Annotated[
        Path, typer.Option("--inputs", metavar="X.npz", help="The inputs by name.", readable=False, show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="Y.npz", help="Where the outputs go.", show_default=False)
    ],
    target: Annotated[
        str | None, typer.Option("--target", metavar="ort|llvm|cuda", help="Where a model runs; default: ONNX Runtime.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run MODEL in ONNX Runtime or on another target, or what was compiled, on X.npz; write the outputs to Y.npz."""
    if not model.is_dir():  # which compile wrote
        check_model_file(model)
    from onnx_cfad.report.plain_data import to_json  # noqa: PLC0415
    from onnx_cfad.report.terminal import working  # noqa: PLC0415
    from onnx_cfad.run import run_file  # noqa: PLC0415

    with working(f"running {model}", quiet=quiet or as_json) as tell:
        ran = run_file(model, inputs, output, target=target, tell=tell)
    if as_json:
        typer.echo(to_json(ran, output=output))
    elif not quiet:
        typer.echo(f"{ran}\nwritten: {output}")


app.command("compile")(compile_for_target)
app.add_typer(targets)


def _wrt(names: list[str] | None, initializers: bool) -> list[str | Initializers] | None:
    """The names and, when asked for, the initializers; None for neither."""
    if initializers:
        return [*(names or ()), INITIALIZERS]
    return None if names is None else list(names)
