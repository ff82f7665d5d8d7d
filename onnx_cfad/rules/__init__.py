"""VJP rules, grouped as the ONNX documentation groups the operators. Importing the package fills the registry."""

from onnx_cfad.rules import (
    activations,  # noqa: F401
    ai_onnx_ml,  # noqa: F401
    batch_normalization,  # noqa: F401
    casts,  # noqa: F401
    columns,  # noqa: F401
    com_microsoft,  # noqa: F401
    convolution,  # noqa: F401
    cumulative,  # noqa: F401
    deformable,  # noqa: F401
    determinant,  # noqa: F401
    einsum,  # noqa: F401
    elementwise,  # noqa: F401
    function_body,  # noqa: F401
    generation,  # noqa: F401
    grid,  # noqa: F401
    gru,  # noqa: F401
    indexing,  # noqa: F401
    linalg,  # noqa: F401
    linear,  # noqa: F401
    losses,  # noqa: F401
    lstm,  # noqa: F401
    normalization,  # noqa: F401
    pooling,  # noqa: F401
    reductions,  # noqa: F401
    regions,  # noqa: F401
    resize,  # noqa: F401
    rnn,  # noqa: F401
    scattering,  # noqa: F401
    sequences,  # noqa: F401
    shape,  # noqa: F401
    signal,  # noqa: F401
    slicing,  # noqa: F401
    straight_through,  # noqa: F401
    tangents,  # noqa: F401
)
