"""The table of operators, docs/operators.md: how each is differentiated, or why not. Read off the registry.

python -m onnx_cfad.report.operators > docs/operators.md
"""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence

import onnx
import onnx.defs

from onnx_cfad.report.element_types import SIXTEEN_BIT
from onnx_cfad.report.second_order import ORDER_TWO
from onnx_cfad.rules.registry import Expanded, Linear, NoDerivative, Rule, entries, tangent_entry

_KINDS = "[taped](plans.md#taped), [checkpointed](plans.md#checkpointed)"
_CONTROL_FLOW = {
    "If": "Branch: [routed](plans.md#routed) or [masked](plans.md#masked)",
    "Loop": f"Loop: {_KINDS}, [implicit](plans.md#implicit) or [unrolled](plans.md#unrolled)",
    "Scan": f"Loop: {_KINDS} or [unrolled](plans.md#unrolled)",
}
_REWRITTEN = {
    "LinearAttention": "Written out as its specified body, which has a Scan, when a model is loaded",
    "Scatter": "Rewritten as `ScatterElements` when a model is loaded",
    "SequenceMap": "Rewritten as `Loop` when a model is loaded",
    "Upsample": "Rewritten as `Resize` when a model is loaded",
}
_BODY_RULES = "onnx_cfad.rules.function_body"
_READING = (
    "Older models are brought to opset 18 first. A derivative that has to pass through an operator without an entry is "
    "an error that names every such node. What rules do at kinks and poles, and the few settings they refuse, is in "
    "[semantics.md](semantics.md)."
)
_MODES = (
    "Every operator with a rule is differentiated in reverse and in forward mode, and what is emitted in both again. "
    "Forward mode passes it as its column says: elementwise, by the VJP rule as it is, since the Jacobian is diagonal; "
    "linear, by the operator itself on the tangents; own rule, by a JVP rule; transposed, by the VJP rule transposed; "
    "body, through the operators that it is written out in. The orders are those that a test compares with differences "
    "for the operator alone, read off the tests' cases; order 2 in reverse over reverse, forward over reverse and "
    "reverse over forward."
)
_TYPES = (
    "Derivatives in float64 and float32 are tested for every rule, those in 16-bit types as far as the last but one "
    "column says: f16 is float16 and bf16 is bfloat16, in ONNX Runtime; with a star in the reference evaluator of the "
    "onnx package, where ONNX Runtime has no kernels for them; with a plus they run in neither, and the emitted model "
    "is valid and right when it is run in float64. All are compared with differences of the operator, in reverse and "
    "in forward mode. An operator that takes no bfloat16 in the model's opset, and elementwise arithmetic, for which "
    "ONNX Runtime has no bfloat16 kernels, run in float32 between Casts where a rule emits them. "
    "Sums over more than 1,024 elements of a 16-bit type, or over how many only the run knows, are made in float32."
)
_MARKS = {"runtime": "", "reference": "*", "formula": "+"}
_RULE_HEADINGS = ("operator", "opset", "forward mode", "orders", "16-bit types", "rule in")
_WIDTH = 120


@dataclasses.dataclass(frozen=True)
class Operator:
    """An operator of the default domain.

    Attributes:
        name: Its name.
        version: The opset of its newest version.
        has_float: It has an input and an output that can be floating point.
        entry: What the registry has for it.
    """

    name: str
    version: int
    has_float: bool
    entry: Rule | NoDerivative | None

    @property
    def by_body(self) -> bool:
        """Whether it is differentiated through the function body of its specification."""
        return isinstance(self.entry, Rule) and self.entry.function.__module__ == _BODY_RULES

    @property
    def has_way(self) -> bool:
        """Whether the tool knows what to do with it."""
        return self.entry is not None or self.name in _CONTROL_FLOW or self.name in _REWRITTEN


def operators() -> list[Operator]:
    """Every operator of the default domain in its newest version, sorted by name."""
    known = {name: entry for domain, name, entry in entries() if domain == ""}
    schemas = sorted((s for s in onnx.defs.get_all_schemas() if s.domain == ""), key=lambda s: s.name)
    return [Operator(s.name, s.since_version, _has_float(s), known.get(s.name)) for s in schemas]


def _has_float(schema: onnx.defs.OpSchema) -> bool:
    return any(map(_may_be_float, schema.inputs)) and any(map(_may_be_float, schema.outputs))


def _may_be_float(parameter: onnx.defs.OpSchema.FormalParameter) -> bool:
    return any("float" in name or "double" in name for name in parameter.types)


def markdown() -> str:
    """The page: rules, specification bodies, control flow, what has no derivative, what has no entry."""
    found = operators()
    rules = [o for o in found if isinstance(o.entry, Rule) and not o.by_body]
    bodies = [o for o in found if o.by_body]
    constant = [o for o in found if isinstance(o.entry, NoDerivative)]
    flow = [o for o in found if o.entry is None and o.has_way]
    without = [o for o in found if not o.has_way]
    counts = (
        f"The default domain of onnx {onnx.__version__}, opset {onnx.defs.onnx_opset_version()}, has {len(found)} "
        f"operators: {len(rules)} have a rule, {len(bodies)} are differentiated through the body that their "
        f"specification gives, {len(flow)} are control flow or are rewritten, {len(constant)} have no derivative, "
        f"{len(without)} have no entry. The number beside a name is the opset of its newest version."
    )
    parts = [
        "# Operators",
        "Made by `python -m onnx_cfad.report.operators > docs/operators.md`; do not edit.",
        textwrap.fill(counts, _WIDTH),
        textwrap.fill(_READING, _WIDTH),
        textwrap.fill(_MODES, _WIDTH),
        textwrap.fill(_TYPES, _WIDTH),
        _section("With a rule", _RULE_HEADINGS, rules, _place),
        _section("Through the body of the specification", _RULE_HEADINGS, bodies, _place),
        _section("Control flow and rewritten operators", ("operator", "opset", "how"), flow, _way),
        _section("No derivative", ("operator", "opset", "reason"), constant, _reason),
        _section("No entry", ("operator", "opset", "floating point"), without, _floats),
        _other_domains(),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, headings: Sequence[str], found: Sequence[Operator], tell: Callable[[Operator], str]) -> str:
    rows = [(operator.name, str(operator.version), *_forward(operator), tell(operator)) for operator in found]
    return f"## {title}\n\n{_table(headings, rows)}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _place(operator: Operator) -> str:
    assert isinstance(operator.entry, Rule)
    return _file_of(operator.entry)


def _forward(operator: Operator) -> tuple[str, ...]:
    """How forward mode passes an operator with a VJP rule, and the orders and 16-bit types that are tested."""
    if not isinstance(operator.entry, Rule):
        return ()
    return _forward_of("", operator.name, operator.entry), _orders("", operator.name), _sixteen_bit(operator.name)


def _sixteen_bit(name: str) -> str:
    """The 16-bit types that are tested, with a mark for what runs the derivatives."""
    found = [
        f"{short}{_MARKS[way]}"
        for short, kind in (("f16", "float16"), ("bf16", "bfloat16"))
        for way, names in SIXTEEN_BIT[kind].items()
        if name in names.split()
    ]
    return ", ".join(found) or "-"


def _orders(domain: str, name: str) -> str:
    return "1, 2" if (f"{domain}::{name}" if domain else name) in ORDER_TWO else "1"


def _forward_of(domain: str, name: str, rule: Rule) -> str:
    own = tangent_entry(domain, name)
    if own is None:
        return "elementwise" if rule.elementwise else "transposed"
    return "linear" if isinstance(own, Linear) else "body" if isinstance(own, Expanded) else "own rule"


def _file_of(rule: Rule) -> str:
    path = rule.function.__module__.replace(".", "/") + ".py"
    return f"[{path.rpartition('/')[2]}](../{path})"


def _way(operator: Operator) -> str:
    return _CONTROL_FLOW.get(operator.name) or _REWRITTEN[operator.name]


def _reason(operator: Operator) -> str:
    assert isinstance(operator.entry, NoDerivative)
    return operator.entry.reason


def _floats(operator: Operator) -> str:
    return "in and out" if operator.has_float else "not both in and out: no derivative can pass"


def _other_domains() -> str:
    """The operators of other domains that have an entry: how, and where or why."""
    rows: list[tuple[str, ...]] = []
    for domain, name, entry in entries():
        if domain:
            how = (_forward_of(domain, name, entry), _orders(domain, name)) if isinstance(entry, Rule) else ("-", "-")
            rows.append((domain, name, *how, _file_of(entry) if isinstance(entry, Rule) else entry.reason))
    headings = ("domain", "operator", "forward mode", "orders", "rule in, or why there is no derivative")
    return f"## Other domains\n\n{_table(headings, rows)}"


if __name__ == "__main__":
    sys.stdout.write(markdown())
