"""Terminal tables of targets: what is there, what works, what was compiled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType

from onnx_cfad.report.layout import listing, pair
from onnx_cfad.targets.inventory import Entry
from onnx_cfad.targets.manifest import Manifest
from onnx_cfad.targets.trial import Trial


def inventory_table(entries: Sequence[Entry]) -> RenderableType:
    """What there is, and where."""
    return listing(("name", "what", "for", "state"), [(e.name, e.what, e.target, e.state) for e in entries])


def trial_table(trials: Sequence[Trial]) -> RenderableType:
    """What works, with its versions, and what does not, with the reason."""
    rows = [(trial.name, "works" if trial.works else "fails", trial.what) for trial in trials]
    return listing(("name", "verdict", ""), rows)


def manifest_table(manifest: Manifest, folder: Path) -> RenderableType:
    """What was compiled, with what, and how it compared with ONNX Runtime."""
    inputs = ", ".join(f"{i.name} {i.dtype}{list(i.shape)}" for i in manifest.inputs)
    lines = [
        pair("target", f"{manifest.target} ({manifest.stamp['build']}), for {manifest.stamp['processor']}"),
        pair("form", manifest.form),
        *(pair("note", note) for note in manifest.notes),
        pair("inputs", inputs),
        pair("outputs", ", ".join(manifest.outputs)),
        pair("against ONNX Runtime", _errors(manifest.errors)),
        pair("written", str(folder)),
    ]
    return Group(*lines)


def _errors(errors: dict[str, float] | None) -> str:
    if errors is None:
        return "not checked"
    return f"largest relative error {max(errors.values(), default=0.0):.1e}, of {len(errors)} outputs"
