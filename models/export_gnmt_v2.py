"""Exports a small GNMT-v2: LSTM encoder, LSTM decoder with normalised attention, the decode steps in an ONNX Loop.

The network is that of Wu et al. 2016 (https://arxiv.org/abs/1609.08144) in its second published form, cut to two
layers a side: the first encoder layer runs in both directions, the second adds a residual connection; the decoder
attends with its first cell's state (normalised Bahdanau scores), feeds the context to both cells, and adds a residual
connection around the second. Targets are teacher forced.

The model has two outputs, the logits of every step and the mean cross entropy, and one floating-point input: a gate on
each source token's embedding, so that the gradient by it is the token's saliency.
"""

from __future__ import annotations

import exporting
import reference
import torch
from torch import Tensor, nn

VOCABULARY = 48
WIDTH = 20
SOURCE_LENGTH, TARGET_LENGTH, BATCH = 9, 6, 3


class NormalisedAttention(nn.Module):
    """Bahdanau attention whose score vector has a learnt length: softmax(g v / |v| . tanh(W_q q + W_k k + b)) k."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.direction = nn.Parameter(torch.empty(width))
        self.length = nn.Parameter(torch.empty(1))
        self.bias = nn.Parameter(torch.empty(width))

    def scorer(self) -> Tensor:
        """The score vector [H]; the same in every step."""
        return self.direction / self.direction.norm(2.0, dim=[0], keepdim=True) * self.length

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, scorer: Tensor) -> Tensor:
        """The context [B, H] of ``query`` [B, H] over ``values`` [S, B, H]; ``keys`` are already projected."""
        scores = (torch.tanh(keys + self.query(query) + self.bias) * scorer).sum(dim=2, keepdim=True)
        return (torch.softmax(scores, dim=0) * values).sum(dim=0)


class Encoder(nn.Module):
    """One bidirectional and one forward LSTM layer, the second with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.LSTM(width, width // 2, bidirectional=True)
        self.second = nn.LSTM(width, width)

    def forward(self, embedded: Tensor) -> Tensor:
        """Encodes ``embedded`` [S, B, H]."""
        both = self.first(embedded)[0]
        return both + self.second(both)[0]


class Decoder(nn.Module):
    """Two LSTM cells, attention between them, one step a target token: the Loop."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.LSTMCell(2 * width, width)
        self.attention = NormalisedAttention(width)
        self.second = nn.LSTMCell(2 * width, width)

    def forward(self, embedded: Tensor, encoded: Tensor) -> Tensor:
        """The states [T, B, H] of all steps for teacher-forced ``embedded`` [T, B, H] over ``encoded`` [S, B, H]."""
        keys = self.attention.key(encoded)
        scorer = self.attention.scorer()
        context = encoded.mean(dim=0)
        h1 = torch.zeros_like(context)
        c1, h2, c2 = h1, h1, h1
        states: list[Tensor] = []
        for t in range(embedded.size(0)):
            h1, c1 = self.first(torch.cat([embedded[t], context], dim=1), (h1, c1))
            context = self.attention(h1, keys, encoded, scorer)
            h2, c2 = self.second(torch.cat([h1, context], dim=1), (h2, c2))
            states.append(h1 + h2)
        return torch.stack(states)


class GNMT(nn.Module):
    """The encoder-decoder with shared embedding, output projection and loss."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = Encoder(width)
        self.decoder = Decoder(width)
        self.projection = nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor, label: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [T, B, V] and mean cross entropy for tokens ``source`` [S, B], ``target`` and ``label`` [T, B].

        Args:
            source: Tokens of the source sentence.
            target: Tokens fed to the decoder.
            label: Tokens the decoder should predict.
            gate: Factors [S, B, 1] on the source embeddings.
        """
        encoded = self.encoder(self.embedding(source) * gate)
        logits = self.projection(self.decoder(self.embedding(target), encoded))
        chosen = torch.log_softmax(logits, dim=2).gather(2, label.unsqueeze(2))
        return logits, -chosen.mean()


def main() -> None:
    """Writes gnmt_v2.onnx and gnmt_v2.npz."""
    torch.manual_seed(11)
    module = GNMT(VOCABULARY, WIDTH)
    exporting.initialise(module, gain=1.5)
    inputs = {
        "source": torch.randint(VOCABULARY, (SOURCE_LENGTH, BATCH)),
        "target": torch.randint(VOCABULARY, (TARGET_LENGTH, BATCH)),
        "label": torch.randint(VOCABULARY, (TARGET_LENGTH, BATCH)),
        "gate": torch.rand(SOURCE_LENGTH, BATCH, 1) + 0.5,
    }
    proto = exporting.export_script(
        module,
        inputs,
        outputs=["logits", "loss"],
        dynamic_axes={
            "source": {0: "S", 1: "B"},
            "target": {0: "T", 1: "B"},
            "label": {0: "T", 1: "B"},
            "gate": {0: "S", 1: "B"},
            "logits": {0: "T", 1: "B"},
        },
    )
    reference.write("gnmt_v2", proto, module, inputs)


if __name__ == "__main__":
    main()
