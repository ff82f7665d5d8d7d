"""What runs a differentiated model besides ONNX Runtime: compilers, each behind its own environment."""
