"""CUDA: bodies of a host program as kernels in CUDA C, what nvcc makes of them, and what launches them."""
