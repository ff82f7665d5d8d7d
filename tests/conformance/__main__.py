"""Judges every conformance model and writes docs/conformance.md. Cost: some minutes on one core."""

from __future__ import annotations

import sys

from tests.conformance.examples import examples
from tests.conformance.judgement import Verdict, judge
from tests.conformance.page import PAGE, page


def main() -> int:
    """Writes the page; gives 1 when a gradient is wrong."""
    judgements = {}
    for count, example in enumerate(examples(), 1):
        judgements[example.name] = judge(example)
        if count % 100 == 0:
            print(f"{count} of {len(examples())}", file=sys.stderr, flush=True)
    PAGE.write_text(page(examples(), judgements), encoding="utf-8")
    wrong = [j for j in judgements.values() if j.verdict is Verdict.WRONG]
    for judgement in wrong:
        print(f"\n{judgement.name}: {judgement.reason}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
