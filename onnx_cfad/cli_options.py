"""The arguments and options that several commands share, with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# Paths are not checked by typer (readable=False): what is wrong with a file is told in our words, in one line.
_WHAT = "What to differentiate"
_HOW = "How loops and branches are run backwards"
_LIMITS = "What becomes of gradients"

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The .onnx file.", readable=False, show_default=False)]
Wrt = Annotated[
    list[str] | None,
    typer.Option(
        "--wrt",
        metavar="NAME",
        help="Differentiate by this input or initializer; may be repeated.",
        rich_help_panel=_WHAT,
    ),
]
WrtInitializers = Annotated[
    bool,
    typer.Option(
        "--wrt-initializers",
        help="Differentiate by every weight, and by inputs only if --wrt names them.",
        rich_help_panel=_WHAT,
    ),
]
Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "--outputs", metavar="NAME", help="Differentiate this output; may be repeated.", rich_help_panel=_WHAT
    ),
]
Loss = Annotated[
    str | None,
    typer.Option(
        "--loss", metavar="NAME", help="Differentiate this scalar output; its seed is 1.", rich_help_panel=_WHAT
    ),
]
StopGradient = Annotated[
    list[str] | None,
    typer.Option(
        "--stop-gradient", metavar="NAME", help="Take this value as a constant; may repeat.", rich_help_panel=_WHAT
    ),
]
StraightThrough = Annotated[
    list[str] | None,
    typer.Option(
        "--straight-through",
        metavar="OP",
        help="Pass the cotangent through Round, QuantizeLinear, ...; may repeat.",
        rich_help_panel=_WHAT,
    ),
]
Plan = Annotated[
    str,
    typer.Option(
        "--plan",
        metavar="KIND|FILE",
        help="How loops are run backwards: auto, taped, checkpointed, implicit, unrolled, or by the FILE of a plan.",
        rich_help_panel=_HOW,
    ),
]
Sites = Annotated[
    list[str] | None,
    typer.Option(
        "--site",
        metavar="PATH=ADJOINT",
        help="The same for one site, such as main/loop=taped; may be repeated.",
        rich_help_panel=_HOW,
    ),
]
Segment = Annotated[
    int | None,
    typer.Option(
        "--segment",
        min=0,
        metavar="N",
        help="Iterations in a segment of a checkpointed loop; 0: the run decides.",
        rich_help_panel=_HOW,
    ),
]
Levels = Annotated[
    int | None,
    typer.Option("--levels", min=2, metavar="N", help="Levels of a checkpointed loop.", rich_help_panel=_HOW),
]
Tape = Annotated[
    str | None,
    typer.Option(
        "--tape",
        metavar="TYPE",
        help="float16 or bfloat16: tape wider values in half the bytes, less exactly.",
        rich_help_panel=_HOW,
    ),
]
ImplicitFallback = Annotated[
    str | None,
    typer.Option(
        "--implicit-fallback",
        metavar="KIND",
        help="Where an implicit loop did not converge: checkpointed, nan or none.",
        rich_help_panel=_HOW,
    ),
]
ImplicitOutputs = Annotated[
    bool,
    typer.Option("--implicit-outputs", help="Outputs that say whether implicit loops converged.", rich_help_panel=_HOW),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory", metavar="BYTES", help="What tapes may take under --plan auto, such as 512MiB.", rich_help_panel=_HOW
    ),
]
Trips = Annotated[
    int | None,
    typer.Option(
        "--trips", min=0, metavar="N", help="Trip count to plan for where the model has none.", rich_help_panel=_HOW
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target", metavar="NAME", help="What the plan is made for: ort, llvm, cuda or ascend.", rich_help_panel=_HOW
    ),
]
ProfileFile = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="What real runs did, from `onnx-cfad profile -o`.",
        readable=False,
        rich_help_panel=_HOW,
    ),
]
Mode = Annotated[
    str,
    typer.Option(
        "--mode",
        metavar="MODE",
        help="reverse: gradients; forward: tangents; hvp: Hessian-vector products of --loss.",
        rich_help_panel=_WHAT,
    ),
]
ClipValue = Annotated[
    float | None,
    typer.Option(
        "--clip-value", metavar="X", help="Clamp the elements of gradients to [-X, X].", rich_help_panel=_LIMITS
    ),
]
ClipNorm = Annotated[
    float | None,
    typer.Option(
        "--clip-norm", metavar="X", help="Scale the gradients to a 2-norm of X at most.", rich_help_panel=_LIMITS
    ),
]
ClipCarries = Annotated[
    bool,
    typer.Option(
        "--clip-carries", help="Clip the cotangent of every loop carry in every iteration too.", rich_help_panel=_LIMITS
    ),
]
ReplaceNan = Annotated[
    bool, typer.Option("--replace-nan", help="Elements of gradients that are NaN become 0.", rich_help_panel=_LIMITS)
]
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        metavar="K|NAME",
        help="A leading axis of K seeds (tangents) and results; NAME: the run decides K.",
        rich_help_panel=_WHAT,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
