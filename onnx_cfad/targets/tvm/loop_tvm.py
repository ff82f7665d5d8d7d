"""TVM's modules for the files that write whole-loop functions: without types, and in a worker's child alone."""

from __future__ import annotations

import importlib
from typing import Any

tvm: Any = importlib.import_module("tvm")
relax: Any = importlib.import_module("tvm.relax")
s_tir: Any = importlib.import_module("tvm.s_tir")
tirx: Any = importlib.import_module("tvm.tirx")
tvm_ffi: Any = importlib.import_module("tvm_ffi")
onnx_frontend: Any = importlib.import_module("tvm.relax.frontend.onnx")
analyzer: Any = importlib.import_module("tvm.sym").Analyzer
