"""Exports 10,000 explicit steps of the heat equation on a 16 x 16 grid: a Loop whose trip count the model fixes.

u' = k * laplace(u) + s, with a conductivity k per cell (the parameter one would fit), a heat source s, and cold edges.
The gradient by k needs laplace(u) of every step, so that the tape is the whole cost: 10 MB in float32.
"""

from __future__ import annotations

import exporting
import reference
import torch
from torch import Tensor, nn

SIZE = 16
STEPS = 10_000


class Heat(nn.Module):
    """Forward Euler on a grid; the Laplacian is a convolution with a fixed stencil."""

    def __init__(self, size: int, steps: int) -> None:
        super().__init__()
        self.steps: Tensor
        self.stencil: Tensor
        self.register_buffer("steps", torch.tensor(steps))  # from a Python number the exporter would unroll by eight
        self.conductivity = nn.Parameter(torch.empty(1, 1, size, size))
        stencil = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])
        self.register_buffer("stencil", stencil.reshape(1, 1, 3, 3))

    def forward(self, u: Tensor, source: Tensor) -> Tensor:
        """The temperature [1, 1, H, W] after all steps, from ``u`` and under ``source`` of the same shape."""
        for _ in range(int(self.steps)):
            u = u + self.conductivity * nn.functional.conv2d(u, self.stencil, padding=1) + source
        return u


def main() -> None:
    """Writes heat.onnx and heat.npz."""
    torch.manual_seed(12)
    module = Heat(SIZE, STEPS)
    with torch.no_grad():
        module.conductivity.uniform_(4e-3, 12e-3)
    inputs = {"u": torch.rand(1, 1, SIZE, SIZE), "source": 3e-5 * torch.rand(1, 1, SIZE, SIZE)}
    reference.write("heat", exporting.export_script(module, inputs, ["u_end"]), module, inputs)


if __name__ == "__main__":
    main()
