"""Linear systems (I - A) u = b solved by ONNX Loops, where A is known only by what it does to a vector."""
