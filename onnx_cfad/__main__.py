"""``python -m onnx_cfad`` is the command line."""

from onnx_cfad.cli import main

main()
