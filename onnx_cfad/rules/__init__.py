"""VJP rules, grouped as the ONNX documentation groups the operators. Importing the package fills the registry."""

from onnx_cfad.rules import elementwise  # noqa: F401
