"""ConvTranspose for ONNX's reference evaluator: the one that comes with it (onnx 1.23) is 40 times slower."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun


class ConvTranspose(OpRun):
    """Adds each input element, times the kernel, into the output at its place; explicit padding only."""

    op_domain = ""

    def _run(self, x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, **attributes: Any) -> tuple[np.ndarray]:
        rank = x.ndim - 2
        if attributes.get("auto_pad") not in (None, "NOTSET") or attributes.get("output_shape"):
            raise NotImplementedError("ConvTranspose with automatic padding")
        strides = attributes.get("strides") or [1] * rank
        dilations = attributes.get("dilations") or [1] * rank
        pads = attributes.get("pads") or [0] * (2 * rank)
        extra = attributes.get("output_padding") or [0] * rank
        groups = attributes.get("group") or 1
        sizes = [(x.shape[2 + i] - 1) * strides[i] + (w.shape[2 + i] - 1) * dilations[i] + 1 for i in range(rank)]
        full = np.zeros((x.shape[0], groups * w.shape[1], *(sizes[i] + extra[i] for i in range(rank))), x.dtype)
        grouped = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
        kernels = w.reshape(groups, -1, *w.shape[1:])
        for offset in np.ndindex(*w.shape[2:]):
            products = np.einsum("ngc...,gcm->ngm...", grouped, kernels[(..., *offset)])
            starts = [offset[i] * dilations[i] for i in range(rank)]
            places = [
                slice(starts[i], starts[i] + (x.shape[2 + i] - 1) * strides[i] + 1, strides[i]) for i in range(rank)
            ]
            full[(..., *places)] += products.reshape(x.shape[0], -1, *x.shape[2:])
        y = full[(..., *(slice(pads[i], full.shape[2 + i] - pads[rank + i]) for i in range(rank)))]
        return (y if b is None else y + b.reshape(-1, *[1] * rank),)
