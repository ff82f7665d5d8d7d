"""Exports a residual network that skips blocks and may answer early: every decision is an ONNX If, nested two deep.

A block runs only when its gate, a linear function of the pooled features, is positive, and is then weighted by the
gate's sigmoid (after SkipNet, Wang et al. 2018, https://arxiv.org/abs/1711.09485); when the first head is confident
after the first block, the rest of the network does not run. For the stored input the network is not confident, and
some gates are open and some closed: parameters of a closed block have a gradient of exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable

import exporting
import reference
import torch
from torch import Tensor, nn

CHANNELS, GROUPS, BLOCKS, CLASSES = 8, 2, 4, 5
BATCH, SIZE = 2, 14
CONFIDENT = 0.95

Branch = Callable[[Tensor, Tensor], Tensor]


class Block(nn.Module):
    """Two 3 x 3 convolutions with group normalisation, weighted and added to the input."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.gate = nn.Linear(channels, 1)
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(groups, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(groups, channels)

    def score(self, x: Tensor) -> Tensor:
        """How much the batch ``x`` [B, C, H, W] wants this block: a scalar, open when positive."""
        return self.gate(x.mean(dim=(2, 3))).mean()

    def forward(self, x: Tensor, score: Tensor) -> Tensor:
        """The block's result for ``x`` [B, C, H, W]."""
        hidden = nn.functional.silu(self.first_norm(self.first(x)))
        return nn.functional.silu(x + torch.sigmoid(score) * self.second_norm(self.second(hidden)))


class ConditionalResNet(nn.Module):
    """Stem, gated blocks, two heads; each decision is taken for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(Block(CHANNELS, GROUPS) for _ in range(BLOCKS))
        self.early_head = nn.Linear(CHANNELS, CLASSES)
        self.head = nn.Linear(CHANNELS, CLASSES)

    def choose(self, predicate: Tensor, then_branch: Branch, else_branch: Branch, x: Tensor, score: Tensor) -> Tensor:
        """The result of one of the branches on ``x`` and ``score``."""
        return then_branch(x, score) if bool(predicate) else else_branch(x, score)

    def gated(self, block: nn.Module, x: Tensor) -> Tensor:
        """``block`` applied to ``x`` when its gate is open, else ``x``."""
        assert isinstance(block, Block)
        score = block.score(x)
        return self.choose(score > 0, block.forward, lambda x, _: x.clone(), x, score)

    def finish(self, x: Tensor, _: Tensor) -> Tensor:
        """Everything after the first block."""
        for block in self.blocks[1:]:
            x = self.gated(block, x)
        return self.head(x.mean(dim=(2, 3)))

    def forward(self, x: Tensor) -> Tensor:
        """Class scores [B, K] of images ``x`` [B, 3, H, W]."""
        x = self.gated(self.blocks[0], torch.relu(self.stem(x)))
        early = self.early_head(x.mean(dim=(2, 3)))
        confidence = torch.softmax(early, dim=1).amax(dim=1).mean()
        return self.choose(confidence > CONFIDENT, lambda _, early: early.clone(), self.finish, x, early)


class ExportedResNet(ConditionalResNet):
    """The same with the decisions written as torch.cond, which the exporter keeps."""

    def choose(self, predicate: Tensor, then_branch: Branch, else_branch: Branch, x: Tensor, score: Tensor) -> Tensor:
        """As ConditionalResNet."""
        return torch.cond(predicate, then_branch, else_branch, (x, score))


def main() -> None:
    """Writes cond_resnet.onnx and cond_resnet.npz."""
    torch.manual_seed(16)
    module = ConditionalResNet()
    exporting.initialise(module, gain=1.0)
    exported = ExportedResNet()
    exported.load_state_dict(module.state_dict())
    inputs = {"x": torch.randn(BATCH, 3, SIZE, SIZE)}
    reference.write("cond_resnet", exporting.export_program(exported, inputs, ["scores"]), module, inputs)


if __name__ == "__main__":
    main()
