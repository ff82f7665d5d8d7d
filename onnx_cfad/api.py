"""The pipeline: load, analyse, plan, differentiate, optimise. One function for each thing a user asks for."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from onnx_cfad.differentiate import Gradient, differentiate
from onnx_cfad.errors import ModelError
from onnx_cfad.forward import push_forward, push_forward_gradient
from onnx_cfad.given import name_of
from onnx_cfad.graph.profile import Profile
from onnx_cfad.model import Source, load
from onnx_cfad.options import Initializers, Options
from onnx_cfad.planning import plan_model, profile_text, with_plan
from onnx_cfad.plans.plan import Plan
from onnx_cfad.ports import Feeds
from onnx_cfad.sizes import number_of_bytes

if TYPE_CHECKING:
    from onnx_cfad.targets.base import Artifact

Names = Sequence[str] | str | None
Wrt = Sequence[str | Initializers] | Initializers | str | None
AnyModel = Source | str | os.PathLike[str]
AnyPlan = str | os.PathLike[str] | Plan
AnyProfile = str | os.PathLike[str] | Profile


def vjp(
    model: AnyModel,
    *,
    wrt: Wrt = None,
    outputs: Names = None,
    stop_gradient: Sequence[str] = (),
    straight_through: Sequence[str] = (),
    plan: AnyPlan = "auto",
    sites: Sequence[str] = (),
    segment: int | None = None,
    levels: int | None = None,
    tape: str | None = None,
    implicit_fallback: str | None = None,
    memory: str | int | None = None,
    trips: int | None = None,
    target: str | None = None,
    profile: AnyProfile | None = None,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    clip_carries: bool = False,
    replace_nan: bool = False,
    implicit_outputs: bool = False,
    seeds: int | str | None = None,
) -> Gradient:
    """The model extended by its vector-Jacobian product.

    The result takes the inputs of ``model``, then one seed ``<output>_grad`` for each differentiated output, and gives
    the outputs of ``model``, then one ``<name>_grad`` for each ``wrt`` name, of the same shape and element type.

    Args:
        model: Path, ``onnx.ModelProto``, ``ir.Model`` or a torch ``ONNXProgram``; never modified.
        wrt: Names of inputs or initializers, ``INITIALIZERS`` for all trainable ones, or a mix; default: every
            floating-point graph input.
        outputs: Names of the outputs to differentiate; default: every floating-point one.
        stop_gradient: Names of values that count as constants.
        straight_through: Operators (``Round``, ``QuantizeLinear``...) whose straight-through estimator stands in for
            their derivative, which is 0.
        plan: How loops are run backwards: ``auto``, ``taped``, ``checkpointed``, ``implicit``, ``unrolled``, a
            ``Plan``, or the path of one written as JSON.
        sites: The same for single sites: ``path=adjoint``, such as ``main/loop=checkpointed(segment=25)``.
        segment: Iterations in a segment of a checkpointed loop; default: the length that takes the least memory.
        levels: Levels of a checkpointed loop; default: two, three for a large carry and a long loop.
        tape: ``float16`` or ``bfloat16`` to tape wider values in half the bytes, at the price of their digits.
        implicit_fallback: What a loop run backwards implicitly does where it did not converge: ``checkpointed`` (the
            default) runs it backwards from checkpoints, ``nan`` gives NaN, ``none`` checks nothing.
        implicit_outputs: Further outputs for each such loop of the main graph: ``<site>_converged``,
            ``<site>_residual`` and ``<site>_adjoint_iterations``.
        memory: Bytes that tapes may take under ``auto``, such as ``512MiB``; default: 256 MiB.
        trips: Trip count to plan for where the model does not fix one; default: 1,000.
        target: What the plan is made for: ``ort`` (default), ``llvm``, ``cuda`` or ``ascend``.
        profile: What real runs did, as ``profile`` gives it, or the path of its JSON.
        clip_value: Largest absolute value of an element of a gradient; default: no limit.
        clip_norm: Largest 2-norm of all gradients together; default: no limit.
        clip_carries: Clip the cotangent of every loop carry in every iteration too (exploding gradients).
        replace_nan: Elements of gradients that are NaN become 0; by default they stay and are seen.
        seeds: How many seeds one run takes, K: seeds and gradients get a leading axis of K, a number from 1 up or the
            name of a dimension that the run decides. The primal and its tapes run once, the reverse pass K times.

    Raises:
        ModelError: The model is unusable or lacks a name.
        PlanError: The plan is impossible.
        UnsupportedOp: A differentiated value reaches an operator without a rule.
    """
    options = Options.of(wrt, outputs, None, stop_gradient)
    options = dataclasses.replace(
        options, straight_through=straight_through,
        clip_value=clip_value, clip_norm=clip_norm, clip_carries=clip_carries, replace_nan=replace_nan,
        implicit_outputs=implicit_outputs, seeds=seeds,
    )  # fmt: skip
    chosen = with_plan(
        options,
        plan,
        sites=sites,
        segment=segment,
        levels=levels,
        tape=tape,
        implicit_fallback=implicit_fallback,
        memory=memory,
        trips=trips,
        target=target,
        profile=profile,
    )
    return differentiate(load(model), chosen)


def grad(
    model: AnyModel,
    *,
    loss: str,
    wrt: Wrt = None,
    stop_gradient: Sequence[str] = (),
    straight_through: Sequence[str] = (),
    plan: AnyPlan = "auto",
    sites: Sequence[str] = (),
    segment: int | None = None,
    levels: int | None = None,
    tape: str | None = None,
    implicit_fallback: str | None = None,
    memory: str | int | None = None,
    trips: int | None = None,
    target: str | None = None,
    profile: AnyProfile | None = None,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    clip_carries: bool = False,
    replace_nan: bool = False,
    implicit_outputs: bool = False,
) -> Gradient:
    """The model extended by the gradient of its scalar output ``loss``: as ``vjp`` with the seed fixed to 1.

    Raises:
        ModelError: ``loss`` is not a scalar, or as for ``vjp``.
        PlanError: As for ``vjp``.
        UnsupportedOp: As for ``vjp``.
    """
    if not name_of("loss", loss):
        raise ModelError("", "no loss was named", "Give the name of a scalar output as loss.")
    options = Options.of(wrt, None, loss, stop_gradient)
    options = dataclasses.replace(
        options, straight_through=straight_through,
        clip_value=clip_value, clip_norm=clip_norm, clip_carries=clip_carries, replace_nan=replace_nan,
        implicit_outputs=implicit_outputs,
    )  # fmt: skip
    chosen = with_plan(
        options,
        plan,
        sites=sites,
        segment=segment,
        levels=levels,
        tape=tape,
        implicit_fallback=implicit_fallback,
        memory=memory,
        trips=trips,
        target=target,
        profile=profile,
    )
    return differentiate(load(model), chosen)


def jvp(
    model: AnyModel,
    *,
    wrt: Wrt = None,
    outputs: Names = None,
    stop_gradient: Sequence[str] = (),
    straight_through: Sequence[str] = (),
    plan: str = "auto",
    sites: Sequence[str] = (),
    implicit_fallback: str | None = None,
    seeds: int | str | None = None,
) -> Gradient:
    """The model extended by its Jacobian-vector product (forward mode).

    The result takes the inputs of ``model``, then one tangent ``<name>_tangent`` for each ``wrt`` name, and gives the
    outputs of ``model``, then one ``<output>_tangent`` for each differentiated output, of the same shape and element
    type. Loops carry tangents along: there is no tape. Those that iterate to a fixed point, within a tight tolerance or
    where they are asked to, solve a linear system for them. With a loose tolerance the two differ: carried tangents are
    those of the iterations that ran, which lag behind those of the fixed point.

    Args:
        model: Path, ``onnx.ModelProto``, ``ir.Model`` or a torch ``ONNXProgram``; never modified.
        wrt: Names of inputs or initializers, ``INITIALIZERS`` for all trainable ones, or a mix; default: every
            floating-point graph input.
        outputs: Names of the outputs to differentiate; default: every floating-point one.
        stop_gradient: Names of values that count as constants.
        straight_through: As for ``vjp``.
        plan: ``implicit`` for all loops that iterate to a fixed point, or ``auto``.
        sites: ``PATH=implicit`` for single ones.
        implicit_fallback: As for ``vjp``; ``checkpointed`` carries tangents along where a loop did not converge.
        seeds: How many tangents of each ``wrt`` one run takes, K: tangents get a leading axis of K, a number from 1 up
            or the name of a dimension that the run decides. What the primal computes outside loops and branches runs
            once; loops and branches that carry tangents run once for the primal results and K times for tangents.

    Raises:
        ModelError: The model is unusable or lacks a name.
        PlanError: With ``seeds``, a loop or branch that carries tangents draws random numbers; or the plan is one of
            a reverse pass, or asks for what is no fixed point.
        UnsupportedOp: A differentiated value reaches an operator without a rule.
    """
    options = Options.of(wrt, outputs, None, stop_gradient)
    options = dataclasses.replace(options, mode="forward", straight_through=straight_through, seeds=seeds)
    chosen = with_plan(options, plan, sites=sites, implicit_fallback=implicit_fallback)
    return push_forward(load(model), chosen)


def hvp(
    model: AnyModel,
    *,
    loss: str,
    wrt: Wrt = None,
    stop_gradient: Sequence[str] = (),
    plan: AnyPlan = "auto",
    sites: Sequence[str] = (),
    segment: int | None = None,
    levels: int | None = None,
    tape: str | None = None,
    memory: str | int | None = None,
    trips: int | None = None,
    target: str | None = None,
    profile: AnyProfile | None = None,
) -> Gradient:
    """The model extended by Hessian-vector products of its scalar output ``loss``, by forward over reverse.

    The result takes the inputs of ``model``, then one tangent ``<name>_tangent`` for each ``wrt`` name, and gives the
    outputs of ``model``, the gradients ``<name>_grad``, then the products ``<name>_grad_tangent``.

    Args:
        model: As for ``vjp``.
        loss: Name of a scalar output.
        wrt: As for ``vjp``.
        stop_gradient: As for ``vjp``.
        plan: As for ``vjp``, of the gradient.
        sites: As for ``vjp``.
        segment: As for ``vjp``.
        levels: As for ``vjp``.
        tape: As for ``vjp``.
        memory: As for ``vjp``.
        trips: As for ``vjp``.
        target: As for ``vjp``.
        profile: As for ``vjp``.

    Raises:
        ModelError: ``loss`` is not a scalar, or as for ``vjp``.
        PlanError: As for ``vjp``.
        UnsupportedOp: As for ``vjp``.
    """
    options = dataclasses.replace(Options.of(wrt, None, name_of("loss", loss) or None, stop_gradient), mode="hvp")
    chosen = with_plan(
        options, plan, sites=sites, segment=segment, levels=levels, tape=tape, memory=memory, trips=trips,
        target=target, profile=profile,
    )  # fmt: skip
    return push_forward_gradient(load(model), chosen)


def plan(
    model: AnyModel,
    *,
    plan: AnyPlan = "auto",
    sites: Sequence[str] = (),
    segment: int | None = None,
    levels: int | None = None,
    tape: str | None = None,
    implicit_fallback: str | None = None,
    memory: str | int | None = None,
    trips: int | None = None,
    target: str | None = None,
    profile: AnyProfile | None = None,
) -> Plan:
    """How each control-flow site of ``model`` would be run backwards, what that is expected to take, and why.

    The result can be printed, written with ``to_json``, edited, and given to ``vjp`` and ``grad``.

    Raises:
        ModelError: The model is unusable.
        PlanError: The plan is impossible.
    """
    chosen = with_plan(
        Options(),
        plan,
        sites=sites,
        segment=segment,
        levels=levels,
        tape=tape,
        implicit_fallback=implicit_fallback,
        memory=memory,
        trips=trips,
        target=target,
        profile=profile,
    )
    return plan_model(load(model), chosen)


def profile(model: AnyModel, feeds: Feeds | Iterable[Feeds]) -> Profile:
    """What happens when ``model`` runs on ``feeds``: branch outcomes, trip counts, time in each region.

    The result can be written with ``to_json``, and given to ``plan``, ``vjp`` and ``grad`` for the same model.

    Args:
        model: As for ``vjp``.
        feeds: The inputs by name, or any number of these, which are taken one at a time.

    Raises:
        ModelError: The model is unusable, or the feeds do not fit it.
        TargetError: ONNX Runtime cannot run the model.
    """
    from onnx_cfad.profiling import profile_model  # noqa: PLC0415 - heavy

    return profile_model(model, feeds)


def compile(  # noqa: A001 - what it is
    model: AnyModel | Gradient,
    *,
    target: str,
    output: str | os.PathLike[str] | None = None,
    build: str | None = None,
    form: str = "auto",
    feeds: Feeds | None = None,
    check: bool = True,
    rtol: float | None = None,
    processor: str = "native",
    threads: int = 1,
    timeout: float = 600.0,
    memory: str | int | None = None,
    profile: AnyProfile | None = None,
    tune: float | None = None,
) -> Artifact:
    """``model`` compiled for a target and checked against ONNX Runtime: ``cfad.compile(g, target="llvm").run(feeds)``.

    Args:
        model: As for ``vjp``, or what that gave.
        target: ``llvm``: machine code for this CPU, by TVM.
        output: The folder to write; default: a temporary one, which goes with the result.
        build: ``relay`` or ``relax``; default: Relay where it is installed.
        form: ``whole``, one program of the target's machine; ``host``, bodies driven by a host program; or ``auto``.
        feeds: Sample inputs by name, whose shapes are those to compile for; default: made up.
        check: Compare with ONNX Runtime on the sample inputs.
        rtol: The relative error that holds; default: by element type.
        processor: LLVM's name of the processor to compile for; ``native`` for this one.
        threads: Threads that a compiled kernel may use.
        timeout: Seconds that each step may take.
        memory: What the process that compiles and runs may hold, such as ``2GiB``; default: half of the machine's.
        profile: What real runs of the model, or of the primal that it was differentiated from, did: a ``Profile``, or
            the path of its JSON. Hot branches are compiled first, branches that no run took on their first use.
        tune: Seconds that MetaSchedule may search for faster schedules, over all bodies; default: no search.

    Raises:
        ModelError: The model or the inputs are unusable.
        PlanError: The profile is none, or is of another model.
        TargetError: The target is not there, refuses the model, or cannot run it.
        ValidationError: The results are not those of ONNX Runtime.
    """
    from onnx_cfad.targets.base import Limits  # noqa: PLC0415 - heavy
    from onnx_cfad.targets.base import Options as TargetOptions  # noqa: PLC0415
    from onnx_cfad.targets.compilation import compile_model  # noqa: PLC0415

    limits = Limits(timeout, None if memory is None else number_of_bytes(memory))
    options = TargetOptions(build, form, processor, threads, limits, profile_text(profile), tune)
    source = model.model if isinstance(model, Gradient) else model
    return compile_model(source, target, output, feeds=feeds, options=options, check=check, rtol=rtol)
