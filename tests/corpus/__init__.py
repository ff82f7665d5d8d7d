"""Named control-flow models: one function a model, and the name says its shape.

Bodies rotate rather than contract: a body that converges to a constant has no gradient and proves nothing. ``real``
in a text stands for the floating-point type; every function takes it as its one argument.
"""

from tests.corpus import (
    branch_nests,
    branch_weights,
    branches,
    captures,
    carries,
    draws,
    fixed_points,
    loops,
    names,
    nests,
    precision,
    scans,
    sequences,
    shapes,
    tapes,
)
from tests.corpus.entry import CORPUS, Example, Maker

__all__ = (
    "CORPUS",
    "Example",
    "Maker",
    "branch_nests",
    "branch_weights",
    "branches",
    "captures",
    "carries",
    "draws",
    "fixed_points",
    "loops",
    "names",
    "nests",
    "precision",
    "scans",
    "sequences",
    "shapes",
    "tapes",
)
