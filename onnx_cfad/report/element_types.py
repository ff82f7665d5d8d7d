"""Operators whose derivatives in 16-bit types tests compare with differences, by what runs them.

Made by `python -m tests.rules.element_types > onnx_cfad/report/element_types.py`; do not edit.
"""

from __future__ import annotations

from typing import Final

SIXTEEN_BIT: Final = {
    "float16": {
        "runtime": """
            Abs Acos Acosh Add AffineGrid Asin Asinh Atan Atanh Attention AveragePool BatchNormalization
            Cast CausalConvWithState Celu CenterCropPad Clip Col2Im Compress Concat ConcatFromSequence Conv
            ConvTranspose Cos Cosh CumProd CumSum DFT DeformConv DepthToSpace Det Div Dropout Einsum Elu Erf
            Exp Expand Flatten GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool
            GlobalMaxPool GridSample GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization
            LRN LSTM LayerNormalization LeakyRelu Log LogSoftmax LpNormalization LpPool MatMul Max MaxPool
            MaxRoiPool MaxUnpool Mean Min Mish Mod Mul Neg NegativeLogLikelihoodLoss OneHot Optional
            OptionalGetElement PRelu Pad Pow RMSNormalization Range Reciprocal ReduceL1 ReduceL2
            ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
            Relu Reshape Resize ReverseSequence RotaryEmbedding STFT ScatterElements Selu SequenceAt
            SequenceConstruct SequenceErase SequenceInsert Shrink Sigmoid Sin Sinh Slice Softmax
            SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split SplitToSequence Sqrt Squeeze Sub
            Sum Swish Tan Tanh TensorScatter ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze
            Where
        """,
        "reference": """
            CastLike DequantizeLinear RNN RoiAlign ScatterND SwiGLU
        """,
    },
    "bfloat16": {
        "reference": """
            Abs Acos Acosh Add AffineGrid Asin Asinh Atan Atanh Attention BatchNormalization Cast CastLike
            Celu CenterCropPad Clip Col2Im Compress Concat Cos Cosh CumProd CumSum DFT DeformConv
            DepthToSpace DequantizeLinear Det Div Dropout Einsum Elu Erf Exp Expand Flatten GRU Gather
            GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool GridSample GroupNormalization
            HardSigmoid HardSwish Identity InstanceNormalization LRN LSTM LayerNormalization LeakyRelu Log
            LogSoftmax LpNormalization MatMul Max MaxPool MaxUnpool Mean Min Mish Mod Mul Neg
            NegativeLogLikelihoodLoss OptionalGetElement PRelu Pow RMSNormalization RNN Range Reciprocal
            ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
            ReduceSum ReduceSumSquare Relu Reshape Resize ReverseSequence RoiAlign RotaryEmbedding
            ScatterElements ScatterND Selu Sigmoid Sin Sinh Slice Softmax SoftmaxCrossEntropyLoss Softplus
            Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum SwiGLU Swish Tan Tanh TensorScatter
            ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Where
        """,
        "formula": """
            AveragePool CausalConvWithState Conv ConvTranspose LpPool Pad STFT
        """,
    },
}
