"""docs/operators.md is what the command writes today, and says of each operator what the package does with it."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import onnx.defs

from onnx_cfad.report import second_order
from onnx_cfad.report.operators import markdown
from onnx_cfad.rules.registry import Rule, entries
from tests.rules.second_order_operators import module_text

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "operators.md"


# Rules that no test differentiates twice, and why.
ONCE = {
    "com.microsoft::SimplifiedLayerNormalization": "no runtime has it in this domain; in the default one it is tested"
}


def rows(section: str) -> dict[str, str]:
    """The rows of a section of the page: operator to its last column."""
    part = PAGE.read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {line[0]: line[-1] for line in cells[2:]}


def test_page_is_up_to_date() -> None:
    command = [sys.executable, "-m", "onnx_cfad.report.operators"]
    written = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert written == PAGE.read_text(encoding="utf-8"), f"run {' '.join(command[1:])} > docs/operators.md"


def test_every_operator_is_in_one_section() -> None:
    sections = re.findall(r"^## (.*)$", markdown(), re.MULTILINE)
    listed = [name for section in sections if section != "Other domains" for name in rows(section)]
    assert sorted(listed) == sorted(s.name for s in onnx.defs.get_all_schemas() if s.domain == "")


def test_sections_say_what_is_known_of_single_operators() -> None:
    assert "elementwise.py" in rows("With a rule")["Tanh"]
    assert "function_body.py" in rows("Through the body of the specification")["Attention"]
    assert rows("Control flow and rewritten operators")["Upsample"].startswith("Rewritten as `Resize`")
    assert rows("No derivative")["Shape"] == "a shape does not depend on the elements"
    assert "StringConcat" in rows("No entry")


def test_orders_are_those_of_the_cases() -> None:
    command = "run python -m tests.rules.second_order_operators > onnx_cfad/report/second_order.py"
    assert pathlib.Path(second_order.__file__).read_text(encoding="utf-8") == module_text(), command


def test_every_rule_has_a_case_of_order_two_or_a_reason() -> None:
    ruled = {f"{domain}::{name}" if domain else name for domain, name, entry in entries() if isinstance(entry, Rule)}
    assert ruled - second_order.ORDER_TWO == set(ONCE)
    assert ruled >= second_order.ORDER_TWO


def test_a_case_of_order_one_does_not_count() -> None:
    """The walk tells tests of second derivatives from others: it finds none for a rule of order one alone."""
    assert "com.microsoft::SimplifiedLayerNormalization" not in module_text().split()
    assert {"Tanh", "LSTM", "Conv", "com.microsoft::Attention"} <= second_order.ORDER_TWO
