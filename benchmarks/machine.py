"""What a figure depends on: processor, memory, versions, the command. No name of the machine, no path."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from pathlib import Path

import onnx

_PACKAGES = ("onnx-cfad", "onnx", "onnx-ir", "onnxruntime", "numpy", "torch", "jax")


def description() -> dict[str, str | int | float]:
    """Processor, cores, memory in GiB, and how busy the machine is."""
    found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    return {
        "processor": found.group(1) if found else platform.processor(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(int(memory.group(1)) / 2**20) if memory else 0,
        "load": round(os.getloadavg()[0], 1),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that are there."""
    return {"python": platform.python_version(), **{package: _version(package) for package in _PACKAGES}}


def command() -> str:
    """What was typed."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def count_nodes(graph: onnx.GraphProto) -> int:
    """Nodes of a graph and of its subgraphs."""
    inner = (attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g"))
    return len(graph.node) + sum(count_nodes(subgraph) for subgraph in inner)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
