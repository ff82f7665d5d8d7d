"""Second derivatives of neural-network operators: the emitted gradient is differentiated and checked by differences."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests import oracle
from tests.execution import run_in_reference
from tests.oracle import assert_vjp, node_model, run_ort
from tests.rules.second_order import first_order

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape) * 0.6


@dataclasses.dataclass(frozen=True)
class Twice:
    """An operator to differentiate twice.

    Attributes:
        op_type: Its name.
        feeds: Its inputs by name, "" for an absent one.
        attributes: Its attributes.
        outputs: How many outputs it has.
        kind: The type to compute in: float64 where ONNX Runtime can.
        reference: Run in the reference evaluator.
        opset: Of the model.
        fixed: Inputs that are not differentiated.
    """

    op_type: str
    feeds: dict[str, Any]
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    outputs: int = 1
    kind: type = np.float32
    reference: bool = False
    opset: int = 21
    fixed: str = ""
    dims: str = "static"


def recurrent(op_type: str, direction: str = "forward", more: str = "", **attributes: Any) -> Twice:
    d, g = (2 if direction == "bidirectional" else 1), {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    feeds: dict[str, Any] = {"x": normal(3, 2, 2), "w": normal(d, g * 2, 2), "r": normal(d, g * 2, 2)}
    feeds["b"] = normal(d, g * 4)
    if more:
        feeds.update(lens=np.asarray([3, 1], np.int32), h=normal(d, 2, 2), c=normal(d, 2, 2), p=normal(d, 6))
    options = {"hidden_size": 2, "direction": direction, **attributes}
    outputs, kind = (3 if op_type == "LSTM" else 2), (np.float32 if more else np.float64)
    return Twice(op_type, feeds, options, outputs, kind, reference=not more)


CASES = {
    "rnn": recurrent("RNN"),
    "gru": recurrent("GRU", "bidirectional"),
    "gru_linear": recurrent("GRU", linear_before_reset=1),
    "lstm": recurrent("LSTM", "bidirectional"),
    "lstm_peepholes": recurrent("LSTM", more="lens h c p"),
    "conv": Twice("Conv", {"x": normal(1, 2, 7), "w": normal(3, 2, 3)}, {"strides": [2], "pads": [1, 0]}),
    "conv_symbolic": Twice("Conv", {"x": normal(1, 2, 7), "w": normal(3, 2, 3)}, {"strides": [2]}, dims="symbolic"),
    "conv_groups": Twice("Conv", {"x": normal(1, 4, 5), "w": normal(2, 2, 3)}, {"group": 2}),
    "conv_transpose": Twice("ConvTranspose", {"x": normal(1, 2, 3), "w": normal(2, 3, 3)}, {"strides": [2]}),
    "deform_conv": Twice(
        "DeformConv",
        {"x": normal(1, 1, 3, 3), "w": normal(1, 1, 2, 2), "o": normal(1, 8, 2, 2)},
        {"kernel_shape": [2, 2]},
        kind=np.float64,
    ),
    "max_pool": Twice("MaxPool", {"x": normal(1, 2, 6)}, {"kernel_shape": [2]}, kind=np.float64),
    "average_pool": Twice("AveragePool", {"x": normal(1, 2, 6)}, {"kernel_shape": [2], "pads": [1, 0]}),
    "lp_pool": Twice("LpPool", {"x": normal(1, 2, 6)}, {"kernel_shape": [2]}),
    "global_max": Twice("GlobalMaxPool", {"x": normal(1, 2, 6)}),
    "global_average": Twice("GlobalAveragePool", {"x": normal(1, 2, 6)}),
    "global_norm": Twice("GlobalLpPool", {"x": normal(1, 2, 6)}),
    "resize": Twice(
        "Resize",
        {"x": normal(1, 1, 3, 4), "": None, "scales": np.asarray([1, 1, 2, 1.5], np.float32)},
        {"mode": "linear"},
        fixed="scales",
    ),
    "grid": Twice("GridSample", {"x": normal(1, 2, 3, 4), "g": RNG.uniform(-1.3, 1.3, (1, 2, 2, 2))}, kind=np.float64),
    "grid_cubic": Twice(
        "GridSample",
        {"x": normal(1, 2, 3, 4), "g": RNG.uniform(-1.3, 1.3, (1, 2, 2, 2))},
        {"mode": "cubic", "padding_mode": "reflection"},
        kind=np.float64,
    ),
    "col2im": Twice("Col2Im", {"x": normal(1, 4, 4), "i": np.asarray([3, 3]), "b": np.asarray([2, 2])}),
    "roi_align": Twice(
        "RoiAlign",
        {"x": normal(1, 1, 4, 4), "rois": np.asarray([[0, 0, 3, 3.0]]), "owners": np.asarray([0])},
        {"output_height": 2, "output_width": 2},
        kind=np.float64,
        fixed="rois",
    ),
    "dft": Twice("DFT", {"x": normal(1, 4, 1)}, {"onesided": 1}, kind=np.float64),
    "stft": Twice("STFT", {"x": normal(1, 12, 1), "step": np.asarray(3), "w": normal(4)}, kind=np.float64),
    "attention": Twice(
        "Attention", {"q": normal(1, 2, 3, 4), "k": normal(1, 2, 3, 4), "v": normal(1, 2, 3, 4)}, opset=23
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_a_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    monkeypatch.setitem(oracle.RUNNERS, "reference", run_in_reference)
    feeds = {k: a.astype(case.kind) if a.dtype.kind == "f" and k != "scales" else a for k, a in case.feeds.items() if k}
    outputs = ["y", "y_h", "y_c"][: case.outputs]
    node = helper.make_node(case.op_type, list(case.feeds), outputs, **case.attributes)
    wrt = [k for k, a in feeds.items() if a.dtype.kind == "f" and k not in case.fixed.split()]
    primal = node_model(node, feeds, opset=case.opset, dims=case.dims)
    first, seeds = first_order(
        primal, (run_in_reference if case.reference else run_ort)(primal, feeds), feeds, wrt, None
    )
    narrow = case.kind == np.float32
    assert_vjp(
        first,
        {**feeds, **seeds},
        wrt=[*wrt, *seeds],
        runner="reference" if case.reference else "ort",
        check=False,
        step=3e-3 if narrow else None,
        atol=2e-3 if narrow else 1e-6,
    )
