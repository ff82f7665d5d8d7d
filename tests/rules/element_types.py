"""Conformance models in float16 and bfloat16: one for each operator, with the runtime that computes its derivatives.

python -m tests.rules.element_types prints what the tests found as onnx_cfad/report/element_types.py has it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import GraphProto, ModelProto, TensorProto, TypeProto, helper, numpy_helper

import onnx_cfad as cfad
from onnx_cfad.numeric.widen import widen
from onnx_cfad.report.operators import operators
from onnx_cfad.rules.registry import Rule
from tests.conformance.examples import Example, examples
from tests.execution import run_in_reference
from tests.oracle import Array, check_emitted, run_ort

KINDS: dict[str, tuple[int, Any]] = {
    "float16": (TensorProto.FLOAT16, np.float16),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
}
TOLERANCE = {"float16": 0.02, "bfloat16": 0.1}
"""Of a directional derivative, relative to the sum of the magnitudes of its terms."""

_WIDER = (TensorProto.FLOAT, TensorProto.DOUBLE)
_TYPE_ATTRIBUTES = {"SequenceEmpty": "dtype", "EyeLike": "dtype"}
Feeds = dict[str, Any]


class Way(enum.Enum):
    """What computes the derivatives of an operator in a 16-bit type."""

    RUNTIME = "ONNX Runtime"
    REFERENCE = "the reference evaluator"
    FORMULA = "nothing: the emitted model is valid, and right when it is run in float64"


@dataclasses.dataclass(frozen=True)
class Narrow:
    """A conformance model whose floating-point tensors have a 16-bit type.

    Attributes:
        name: As the onnx package calls it, without ``test_``.
        model: The model.
        feeds: Its inputs, moved a little: those of the onnx package lie on kinks.
        wrt: The inputs of that type.
        outputs: The outputs of that type.
    """

    name: str
    model: ModelProto
    feeds: Feeds
    wrt: list[str]
    outputs: list[str]


def with_rules() -> list[str]:
    """The operators of the default domain that have a rule."""
    return [operator.name for operator in operators() if isinstance(operator.entry, Rule)]


def candidates(op_type: str, kind: str, *, unknown_dims: bool = False) -> Iterator[Narrow]:
    """The models of an operator that are valid in ``kind`` and have such inputs and outputs, small ones first."""
    for example in (*_written(op_type), *_by_subject().get(op_type, ())):
        found = _narrowed(example, kind, unknown_dims=unknown_dims)
        if found is not None:
            yield found


@functools.cache
def _by_subject() -> dict[str, list[Example]]:
    found: dict[str, list[Example]] = {}
    for example in examples():
        if "expanded" not in example.name and not example.model.functions and not example.by_weights:
            found.setdefault(example.subject, []).append(example)
    for each in found.values():
        each.sort(key=lambda example: (sum(np.size(array) for array in example.feeds.values()), example.name))
    return found


def _written(op_type: str) -> list[Example]:
    """Models of operators for which the onnx package has none, or none in these types."""
    if op_type not in WRITTEN:
        return []
    graph = helper.make_graph(
        [
            helper.make_node(name, inputs.split(), outputs.split(), **more)
            for name, inputs, outputs, more in WRITTEN[op_type]
        ],
        op_type,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in _FEEDS.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in _CONSTANTS.items()],
    )
    read = {name for node in graph.node for name in node.input}
    kept = [value for value in graph.input if value.name in read]
    del graph.input[:]
    graph.input.extend(kept)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    typed = onnx.shape_inference.infer_shapes(model).graph.output[0]
    if not typed.type.tensor_type.HasField("shape"):  # what is joined from a list
        typed = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 3)
    model.graph.output[0].CopyFrom(typed)
    return [Example(f"own_{op_type}", op_type, model, {value.name: _FEEDS[value.name] for value in kept})]


_RNG = np.random.default_rng(1)
_FEEDS = {
    "x": _RNG.standard_normal((2, 3, 4)).astype(np.float32),
    "image": _RNG.standard_normal((1, 2, 6, 6)).astype(np.float32),
    "pair": _RNG.standard_normal(2).astype(np.float32),
    "scale": _RNG.standard_normal(4).astype(np.float32),
    "bias": _RNG.standard_normal(4).astype(np.float32),
}
_CONSTANTS = {
    "zero": np.array(0),
    "one": np.array(1),
    "labels": np.array([1, 0, 2]),
    "depth": np.array(3),
    "rois": np.array([[0, 0, 0, 3, 4], [0, 1, 1, 5, 5]], np.float32),
}
_Nodes = tuple[tuple[str, str, str, dict[str, Any]], ...]
WRITTEN: dict[str, _Nodes] = {
    "Cast": (("Cast", "x", "wide", {"to": TensorProto.FLOAT}), ("Sin", "wide", "s", {}), ("CastLike", "s x", "y", {})),
    "GlobalLpPool": (("GlobalLpPool", "image", "y", {}),),
    "LayerNormalization": (("LayerNormalization", "x scale bias", "y", {}),),
    "MaxRoiPool": (("MaxRoiPool", "image rois", "y", {"pooled_shape": [2, 2]}),),
    "MeanVarianceNormalization": (("MeanVarianceNormalization", "image", "y", {}),),
    "Mod": (("Mod", "x scale", "y", {"fmod": 1}),),
    "OneHot": (("OneHot", "labels depth pair", "y", {}),),
    "Optional": (("Optional", "x", "o", {}), ("OptionalGetElement", "o", "y", {})),
    "Trilu": (("Trilu", "x", "y", {}),),
    "SplitToSequence": (("SplitToSequence", "x", "l", {"axis": 1}), ("SequenceAt", "l one", "y", {})),
    "SequenceConstruct": (
        ("SequenceConstruct", "x x", "l", {}),
        ("SequenceErase", "l zero", "m", {}),
        ("Sin", "x", "s", {}),
        ("SequenceInsert", "m s zero", "n", {}),
        ("ConcatFromSequence", "n", "y", {"axis": 0}),
    ),
}
_SHARED = {
    "SequenceConstruct": ("SequenceErase", "SequenceInsert", "ConcatFromSequence"),
    "SplitToSequence": ("SequenceAt",),
    "Optional": ("OptionalGetElement",),
}
WRITTEN.update({other: WRITTEN[name] for name, others in _SHARED.items() for other in others})


def _narrowed(example: Example, kind: str, *, unknown_dims: bool) -> Narrow | None:
    elem, dtype = KINDS[kind]
    model = ModelProto()
    model.CopyFrom(example.model)
    _retype_graph(model.graph, _WIDER, elem, dtype)
    for value in (*model.graph.input, *model.graph.output) if unknown_dims else ():
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{axis}"
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return None
    of_kind = [value.name for value in model.graph.input if value.type.tensor_type.elem_type == elem]
    outputs = [value.name for value in model.graph.output if value.type.tensor_type.elem_type == elem]
    rng = np.random.default_rng(5)
    feeds = {
        name: _moved(np.asarray(array), rng).astype(dtype) if name in of_kind else array
        for name, array in example.feeds.items()
    }
    return Narrow(example.name, model, feeds, of_kind, outputs) if of_kind and outputs else None


def _moved(array: Array, rng: np.random.Generator) -> Array:
    wide = array.astype(np.float64)
    return np.asarray(wide * (1 - 0.04 * rng.random(wide.shape)) + 0.011 * rng.random(wide.shape))


def _retype_graph(graph: GraphProto, sources: tuple[int, ...], elem: int, dtype: Any) -> None:
    """Puts ``elem`` (NumPy's ``dtype``) in the place of the element types ``sources``, in all scopes."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        _retype(value.type, sources, elem)
    for tensor in graph.initializer:
        _retype_tensor(tensor, sources, dtype)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _retype_tensor(attribute.t, sources, dtype)
            if attribute.HasField("g"):
                _retype_graph(attribute.g, sources, elem, dtype)
            if attribute.HasField("tp"):
                _retype(attribute.tp, sources, elem)
            if _TYPE_ATTRIBUTES.get(node.op_type) == attribute.name and attribute.i in sources:
                attribute.i = elem
        if node.op_type == "SequenceEmpty" and not node.attribute:
            node.attribute.append(helper.make_attribute("dtype", elem))


def _retype(type_: TypeProto, sources: tuple[int, ...], elem: int) -> None:
    if type_.HasField("tensor_type") and type_.tensor_type.elem_type in sources:
        type_.tensor_type.elem_type = elem
    if type_.HasField("sequence_type"):
        _retype(type_.sequence_type.elem_type, sources, elem)
    if type_.HasField("optional_type"):
        _retype(type_.optional_type.elem_type, sources, elem)


def _retype_tensor(tensor: TensorProto, sources: tuple[int, ...], dtype: Any) -> None:
    if tensor.data_type in sources:
        array = numpy_helper.to_array(tensor).astype(dtype)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def judge(narrow: Narrow, kind: str) -> Way | None:
    """Asserts gradient and tangents of a model against central differences of it in float64; tells what computed them.

    None where the differences tell nothing: they are not finite, or the primal is computed nowhere.
    """
    _, dtype = KINDS[kind]
    gradient = cfad.vjp(narrow.model, wrt=narrow.wrt, outputs=narrow.outputs)
    pushed = cfad.jvp(narrow.model, wrt=narrow.wrt, outputs=narrow.outputs)
    for derived in (gradient, pushed):
        check_emitted(derived.proto())
    oracle = _Oracle.of(narrow)
    if oracle is None:
        return None
    rng = np.random.default_rng(0)
    seeds = {n: np.asarray(rng.standard_normal(np.shape(oracle.primal[n]))).astype(dtype) for n in narrow.outputs}
    tangents = {n: np.asarray(rng.standard_normal(np.shape(narrow.feeds[n]))).astype(dtype) for n in narrow.wrt}
    expected = oracle.slope(seeds, tangents)
    given_seeds = {gradient.report.seeds[n]: array for n, array in seeds.items()}
    given_tangents = {pushed.report.tangents[n]: array for n, array in tangents.items()}
    reverse, one = _derivatives(gradient.proto(), {**narrow.feeds, **given_seeds})
    forward, other = _derivatives(pushed.proto(), {**narrow.feeds, **given_tangents})
    if expected is None or reverse is None or forward is None:
        return None
    grads = {n: np.asarray(reverse[gradient.report.gradients[n]]) for n in narrow.wrt}
    for name, array in grads.items():
        assert array.shape == np.shape(narrow.feeds[name]), f"{narrow.name}: the gradient by {name} has another shape"
        assert one is Way.FORMULA or array.dtype == dtype, f"{narrow.name}: the gradient by {name} is {array.dtype}"
    terms = [_as_float64(grads[n]) * _as_float64(tangents[n]) for n in narrow.wrt]
    scale = sum(float(np.abs(each).sum()) for each in terms) + 1e-2
    by_reverse = sum(float(each.sum()) for each in terms)
    by_forward = sum(_product(forward[pushed.report.pushed[n]], seeds[n]) for n in narrow.outputs)
    for mode, found in (("reverse", by_reverse), ("forward", by_forward)):
        error = abs(found - expected) / scale
        assert error <= TOLERANCE[kind], f"{narrow.name}, {mode}: {found} against {expected}, terms of {scale}"
    return max(one, other, key=list(Way).index)


@dataclasses.dataclass(frozen=True)
class _Oracle:
    """A model in a wider type, for differences.

    Attributes:
        model: The model.
        feeds: Its inputs.
        step: Of the differences.
        primal: Its outputs.
    """

    model: ModelProto
    feeds: Feeds
    step: float
    primal: Mapping[str, Any]

    @classmethod
    def of(cls, narrow: Narrow) -> _Oracle | None:
        """In float64, or in float32 where nothing runs that; None where nothing runs either."""
        single = ModelProto()
        single.CopyFrom(narrow.model)
        _retype_graph(single.graph, tuple(elem for elem, _ in KINDS.values()), TensorProto.FLOAT, np.float32)
        # The steps are wide: some operators compute in float32 whatever their type is.
        for model, dtype, step in ((_widened(narrow.model), np.float64, 1e-4), (single, np.float32, 1e-2)):
            feeds = {n: array.astype(dtype) if n in narrow.wrt else array for n, array in narrow.feeds.items()}
            found = _run(model, feeds)
            if found is not None:
                return cls(model, feeds, step, found[0])
        return None

    def slope(self, seeds: Feeds, tangents: Feeds) -> float | None:
        """The derivative along ``tangents`` of the outputs weighted with ``seeds``; None where it is not finite."""
        ends: list[Mapping[str, Any]] = []
        for sign in (1, -1):
            along = {n: t.astype(self.feeds[n].dtype) for n, t in tangents.items()}
            moved = {n: self.feeds[n] + sign * self.step * t for n, t in along.items()}
            moved = {n: array.astype(self.feeds[n].dtype) for n, array in moved.items()}
            found = _run(self.model, {**self.feeds, **moved})
            if found is None or any(np.shape(found[0][n]) != np.shape(seed) for n, seed in seeds.items()):
                return None
            ends.append(found[0])
        with np.errstate(invalid="ignore"):
            slopes = {n: (_wide(ends[0][n]) - _wide(ends[1][n])) / (2 * self.step) for n in seeds}
            total = sum(_product(slopes[n], seed) for n, seed in seeds.items())
        return total if np.isfinite(total) else None


def _derivatives(model: ModelProto, feeds: Feeds) -> tuple[Mapping[str, Any] | None, Way]:
    """The outputs of an emitted model: in its own types where something runs it, else in float64."""
    found = _run(model, feeds)
    if found is not None:
        return found
    found = _run(_widened(model), {name: _as_float64(array) for name, array in feeds.items()})
    return (None if found is None else found[0]), Way.FORMULA


def _run(model: ModelProto, feeds: Feeds) -> tuple[Mapping[str, Any], Way] | None:
    given = {name: np.asarray(array) if np.isscalar(array) else array for name, array in feeds.items()}
    try:
        return run_ort(model, given), Way.RUNTIME
    except Exception:  # noqa: BLE001 - ONNX Runtime raises a class of its own for each status, which have no common one
        pass
    try:
        return run_in_reference(model, given), Way.REFERENCE
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return None


def _widened(model: ModelProto) -> ModelProto:
    wide = ir.from_proto(model)
    widen(wide)
    return ir.to_proto(wide)


def _wide(array: Any) -> Array:
    return np.asarray(array).astype(np.float64)


def _as_float64(array: Any) -> Any:
    if isinstance(array, list):
        return [_as_float64(each) for each in array]
    narrow = np.asarray(array)
    return narrow.astype(np.float64) if narrow.dtype.name in KINDS else array


def _product(found: Any, seed: Any) -> float:
    return float(np.sum(_wide(found) * _wide(seed)))


UNFIT = frozenset(("optional_get_element_optional_tensor",))
"""The reference evaluator puts an axis in front of what it gets out of an optional."""


def way_of(op_type: str, kind: str) -> Way | None:
    """What computes the derivatives of an operator in ``kind``, by the first model that tells something; or None."""
    for narrow in candidates(op_type, kind):
        if narrow.name not in UNFIT:
            found = judge(narrow, kind)
            if found is not None:
                return found
    return None


SUMS = frozenset(("ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "CumSum"))


def narrow_sums(model: ModelProto, kind: str) -> set[str]:
    """The operators among ``SUMS`` that the reverse or forward pass of ``model`` applies to tensors of ``kind``."""
    typed = onnx.shape_inference.infer_shapes(model)
    found: set[str] = set()
    _collect(typed.graph, KINDS[kind][0], {}, found)
    return found


def _collect(graph: GraphProto, elem: int, outer: Mapping[str, int], found: set[str]) -> None:
    types = dict(outer)
    for value in (*graph.input, *graph.value_info, *graph.output):
        types[value.name] = value.type.tensor_type.elem_type
    types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
    for node in graph.node:
        if node.op_type in SUMS and node.name.startswith("grad/") and types.get(node.input[0]) == elem:
            found.add(node.op_type)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _collect(attribute.g, elem, types, found)


def module_text(found: Mapping[str, Mapping[str, Way | None]]) -> str:
    """What onnx_cfad/report/element_types.py is to hold."""
    parts: list[str] = []
    for kind, ways in found.items():
        parts.append(f'    "{kind}": {{\n')
        for way in Way:
            names = " ".join(sorted(name for name, chosen in ways.items() if chosen is way))
            lines = textwrap.fill(names, 108, initial_indent=" " * 12, subsequent_indent=" " * 12)
            parts.append(f'        "{way.name.lower()}": """\n{lines}\n        """,\n' if names else "")
        parts.append("    },\n")
    return _HEAD + "".join(parts) + "}\n"


_HEAD = '''"""Operators whose derivatives in 16-bit types tests compare with differences, by what runs them.

Made by `python -m tests.rules.element_types > onnx_cfad/report/element_types.py`; do not edit.
"""

from __future__ import annotations

from typing import Final

SIXTEEN_BIT: Final = {
'''


def main() -> None:
    """Prints the module. Cost: some minutes."""
    found: dict[str, dict[str, Way | None]] = {
        kind: {name: way_of(name, kind) for name in with_rules()} for kind in KINDS
    }
    sys.stdout.write(module_text(found))


if __name__ == "__main__":
    main()
