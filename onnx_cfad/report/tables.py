"""Terminal tables and trees of reports, inspections and validations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from onnx_cfad.differentiate import Report, SiteReport
from onnx_cfad.graph.profile import BranchCount, Profile
from onnx_cfad.inspection import Inspection, NodeReport, PoleReport, SiteInspection, ValueReport
from onnx_cfad.numeric.differences import Outcome
from onnx_cfad.plans.plan import Plan, written
from onnx_cfad.report.layout import count as _count
from onnx_cfad.report.layout import listing as _listing
from onnx_cfad.report.layout import pair as _pair
from onnx_cfad.report.layout import table as _table
from onnx_cfad.sizes import format_bytes
from onnx_cfad.verdict import Validation, cells

_WIDE_ONLY = ("type", "checked")
_STYLES = {Outcome.HOLDS: "green", Outcome.WRONG: "bold red"}


def report_table(report: Report, target: Path) -> RenderableType:
    """The plan and what it came to: sites with their adjoints, nodes before and after, warnings."""
    before, after = report.nodes
    lines: list[RenderableType] = []
    if report.sites:
        lines.append(
            _listing(("site", "kind", "trips", "adjoint", "tape", "because"), list(map(_plan_row, report.sites)))
        )
    if report.mode != "reverse":
        lines.append(_pair("mode", f"{report.mode}, order {report.order}"))
    lines.append(_pair("differentiated", _names(report.outputs)))
    lines.append(_pair("by", _names(report.wrt)))
    lines += _interface(report.seeds, report.gradients)
    if report.tangents:
        lines.append(
            _pair(
                "tangents", f"{_names(tuple(report.tangents.values()))} in, {_names(tuple(report.pushed.values()))} out"
            )
        )
    if report.directions is not None:
        lines.append(_pair("seeds", f"{report.directions} in one run, along a leading axis"))
    lines.append(_pair("nodes", f"{before} before, {after} after"))
    lines += [_warning(warning) for warning in report.warnings]
    lines.append(_pair("written", str(target)))
    return Group(*lines)


def plan_table(plan: Plan) -> RenderableType:
    """The adjoint of every site, the bytes of tape expected, and the reason."""
    rows = [(path, written(d.adjoint), _tape(d.told), d.reason) for path, d in plan.decisions.items()]
    table = _listing(("site", "adjoint", "tape", "because"), rows) if rows else Text("no control flow")
    return Group(table, *map(_warning, (*(f"never taken: {path}" for path in plan.cold), *plan.warnings)))


def profile_table(profile: Profile) -> RenderableType:
    """Outcomes and trip counts of every site, the time in each region, and the branches that were never taken."""
    rows = [(path, "If", f"then {c.then:,}, else {c.otherwise:,}", _share(c)) for path, c in profile.branches.items()]
    rows += [
        (
            path,
            "loop",
            f"{_count(c.iterations, 'iteration')} in {_count(c.executions, 'execution')}",
            f"at most {c.most:,}",
        )
        for path, c in profile.loops.items()
    ]
    total = sum(profile.seconds.values()) or 1.0
    times = [(path, f"{1e3 * s:.3f} ms", f"{s / total:.0%}") for path, s in profile.seconds.items()]
    lines: list[RenderableType] = [_pair("runs", f"{profile.runs:,}")]
    lines.append(_listing(("site", "kind", "count", "share"), rows) if rows else Text("no control flow"))
    lines.append(_listing(("region", "time a run", "share"), times))
    lines += [_warning(f"never taken: {path}") for path in profile.never_taken()]
    return Group(*lines)


def _share(count: BranchCount) -> str:
    if not count.executions:
        return "never reached"
    return f"then {count.then / count.executions:.1%}"


def _plan_row(site: SiteReport) -> tuple[str, ...]:
    return (site.path, site.kind, site.trips or "-", site.adjoint, _tape(site.bytes), site.reason)


def _tape(told: int | str | None) -> str:
    """Bytes of tape: a number, ``unknown``, ``at least`` a number, or a dash where nothing is taped."""
    if isinstance(told, str):
        words, _, number = told.rpartition(" ")
        return f"{words} {format_bytes(int(number))}" if words else told
    return "-" if told is None else format_bytes(told)


def inspection_tree(inspection: Inspection) -> RenderableType:
    """Inputs, outputs, the tree of control-flow sites, and the operators without a rule."""
    root = Tree(Text(f"main: {_count(inspection.nodes, 'node')}, opset {_opset(inspection)}", style="bold"))
    for site in inspection.sites:
        _grow(root, site, "main")
    if not inspection.sites:
        root.add("no control flow")
    lines: list[RenderableType] = [
        _pair("inputs", _values(inspection.inputs)),
        _pair("outputs", _values(inspection.outputs)),
        *_interface(inspection.seeds, inspection.gradients),
        root,
        *_rules(inspection.without_rule),
        *_poles(inspection.poles),
        *([_pair("derivatives", f"order {inspection.order}, mode {inspection.mode}")] if inspection.order else []),
        *(_warning(remark) for remark in inspection.remarks),
    ]
    return Group(*lines, Text("* a derivative passes through", style="dim"))


def validation_table(validation: Validation, *, narrow: bool = False) -> RenderableType:
    """A row for each gradient, then what was compared and how.

    Args:
        validation: What was found.
        narrow: Leave out types and what was checked, so that numbers stay whole.
    """
    shown = [index for index, heading in enumerate(validation.headings) if not narrow or heading not in _WIDE_ONLY]
    table = _table([validation.headings[index] for index in shown], [])
    for column in table.columns[1:]:
        column.no_wrap = True
    for row in validation.rows:
        texts = cells(row)
        table.add_row(*(texts[index] for index in shown), style=_STYLES.get(row.verdict, "yellow"))
    style = "green" if validation.holds else "bold red"
    return Group(
        table,
        validation.primal_conclusion,
        _pair("differences", validation.evaluator),
        *([] if validation.tape is None else [_pair("tape", str(validation.tape))]),
        *(_pair("note", remark) for remark in validation.remarks),
        *([] if validation.checked else [_warning(f"nothing was checked. {validation.advice}")]),
        Text(validation.conclusion, style=style),
    )


def _grow(parent: Tree, site: SiteInspection, around: str) -> None:
    """Adds a site with its sites to the tree; ``around`` is the path of the site around it."""
    heading = Text.assemble((site.kind, "bold"), " ", site.path.removeprefix(f"{around}/"))
    heading.append(f"  trips: {site.trips}" if site.trips else "")
    heading.append(
        f"  {site.adjoint}" if site.active else "  no derivative passes", style="cyan" if site.active else "dim"
    )
    heading.append(f"  ({_count(site.nodes, 'node')})", style="dim")
    branch = parent.add(heading)
    kinds = (
        ("carries", site.carries),
        ("scan inputs", site.scan_inputs),
        ("scan outputs", site.scan_outputs),
        ("outputs", site.outputs),
        ("captured", site.captured),
    )
    for title, values in kinds:
        if values:
            branch.add(_pair(title, _values(values)))
    if site.fixed_point and site.kind == "Loop":
        title, _, text = site.fixed_point.partition(": ")
        first, *more = text.split("; ")
        branch.add(_pair(title, first + (f"; and {len(more)} more" if more else "")))
    for inner in site.sites:
        _grow(branch, inner, site.path)


def _rules(nodes: Sequence[NodeReport]) -> Iterator[RenderableType]:
    """The nodes without a rule that are in the way, then a line on the others."""
    active = [node for node in nodes if node.active]
    if active:
        rows = [(node.operator, node.path) for node in active]
        yield _listing(("operator without a rule, in the way", "where"), rows)
    others = sorted({node.operator for node in nodes if not node.active})
    if others:
        yield _pair("without a rule, but not in the way", ", ".join(others))
    if not nodes:
        yield Text("every operator has a rule", style="green")


def _poles(nodes: Sequence[PoleReport]) -> Iterator[RenderableType]:
    """The nodes at whose poles a derivative may arrive."""
    if nodes:
        rows = [(node.operator, node.path, node.reason) for node in nodes]
        yield _listing(("derivative with a pole", "where", "it is"), rows)


def _interface(seeds: Mapping[str, str], gradients: Mapping[str, str]) -> Iterator[RenderableType]:
    """What the seeds and gradients are called; every one, because a program has to name them."""
    if seeds:
        yield _pair("seeds", ", ".join(seeds.values()))
    if gradients:
        yield _pair("gradients", ", ".join(gradients.values()))


def _opset(inspection: Inspection) -> str:
    """The opset of the file, and that of the gradient model where it is another."""
    opset, working = inspection.opset, inspection.working_opset
    return str(opset) if opset == working else f"{opset or 'none'} (differentiated as {working})"


def _warning(text: str) -> Text:
    return Text.assemble(("warning: ", "bold yellow"), text)


def _names(names: Sequence[str], limit: int = 12) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _values(values: Sequence[ValueReport]) -> str:
    return ", ".join(f"{value.name}{'*' if value.active else ''} {value.type}" for value in values)
