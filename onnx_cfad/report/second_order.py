"""Second derivatives that tests compare with differences: the operators, by the first test that has each.

Made by `python -m tests.rules.second_order_operators > onnx_cfad/report/second_order.py`; do not edit.
"""

from __future__ import annotations

from typing import Final

TESTED_TWICE: Final = {
    "tests/rules/test_activations.py::test_second_order": """
        Elu Gelu HardSigmoid HardSwish LeakyRelu LogSoftmax Mish PRelu Relu Selu Shrink Sigmoid Softmax Softplus
        Softsign Swish ThresholdedRelu
    """,
    "tests/rules/test_activations.py::test_swiglu_which_onnxruntime_lacks": """
        SwiGLU
    """,
    "tests/rules/test_einsum.py::test_second_order": """
        Einsum
    """,
    "tests/rules/test_einsum.py::test_second_order_of_determinant": """
        Det
    """,
    "tests/rules/test_elementwise.py::test_second_order": """
        Abs Acos Acosh Add Asin Asinh Atan Atanh Cos Cosh Div Erf Exp Identity Log Max Mean Min Mul Neg Pow
        Reciprocal Sin Sinh Sqrt Sub Sum Tan Tanh Where
    """,
    "tests/rules/test_indexing.py::test_second_order": """
        Compress Gather GatherElements GatherND TopK
    """,
    "tests/rules/test_linalg.py::test_gemm_second_order": """
        Gemm
    """,
    "tests/rules/test_linalg.py::test_second_order": """
        MatMul
    """,
    "tests/rules/test_losses.py::test_second_order": """
        NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss
    """,
    "tests/rules/test_named_operators.py::test_sequence_map_twice": """
        ConcatFromSequence SequenceConstruct
    """,
    "tests/rules/test_network_second_order.py::test_gradient_of_a_gradient": """
        Attention AveragePool Col2Im Conv ConvTranspose DFT DeformConv GRU GlobalAveragePool GlobalLpPool
        GlobalMaxPool GridSample LSTM LpPool MaxPool RNN Resize RoiAlign STFT
    """,
    "tests/rules/test_normalization.py::test_second_order": """
        BatchNormalization GroupNormalization InstanceNormalization LayerNormalization LpNormalization
        RMSNormalization
    """,
    "tests/rules/test_reductions.py::test_norm_of_the_zero_vector_has_the_subgradient_zero": """
        ReduceL2
    """,
    "tests/rules/test_reductions.py::test_second_order": """
        ReduceL1 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
        ReduceSumSquare
    """,
    "tests/rules/test_reductions.py::test_second_order_of_running": """
        CumProd CumSum
    """,
    "tests/rules/test_second_order_of_the_rest.py::test_gradient_of_a_gradient": """
        AffineGrid Cast CastLike CausalConvWithState Celu Clip DequantizeLinear Dropout DynamicQuantizeLinear
        LRN MaxRoiPool MaxUnpool MeanVarianceNormalization Mod OneHot Optional OptionalGetElement Range
        RotaryEmbedding ScatterElements ScatterND SequenceAt SequenceErase SequenceInsert
        SimplifiedLayerNormalization SplitToSequence TensorScatter Trilu Unique
        ai.onnx.ml::ArrayFeatureExtractor ai.onnx.ml::Imputer ai.onnx.ml::LinearClassifier
        ai.onnx.ml::LinearRegressor ai.onnx.ml::Normalizer ai.onnx.ml::SVMRegressor ai.onnx.ml::Scaler
        com.microsoft::Attention com.microsoft::BiasGelu com.microsoft::EmbedLayerNormalization
        com.microsoft::FastGelu com.microsoft::FusedMatMul com.microsoft::Gelu
        com.microsoft::GroupQueryAttention com.microsoft::MatMulNBits com.microsoft::MultiHeadAttention
        com.microsoft::QuickGelu com.microsoft::RotaryEmbedding com.microsoft::SkipLayerNormalization
        com.microsoft::SkipSimplifiedLayerNormalization com.microsoft::TransposeMatMul
    """,
    "tests/rules/test_shape.py::test_second_order": """
        CenterCropPad Concat DepthToSpace Expand Flatten Pad Reshape ReverseSequence SpaceToDepth Split Squeeze
        Tile Transpose Unsqueeze
    """,
    "tests/rules/test_slicing.py::test_second_order": """
        Slice
    """,
}

ORDER_TWO: Final = frozenset(name for names in TESTED_TWICE.values() for name in names.split())
"""``domain::operator``, the domain left out where it is the default one."""
