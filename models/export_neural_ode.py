"""Exports a neural ODE solved by classical Runge-Kutta on a given time grid: a Scan over the intervals.

The scanned inputs are the start and length of each interval, so that the gradient also goes to the observation times;
the stacked output is the whole trajectory.
"""

from __future__ import annotations

import exporting
import reference
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan

STATE, WIDTH, BATCH, INTERVALS = 3, 16, 4, 40


class NeuralODE(nn.Module):
    """y' = W_2 tanh(W_1 [y, t] + b_1) + b_2 (Chen et al. 2018, https://arxiv.org/abs/1806.07366)."""

    def __init__(self, state: int, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(state + 1, width)
        self.output = nn.Linear(width, state)

    def field(self, t: Tensor, y: Tensor) -> Tensor:
        """The velocity at time ``t`` (a scalar) and state ``y`` [B, D]."""
        return self.output(torch.tanh(self.hidden(torch.cat([y, t.expand(y.shape[0], 1)], dim=1))))

    def step(self, y: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        """One Runge-Kutta step of length ``dt``."""
        k1 = self.field(t, y)
        k2 = self.field(t + dt / 2, y + dt / 2 * k1)
        k3 = self.field(t + dt / 2, y + dt / 2 * k2)
        k4 = self.field(t + dt, y + dt * k3)
        return y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def forward(self, y: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """The last state [B, D] and the trajectory [N, B, D] from ``y`` over ``times`` [N + 1]."""
        states: list[Tensor] = []
        for t, dt in zip(times[:-1], times[1:] - times[:-1], strict=True):
            y = self.step(y, t, dt)
            states.append(y)
        return y, torch.stack(states)


class ScannedODE(NeuralODE):
    """The same with the loop written as a scan, which the exporter keeps."""

    def forward(self, y: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """As NeuralODE."""

        def body(y: Tensor, interval: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            after = self.step(y, *interval)
            return after, after.clone()

        return scan(body, y, (times[:-1], times[1:] - times[:-1]))


def main() -> None:
    """Writes neural_ode.onnx and neural_ode.npz."""
    torch.manual_seed(14)
    module = NeuralODE(STATE, WIDTH)
    exporting.initialise(module, gain=1.5)
    scanned = ScannedODE(STATE, WIDTH)
    scanned.load_state_dict(module.state_dict())
    times = torch.cumsum(0.02 + 0.1 * torch.rand(INTERVALS + 1), dim=0)
    inputs = {"y": torch.randn(BATCH, STATE), "times": times}
    model = exporting.export_program(scanned, inputs, ["y_end", "trajectory"])
    reference.write("neural_ode", model, module, inputs)


if __name__ == "__main__":
    main()
