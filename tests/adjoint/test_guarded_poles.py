"""Poles that a run does not reach leave no trace: random nests against eager dual numbers, where these are finite."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx.parser
import pytest

import onnx_cfad as cfad
from tests.adjoint.guarded_poles import TRIPS, WRT, GuardedPoles
from tests.oracle import session

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"plan": "taped"},
    {"plan": "checkpointed", "segment": 1},
    {"target": "cuda"},
)
PROGRAMS, GROUPS = 120, 6
TANGENTS = {"z_tangent": np.asarray([0.5, -1.0]), "w_tangent": np.asarray([0.25, 2.0])}
POINTS = [
    {"z": np.asarray(z), "w": np.asarray([0.3, 1.1]), "p": np.asarray(p), "q": np.asarray(not p)}
    | {name: np.asarray(trips) for name, trips in zip(TRIPS, counts, strict=True)}
    for z, p, counts in itertools.product(([0.0, 0.7], [0.4, 0.0]), (False, True), ((0, 1, 2), (0, 0, 1)))
]


@pytest.mark.parametrize("group", range(GROUPS))
def test_what_is_not_reached_leaves_no_trace(group: int) -> None:
    finite = 0
    for seed in range(group, PROGRAMS, GROUPS):
        program = GuardedPoles(seed)
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> m {program.text}')
        reverse = session(cfad.vjp(model, wrt=WRT, **OPTIONS[seed % len(OPTIONS)]).proto())
        forward = session(cfad.jvp(model, wrt=WRT).proto())
        for feeds in POINTS:
            expected = program.run(feeds)
            gradients: Any = reverse.run([f"{x}_grad" for x in WRT], {**feeds, "y_grad": np.ones(2)})
            pushed: Any = forward.run(["y_tangent"], {**feeds, **TANGENTS})[0]
            by = [np.zeros(2) if d is None else d for d in expected.by]
            held = np.isfinite(by[0]) & np.isfinite(by[1])
            with np.errstate(invalid="ignore"):
                along = by[0] * TANGENTS["z_tangent"] + by[1] * TANGENTS["w_tangent"]
            told = f"program {seed} at {feeds}:\n{program.text}"
            for found, derivative in zip(gradients, by, strict=True):
                known = np.isfinite(derivative)
                np.testing.assert_allclose(found[known], derivative[known], 1e-7, 1e-10, err_msg=told)
            np.testing.assert_allclose(pushed[held], along[held], 1e-7, 1e-10, err_msg=told)
            finite += int(held.sum())
    assert finite > 8 * PROGRAMS // GROUPS  # of two elements at each of eight points
