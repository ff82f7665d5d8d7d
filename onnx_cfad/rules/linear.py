"""Operators that are linear in inputs: their tangent is the operator applied to the tangents of these.

Where it is linear in several inputs together (data and updates of a scatter), an absent tangent is zeros. A product
is linear in each factor alone: its tangent is a sum.
"""

from __future__ import annotations

from onnx_cfad.rules.registry import linear

linear("Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Tile", "CenterCropPad")
linear("Gather", "GatherElements", "GatherND", "Compress", "ReverseSequence", "Trilu", "DepthToSpace", "SpaceToDepth")
linear("ReduceSum", "ReduceMean", "CumSum", "AveragePool", "GlobalAveragePool", "Col2Im", "MaxUnpool", "DFT")
linear("AffineGrid", "SequenceErase", "SequenceAt", "ConcatFromSequence", "SplitToSequence")
linear("Optional", "OptionalGetElement")
linear("Concat", "SequenceConstruct", groups=None)
linear("SequenceInsert", "TensorScatter", groups=((0, 1),))
linear("Pad", groups=((0, 2),))
linear("DequantizeLinear", groups=((1,),))
linear("OneHot", groups=((2,),))
linear("MatMul", groups=((0,), (1,)))
linear("Gemm", "Conv", "ConvTranspose", groups=((0,), (1,)), added=(2,))
linear("Resize", offsets=("extrapolation_value",))
