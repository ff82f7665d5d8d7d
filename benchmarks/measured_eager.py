"""Measures PyTorch in eager mode in this process: ``measured_eager.py WORKLOAD FEEDS.npz SETTINGS``, as measured_run.

The module WORKLOAD has a function ``eager(torch, inputs)`` that computes the loss; ``wrt`` in SETTINGS are the
inputs to differentiate by. The graph is freed by ``backward``, and the gradients before the next run.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from typing import Any

import numpy as np
import repeated
import torch


def main() -> None:
    workload, feeds, settings = importlib.import_module(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    torch.set_num_threads(1)
    wrt: list[str] = settings["wrt"]
    with np.load(feeds) as arrays:
        inputs = {name: torch.from_numpy(arrays[name]) for name in arrays}
    for name in wrt:
        inputs[name].requires_grad_(True)

    def gradients() -> dict[str, Any]:
        for name in wrt:
            inputs[name].grad = None
        loss = workload.eager(torch, inputs)
        loss.backward()
        return {"loss": loss.detach(), **{f"{name}_grad": inputs[name].grad for name in wrt}}

    runs, outputs = repeated.repeat(gradients, settings["at_most"], settings["seconds"])
    size = {
        "input_bytes": sum(value.nbytes for value in inputs.values()),
        "output_bytes": sum(value.nbytes for value in outputs.values()),
    }
    if settings.get("save"):
        np.savez(settings["save"], **{name: value.numpy() for name, value in outputs.items()})
    print(json.dumps({**dataclasses.asdict(runs), **size}))


if __name__ == "__main__":
    main()
