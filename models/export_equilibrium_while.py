"""Exports the equilibrium layer of ``export_equilibrium`` once more, by way of torch.export: a torch.while_loop.

The Loop has no bound: its condition holds the tolerance and the cap, and carries hold the counter and the value before.
Module, parameters, input and reference are those of ``equilibrium``.
"""

from __future__ import annotations

import exporting
import reference
import torch
from export_equilibrium import BATCH, CLASSES, FEATURES, WIDTH, Equilibrium, contracting, implicit_gradients
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop


class WhileEquilibrium(Equilibrium):
    """The same layer, with a loop that torch.export keeps."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The readout [B, C] at the fixed point for ``x`` [B, F], and how many iterations it took."""
        injected = self.inject(x)

        def goes_on(steps: Tensor, z: Tensor, old: Tensor) -> Tensor:
            return ((z - old).abs().max() >= self.tolerance) & (steps < self.most_iterations)

        def once(steps: Tensor, z: Tensor, old: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            del old
            return steps + 1, self.step(z, injected), z.clone()

        start = torch.zeros_like(injected)
        steps, z, _ = while_loop(goes_on, once, (torch.zeros([], dtype=torch.int64), start, start + 1))
        return self.readout(z), steps


def main() -> None:
    """Writes equilibrium_while.onnx and equilibrium_while.npz."""
    torch.manual_seed(13)
    twin = contracting(Equilibrium(WIDTH, FEATURES, CLASSES))
    inputs = {"x": torch.randn(BATCH, FEATURES)}
    module = WhileEquilibrium(WIDTH, FEATURES, CLASSES)
    module.load_state_dict(twin.state_dict())
    model = exporting.export_program(module, inputs, ["y", "steps"])
    seed = reference.seed_of(0, torch.Size([BATCH, CLASSES]))
    reference.write("equilibrium_while", model, twin, inputs, implicit_gradients(twin, inputs["x"], seed))


if __name__ == "__main__":
    main()
