"""Prints the results of runs as Markdown tables: ``table.py FILE.jsonl ...``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def main() -> None:
    for path in sys.argv[1:]:
        lines = [json.loads(line) for line in Path(path).read_text().splitlines() if line.startswith("{")]
        print(f"## {lines[0]['benchmark']}\n")
        print(f"`{lines[0]['command']}`: {_about(lines)}\n")
        systems = [line for line in lines if "system" in line and "case" in line]
        _table(("case", "system", "times forward", "CPU s", "MiB beyond", "ready, CPU s"), [_row(s) for s in systems])
        claims = [line for line in lines if "claim" in line]
        _table(("claim", "figure", "bar", "holds"), [_claim(line) for line in claims])


def _about(lines: list[Line]) -> str:
    """The machine, the versions beside this package, and those of peers that ran in another Python."""
    machine, versions = lines[0]["machine"], {k: v for line in lines for k, v in line.get("versions", {}).items()}
    packages = ", ".join(f"{name} {version}" for name, version in versions.items() if version != "absent")
    where = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, load {machine['load']}"
    return f"{where}; {packages}."


def _row(line: Line) -> tuple[str, ...]:
    """Case, system, ratio, processor seconds, MiB beyond inputs and outputs, seconds of transformation and session."""
    if "absent" in line:
        return (line["case"], line["system"], line["absent"], "", "", "")
    if "total_cpu_s" in line:
        return (line["case"], line["system"], "", "", "", f"{line['total_cpu_s']:.4g}")
    ready = line.get("transform_cpu_s", 0.0) + line.get("create_cpu_s", 0.0)
    ratio = line.get("ratio", 1.0 if line["system"] == "forward" else None)
    figures = ("" if ratio is None else f"{ratio:.3g}", f"{line['cpu_s']:.3g}", f"{line['beyond_mib']:.3g}")
    return (line["case"], line["system"], *figures, f"{ready:.2g}" if ready else "")


def _claim(line: Line) -> tuple[str, ...]:
    bar = f"≤ {line['at_most']:g}" if "at_most" in line else f"≥ {line['at_least']:g}"
    return (line["claim"], f"{line['figure']:.3g}", bar, "yes" if line["holds"] else "**no**")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    if not rows:
        return
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


if __name__ == "__main__":
    main()
