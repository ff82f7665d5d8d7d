"""`inspect`: what it prints."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.bad_models import unsupported
from tests.cli.calls import call


class TestInspect:
    def test_tree_of_sites(self, loop: Path) -> None:
        result = call("inspect", loop)
        assert result.exit_code == 0, result.output
        lines = result.stdout.splitlines()
        (at,) = [number for number, line in enumerate(lines) if "Loop loop_0" in line]
        assert "trips: dynamic" in lines[at]
        assert "s* float32[N]" in lines[at + 1]
        assert any("If body/if_0" in line for line in lines[at:])
        assert "every operator has a rule" in result.stdout

    def test_operators_without_a_rule_are_no_failure(self, tmp_path: Path) -> None:
        result = call("inspect", unsupported(tmp_path))
        assert result.exit_code == 0
        assert "own::Own" in result.stdout

    def test_json_is_the_same_tree(self, loop: Path) -> None:
        report = json.loads(call("inspect", loop, "--json").stdout)
        (site,) = report["sites"]
        assert site["kind"] == "Loop"
        assert site["carries"] == [{"name": "s", "type": "float32[N]", "active": True}]
        assert site["sites"][0]["path"] == "main/loop_0/body/if_0"
