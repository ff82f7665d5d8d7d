"""Exports an equilibrium layer: z = tanh(W z + U x + b) iterated until it stands still, then a linear readout.

The Loop has a bound and an exit that depends on the data. Beside the gradient of the steps that ran (the reference of
every model here) the npz file holds the gradient by the implicit function theorem at the exact fixed point, as
``implicit_*`` and ``implicitp_*``: the two differ by about the tolerance.
"""

from __future__ import annotations

import copy
import functools

import exporting
import numpy as np
import reference
import torch
from torch import Tensor, nn

WIDTH, FEATURES, CLASSES, BATCH = 12, 6, 4, 5
CONTRACTION = 0.95
TOLERANCE = 1e-6
MOST_ITERATIONS = 200


class Equilibrium(nn.Module):
    """A deep equilibrium model (Bai et al. 2019, https://arxiv.org/abs/1909.01377) of one layer."""

    def __init__(self, width: int, features: int, classes: int) -> None:
        super().__init__()
        self.most_iterations = MOST_ITERATIONS
        self.tolerance = TOLERANCE
        self.recurrent = nn.Linear(width, width, bias=False)
        self.inject = nn.Linear(features, width)
        self.readout = nn.Linear(width, classes)

    def step(self, z: Tensor, injected: Tensor) -> Tensor:
        """One iteration on ``z`` [B, H]."""
        return torch.tanh(self.recurrent(z) + injected)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The readout [B, C] at the fixed point for ``x`` [B, F], and how many iterations it took."""
        injected = self.inject(x)
        z = torch.zeros_like(injected)
        steps = torch.zeros([], dtype=torch.int64)
        for _ in range(self.most_iterations):
            old = z
            z = self.step(old, injected)
            steps = steps + 1
            if bool((z - old).abs().max() < self.tolerance):
                break
        return self.readout(z), steps


def implicit_gradients(module: Equilibrium, x: Tensor, seed: Tensor) -> dict[str, np.ndarray]:
    """The gradients by the implicit function theorem, with a dense solve at the exact fixed point.

    Args:
        module: The layer; computed in a float64 copy.
        x: The input [B, F].
        seed: Cotangent [B, C] of the readout.
    """
    twin = copy.deepcopy(module).double()
    leaf = x.double().requires_grad_()
    injected = twin.inject(leaf)
    with torch.no_grad():
        z = torch.zeros_like(injected)
        for _ in range(1000):
            z = twin.step(z, injected)
    z.requires_grad_()
    (direct,) = torch.autograd.grad(twin.readout(z), z, seed)
    jacobian = torch.autograd.functional.jacobian(functools.partial(twin.step, injected=injected), z)
    matrix = torch.eye(z.numel(), dtype=torch.float64) - jacobian.reshape(z.numel(), z.numel()).T
    adjoint = torch.linalg.solve(matrix, direct.reshape(-1)).reshape(z.shape)
    wrt = {"implicit_x": leaf} | {f"implicitp_{name}": parameter for name, parameter in twin.named_parameters()}
    outputs = [twin.step(z.detach(), injected), twin.readout(z.detach())]
    gradients = torch.autograd.grad(outputs, list(wrt.values()), [adjoint, seed])
    return {key: gradient.numpy() for key, gradient in zip(wrt, gradients, strict=True)}


def contracting(module: Equilibrium) -> Equilibrium:
    """``module`` with random parameters whose iteration contracts."""
    exporting.initialise(module, gain=1.0)
    with torch.no_grad():
        module.recurrent.weight *= CONTRACTION / torch.linalg.matrix_norm(module.recurrent.weight, 2)
    return module


def main() -> None:
    """Writes equilibrium.onnx and equilibrium.npz."""
    torch.manual_seed(13)
    module = contracting(Equilibrium(WIDTH, FEATURES, CLASSES))
    inputs = {"x": torch.randn(BATCH, FEATURES)}
    model = exporting.export_script(module, inputs, ["y", "steps"], {"x": {0: "B"}, "y": {0: "B"}})
    seed = reference.seed_of(0, torch.Size([BATCH, CLASSES]))
    reference.write("equilibrium", model, module, inputs, implicit_gradients(module, inputs["x"], seed))


if __name__ == "__main__":
    main()
