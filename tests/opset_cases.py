"""Nodes of older opsets whose operators changed since, each with what it is fed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """One node of an older opset: the first inputs are fed, the others are initializers."""

    name: str
    opset: int
    op_type: str
    fed: Sequence[Array]
    constants: Sequence[Array | None] = ()
    outputs: int = 1
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])


def random(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(dtype)


def case(
    opset: int,
    op_type: str,
    *fed: Array,
    constants: Sequence[Array | None] = (),
    outputs: int = 1,
    title: str = "",
    **attributes: Any,
) -> Case:
    text = title or "-".join(f"{k}={v}".replace(" ", "") for k, v in attributes.items())
    return Case(f"{op_type}-{opset}-{text}", opset, op_type, fed, constants, outputs, attributes)


X = random(2, 3, 4)
IMAGE = random(1, 2, 6, 8)
I64 = np.int64

AXES = [
    case(11, "Squeeze", random(1, 3, 1), axes=[0]),
    case(11, "Squeeze", random(1, 3, 1), axes=[-1]),
    case(11, "Squeeze", random(1, 3, 1)),
    case(7, "Squeeze", random(1, 3, 1), axes=[0, 2]),
    case(12, "Unsqueeze", X, axes=[0, 2]),
    case(11, "Unsqueeze", X, axes=[-1]),
    case(7, "Unsqueeze", X, axes=[1]),
    case(12, "ReduceSum", X, axes=[-1], keepdims=0),
    case(11, "ReduceSum", X),
    *(
        case(opset, f"Reduce{kind}", np.abs(X) + 1, axes=[0, 2], keepdims=0)
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
        for opset in (8, 13, 17)
    ),
    case(17, "ReduceMean", X, keepdims=0),
]
BOUNDS = [
    case(11, "Split", X, outputs=2, axis=2, split=[1, 3]),
    case(7, "Split", X, outputs=2, axis=2),
    case(13, "Split", X, constants=[np.array([1, 3], I64)], outputs=2, axis=2, title="sizes"),
    case(17, "Split", X, outputs=3, axis=1),
    case(9, "Slice", X, starts=[1, -3], ends=[3, 2**31 - 1], axes=[1, 2]),
    case(9, "Slice", X, starts=[0, 1], ends=[1, 3]),
    case(9, "TopK", X, outputs=2, k=2, axis=1),
    case(10, "TopK", X, constants=[np.array([2], I64)], outputs=2, title="k"),
    case(10, "Clip", X, min=-0.5, max=0.5),
    case(7, "Clip", X, min=0.1),
    case(9, "Clip", X, max=0.1),
    case(8, "Clip", X),
    case(10, "Pad", X, pads=[0, 1, 2, 0, 0, 1], value=1.5),
    case(10, "Pad", X, pads=[0, 1, 0, 0, 0, 1]),
    case(7, "Pad", X, pads=[0, 1, 1, 0, 0, 1], mode="reflect"),
    case(7, "Pad", X, pads=[0, 1, -1, 0, 0, 1], mode="edge"),
    case(10, "Pad", random(2, 2, dtype=np.float64), pads=[1, 0, 0, 1], value=-2.0, title="float64"),
]
CHANNELS = [random(3), random(3), random(3), np.abs(random(3)) + 1]
ELEMENTS = [random(3, 4), random(3, 4), random(3, 4), np.abs(random(3, 4)) + 1]
NORMALISATIONS = [
    *(case(opset, "Softmax", X, axis=axis) for opset in (7, 12) for axis in (0, 1, 2)),
    *(case(12, op_type, X, axis=axis) for op_type in ("Softmax", "LogSoftmax", "Hardmax") for axis in (-1, -2, -3, 2)),
    case(11, "Softmax", X),
    case(12, "LogSoftmax", X),
    case(12, "Hardmax", X),
    case(12, "Softmax", random(2, 0, 3), axis=2, title="nothing"),
    case(7, "BatchNormalization", X, constants=CHANNELS),
    case(8, "BatchNormalization", X, constants=CHANNELS, spatial=1, epsilon=0.1, momentum=0.5),
    case(7, "BatchNormalization", X, constants=ELEMENTS, spatial=0, epsilon=0.1),
    case(9, "BatchNormalization", X, constants=CHANNELS, epsilon=0.1),
    case(14, "BatchNormalization", X, constants=CHANNELS, epsilon=0.1),
    case(9, "MeanVarianceNormalization", IMAGE, axes=[0, 2, 3]),
    case(7, "Dropout", X, ratio=0.9),
    case(10, "Dropout", X, ratio=0.9),
    case(11, "Dropout", X),
]
SMALLER, LARGER, MIXED = (np.array([1, 1, *s], np.float32) for s in ((0.5, 0.4), (2, 1.5), (0.4, 1.5)))
ROIS = [np.array([[0.3, 0.2, 3.1, 4.4]], np.float32), np.array([0], I64)]
RESAMPLING = [
    case(7, "Upsample", IMAGE, scales=[1.0, 1.0, 2.0, 1.5], mode="nearest"),
    case(8, "Upsample", IMAGE, scales=[1.0, 1.0, 2.0, 3.0], mode="linear"),
    case(9, "Upsample", IMAGE, constants=[LARGER], mode="linear"),
    case(9, "Upsample", IMAGE, LARGER, title="dynamic"),
    *(
        case(10, "Resize", IMAGE, constants=[scales], mode=mode, title=f"{mode}-{name}")
        for mode in ("nearest", "linear")
        for name, scales in (("smaller", SMALLER), ("larger", LARGER), ("mixed", MIXED))
    ),
    *(
        case(10, "Resize", IMAGE, scales, title=f"dynamic-{name}")
        for name, scales in (("smaller", SMALLER), ("larger", LARGER), ("mixed", MIXED))
    ),
    *(
        case(
            opset,
            "Resize",
            IMAGE,
            constants=[np.zeros(0, np.float32), np.zeros(0, np.float32), np.array([1, 2, 5, 11], I64)],
            mode=mode,
        )
        for opset in (11, 12)
        for mode in ("nearest", "linear", "cubic")
    ),
    case(
        11,
        "Resize",
        IMAGE,
        constants=[np.zeros(0, np.float32), MIXED],
        coordinate_transformation_mode="tf_half_pixel_for_nn",
        nearest_mode="floor",
    ),
    case(11, "Resize", IMAGE, constants=[np.zeros(0, np.float32), MIXED], coordinate_transformation_mode="asymmetric"),
    case(13, "Resize", IMAGE, constants=[None, LARGER], mode="cubic", title="cubic"),
    case(10, "RoiAlign", IMAGE, constants=ROIS, output_height=2, output_width=3, sampling_ratio=2),
    case(
        9,
        "Scatter",
        X,
        constants=[np.array([[[1, 0, 3, 2]]], I64), np.ones((1, 1, 4), np.float32)],
        axis=2,
    ),
]
UNCHANGED = [
    case(7, "Gemm", random(2, 3), constants=[random(3, 4), random(4)], alpha=0.5),
    case(7, "Conv", IMAGE, constants=[random(3, 2, 3, 3)], pads=[1, 1, 1, 1]),
    case(7, "ConvTranspose", IMAGE, constants=[random(2, 3, 3, 3)], strides=[2, 2], auto_pad="SAME_UPPER"),
    case(7, "AveragePool", IMAGE, kernel_shape=[2, 3], strides=[1, 2], pads=[0, 1, 1, 1]),
    case(8, "MaxPool", IMAGE, outputs=2, kernel_shape=[2, 3], strides=[2, 2]),
    case(7, "LpPool", IMAGE, kernel_shape=[2, 2], p=3),
    case(7, "LRN", IMAGE, size=3),
    case(7, "LSTM", X, constants=[random(1, 20, 4), random(1, 20, 5), random(1, 40)], outputs=3, hidden_size=5),
    case(7, "GRU", X, constants=[random(1, 15, 4), random(1, 15, 5)], outputs=2, hidden_size=5, linear_before_reset=1),
    case(7, "RNN", X, constants=[random(1, 5, 4), random(1, 5, 5)], outputs=2, hidden_size=5),
    case(7, "PRelu", X, constants=[random(4)]),
    case(8, "Expand", X, constants=[np.array([2, 1, 3, 4], I64)]),
    case(9, "OneHot", np.array([0, 2, 1], I64), constants=[np.array([3], I64), np.array([0.0, 2.0], np.float32)]),
    case(7, "ArgMax", X, axis=1, keepdims=0),
    case(7, "Pow", np.abs(X), constants=[np.array(1.5, np.float32)]),
    case(10, "Mod", X, constants=[np.array(0.7, np.float32)], fmod=1),
    case(11, "CumSum", X, constants=[np.array(1, np.int32)], exclusive=1),
    case(7, "DepthToSpace", random(1, 4, 2, 3), blocksize=2),
    case(7, "InstanceNormalization", X, constants=[random(3), random(3)]),
    case(11, "ScatterND", X, constants=[np.array([[1, 2]], I64), np.ones((1, 4), np.float32)]),
    case(9, "Where", np.array([True, False]), constants=[np.array([1, 2], np.float32), np.array([3, 4], np.float32)]),
    case(7, "Concat", X, constants=[X], axis=1),
    case(7, "Gather", X, constants=[np.array([2, 0], I64)], axis=1),
]
CASES = [*AXES, *BOUNDS, *NORMALISATIONS, *RESAMPLING, *UNCHANGED]
