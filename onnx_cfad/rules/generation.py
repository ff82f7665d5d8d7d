"""Operators whose output does not depend on the values of a floating-point input: no derivative passes through them."""

from __future__ import annotations

from onnx_cfad.rules.registry import nondifferentiable

nondifferentiable("Shape", "Size", reason="a shape does not depend on the elements")
nondifferentiable(
    "Constant", "ConstantOfShape", "EyeLike", reason="its elements are fixed; an input gives the shape only"
)
nondifferentiable("NonZero", reason="the positions of nonzero elements are integers")
nondifferentiable("RandomNormal", "RandomUniform", reason="a random draw from fixed parameters")
nondifferentiable("RandomNormalLike", "RandomUniformLike", reason="a random draw; the input gives the shape only")
nondifferentiable("Bernoulli", "Multinomial", reason="a draw from a discrete distribution is piecewise constant")
nondifferentiable("BlackmanWindow", "HammingWindow", "HannWindow", reason="an integer input gives the length only")
nondifferentiable("MelWeightMatrix", reason="its floating-point inputs are cut to whole bins")
