"""Rules for the fused operators (com.microsoft) that the optimisers of ONNX Runtime and Olive write into files.

ONNX Runtime's CPU kernels are the reference for what an operator means.
"""

from onnx_cfad.rules.com_microsoft import (
    activations,  # noqa: F401
    attention,  # noqa: F401
    grouped_attention,  # noqa: F401
    normalization,  # noqa: F401
    products,  # noqa: F401
)
