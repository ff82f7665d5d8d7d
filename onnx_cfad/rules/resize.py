"""Resize: y is linear in x, axis by axis.

The matrix of an axis is what the operator makes of the unit vectors of that axis, W = Resize(eye), in whatever mode
and coordinate transformation. The cotangent is multiplied with each transposed matrix. Two cases go their own way:
nearest with a whole factor repeats elements, so blocks are summed; a policy that ties the axes together
(keep_aspect_ratio_policy) is taken through the unit vectors of all axes at once. Scales and a region of interest move
the places that are read (``resize_places``); for nearest their derivative is zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, full, op
from onnx_cfad.rules.registry import vjp
from onnx_cfad.rules.resize_places import Axis
from onnx_cfad.rules.windows import Size, size_of, vector

Operand = Callable[[], Expr] | None
_CENTRED = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")


@dataclasses.dataclass(frozen=True)
class Stretch:
    """A Resize node.

    Attributes:
        x: Its input.
        roi: Starts and ends of the axes, or None.
        scales: Factors of the axes, or None.
        sizes: New sizes of the axes, or None.
        rank: The rank of ``x``.
        axes: The axes that these count.
        attributes: The attributes that say how a value between elements is made.
    """

    x: Expr
    roi: Expr | None
    scales: Expr | None
    sizes: Expr | None
    rank: int
    axes: Sequence[int]
    attributes: dict[str, Any]

    def changed(self, y: Expr) -> list[int]:
        """The positions in ``axes`` of those that are not certainly left as they are."""
        return [position for position in range(len(self.axes)) if not self._is_kept(position, y)]

    def _is_kept(self, position: int, y: Expr) -> bool:
        if self.attributes["coordinate_transformation_mode"] == "tf_crop_and_resize":
            known = self._roi_of(position)
            if known is None or list(known) != [0, 1]:
                return False
        if self.scales is not None:
            return self.scales.const is not None and float(self.scales.const[position]) == 1.0
        before, after = self.x.value.shape, y.value.shape
        if before is None or after is None:
            return False
        a, b = before[self.axes[position]], after[self.axes[position]]
        return a == b if isinstance(a, int) or isinstance(b, int) else a.value is not None and a.value == b.value

    def _roi_of(self, position: int) -> Sequence[float] | None:
        if self.roi is None or self.roi.const is None:
            return None
        return [float(self.roi.const[position]), float(self.roi.const[position + len(self.axes)])]

    def repeats(self, position: int) -> int | None:
        """The whole factor by which nearest repeats each element of an axis; None where it is not that simple."""
        factor = self._whole_factor(position)
        if factor is None or self.attributes["mode"] != "nearest":
            return None
        coordinates, rounding = self.attributes["coordinate_transformation_mode"], self.attributes["nearest_mode"]
        if coordinates in _CENTRED and rounding.startswith("round"):
            return factor
        if coordinates == "asymmetric" and (rounding == "floor" or (rounding == "round_prefer_floor" and factor == 2)):
            return factor
        return None

    def _whole_factor(self, position: int) -> int | None:
        known = size_of(self.x, self.axes[position])
        if self.scales is not None:
            factor = None if self.scales.const is None else float(self.scales.const[position])
        elif self.sizes is not None and self.sizes.const is not None and isinstance(known, int) and known:
            factor = int(self.sizes.const[position]) / known
        else:
            factor = None
        return int(factor) if factor is not None and factor >= 1 and factor == int(factor) else None

    def matrix(self, position: int) -> Expr:
        """What an axis of S elements becomes, from unit vectors: [S, O]."""
        units = identity(size_of(self.x, self.axes[position]), self.x.dtype, self.x.builder)
        part = [position]
        result = op.Resize(
            units.unsqueeze([0, 1]),
            None if self.roi is None else op.Gather(self.roi, [position, position + len(self.axes)]),
            None if self.scales is None else op.Gather(self.scales, part),
            None if self.sizes is None else op.Gather(self.sizes, part),
            **self.attributes,
            axes=[3],
        )
        return op.Squeeze(result, [0, 1])

    def whole_map(self, ct: Expr, changed: Sequence[int]) -> Expr:
        """The cotangent by the unit vectors of all changed axes at once."""
        axes = [self.axes[position] for position in changed]
        others = [axis for axis in range(self.rank) if axis not in axes]
        sizes = [size_of(self.x, axis) for axis in axes]
        count = op.ReduceProd(vector(sizes, self.x.builder), keepdims=1)
        units = op.Reshape(
            identity(count, self.x.dtype, self.x.builder), op.Concat([-1, 1], vector(sizes, ct.builder), axis=0)
        )
        parts = [None if v is None else op.Gather(v, list(changed)) for v in (self.scales, self.sizes)]
        roi = None if self.roi is None else op.Gather(self.roi, [*changed, *(p + len(self.axes) for p in changed)])
        mapped = op.Resize(units, roi, *parts, **self.attributes, axes=list(range(2, 2 + len(axes))))
        matrix = op.Flatten(mapped, axis=1)
        moved = op.Transpose(ct, perm=[*others, *axes])
        flat = op.Flatten(moved, axis=len(others))
        result = op.MatMul(flat, op.Transpose(matrix, perm=[1, 0]))
        shape = op.Gather(self.x.shape, [*others, *axes])
        back = [int(k) for k in np.argsort([*others, *axes])]
        return op.Transpose(result.reshape(shape), perm=back)


@vjp("Resize")
def resize(
    ct: Expr,
    y: Expr,
    x: Expr,
    roi: Expr | None = None,
    scales: Expr | None = None,
    sizes: Expr | None = None,
    *,
    antialias: int,
    axes: Sequence[int] | None,
    coordinate_transformation_mode: str,
    cubic_coeff_a: float,
    exclude_outside: int,
    extrapolation_value: float,
    keep_aspect_ratio_policy: str,
    mode: str,
    nearest_mode: str,
) -> tuple[Callable[[], Expr], Operand, Operand, None]:
    attributes = {
        "antialias": antialias or None,
        "coordinate_transformation_mode": coordinate_transformation_mode,
        "cubic_coeff_a": cubic_coeff_a,
        "exclude_outside": exclude_outside,
        "mode": mode,
        "nearest_mode": nearest_mode,
    }
    scales = _given(scales)
    tied = keep_aspect_ratio_policy != "stretch" and sizes is not None
    if tied:
        attributes["keep_aspect_ratio_policy"] = keep_aspect_ratio_policy
    cropping = coordinate_transformation_mode == "tf_crop_and_resize"
    rank = _rank(x, y, axes, scales if sizes is None else sizes)
    counted = [axis % rank for axis in axes] if axes else list(range(rank))
    node = Stretch(x, roi if cropping else None, scales, sizes, rank, counted, attributes)

    def by_x() -> Expr:
        changed = node.changed(y)
        if not changed:
            return ct
        return node.whole_map(ct, list(range(len(counted)))) if tied else _by_axis(node, ct, changed)

    by_roi = (lambda: _by_region(node, ct, y)) if cropping and mode != "nearest" else None
    places = coordinate_transformation_mode in ("align_corners", "tf_crop_and_resize") and not antialias
    fixed = scales is None or mode == "nearest" or places
    return by_x, by_roi, None if fixed else lambda: _by_scales(node, ct, y), None


def _given(operand: Expr | None) -> Expr | None:
    """An operand; None also where it is an empty tensor, as opset 11 wrote what is absent and exporters still do."""
    return None if operand is not None and operand.has_rank and operand.dims == (0,) else operand


def _by_scales(node: Stretch, ct: Expr, y: Expr) -> Expr:
    assert node.scales is not None
    found = [_axis(node, p, y).by_scale(_products(node, ct, p)) for p in range(len(node.axes))]
    return op.Concat(*(x.unsqueeze([0]) for x in found), axis=0).cast(node.scales.dtype)


def _by_region(node: Stretch, ct: Expr, y: Expr) -> Expr:
    """The derivative by the region, whose places need no factor: sizes stand for those, however they came about."""
    assert node.roi is not None
    sizes = op.Gather(y.shape, list(node.axes))
    attributes = {key: value for key, value in node.attributes.items() if key != "keep_aspect_ratio_policy"}
    sized = dataclasses.replace(node, scales=None, sizes=sizes, attributes=attributes)
    used = sized if node.scales is None else node
    found = [_axis(used, p, y).by_region(_products(used, ct, p)) for p in range(len(node.axes))]
    parts = [*(start for start, _ in found), *(end for _, end in found)]
    return op.Concat(*(x.unsqueeze([0]) for x in parts), axis=0).cast(node.roi.dtype)


def _axis(node: Stretch, position: int, y: Expr) -> Axis:
    """An axis, with scalars in the type that weights are computed in."""
    axis, kind = node.axes[position], _computed(node.x.dtype)
    before, after = (op.Squeeze(v.dim(axis), [0]).cast(kind) for v in (node.x, y))
    scale = after / before if node.scales is None else _scalar(node.scales, position, kind)
    region = None
    if node.roi is not None:
        region = _scalar(node.roi, position, kind), _scalar(node.roi, position + len(node.axes), kind)
    known = node.attributes
    cubic = known["cubic_coeff_a"] if known["mode"] == "cubic" else None
    coordinates = known["coordinate_transformation_mode"]
    return Axis(
        before, after, scale, region, coordinates, cubic, bool(known["exclude_outside"]), bool(known["antialias"])
    )


def _scalar(values: Expr, position: int, kind: ir.DataType) -> Expr:
    return op.Gather(values, values.builder.constant(np.int64(position))).cast(kind)


def _computed(dtype: ir.DataType) -> ir.DataType:
    return dtype if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT


def _products(node: Stretch, ct: Expr, position: int) -> Expr:
    """The input times the cotangent, summed over all axes but one: [S, O]."""
    for other in range(len(node.axes)):
        if other != position:
            ct = _along(ct, node.matrix(other), node.axes[other], node.rank)
    axis = node.axes[position]
    order = [axis, *(k for k in range(node.rank) if k != axis)]
    flat = [op.Flatten(op.Transpose(v, perm=order), axis=1).cast(_computed(v.dtype)) for v in (node.x, ct)]
    return flat[0] @ op.Transpose(flat[1], perm=[1, 0])


def _rank(x: Expr, y: Expr, axes: Sequence[int] | None, counted: Expr | None) -> int:
    """The rank of ``x``, which the number of factors or sizes gives too where they are for all axes."""
    if not x.has_rank and y.has_rank:
        return y.rank
    number = counted.dims[0] if counted is not None and counted.has_rank and not axes else None
    return x.rank if x.has_rank or number is None else number


def _by_axis(node: Stretch, ct: Expr, changed: Sequence[int]) -> Expr:
    repeated = {node.axes[p]: factor for p in changed if (factor := node.repeats(p)) is not None}
    if repeated and not node.attributes["antialias"]:
        ct = _summed_blocks(ct, node, repeated)
    for position in changed:
        axis = node.axes[position]
        if axis not in repeated:
            ct = _along(ct, node.matrix(position), axis, node.rank)
    return ct


def _summed_blocks(ct: Expr, node: Stretch, factors: dict[int, int]) -> Expr:
    """Sums ``ct`` over blocks of ``factors[axis]`` elements along each axis."""
    sizes: list[Size] = []
    summed: list[int] = []
    for axis in range(node.rank):
        sizes.append(size_of(node.x, axis) if axis in factors else size_of(ct, axis))
        if axis in factors:
            summed.append(len(sizes))
            sizes.append(factors[axis])
    return op.Reshape(ct, vector(sizes, ct.builder)).sum(summed)


def _along(ct: Expr, matrix: Expr, axis: int, rank: int) -> Expr:
    """``ct`` [..., O, ...] multiplied with ``matrix`` [S, O] along ``axis``: [..., S, ...]."""
    if axis == rank - 2:
        return matrix @ ct
    across = op.Transpose(matrix, perm=[1, 0])
    if axis == rank - 1:
        return ct @ across
    swap = list(range(rank))
    swap[axis], swap[-1] = swap[-1], swap[axis]
    return op.Transpose(op.Transpose(ct, perm=swap) @ across, perm=swap)


def identity(size: Size, dtype: ir.DataType, builder: Builder) -> Expr:
    """The unit matrix [size, size]."""
    if isinstance(size, int) and size <= 64:
        return builder.constant(np.eye(size), dtype)
    whole = dtype if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    square = full(vector([size, size], builder), 0, whole, builder)
    return op.EyeLike(square).cast(dtype)
