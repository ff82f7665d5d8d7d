"""The commands of a worker with the current TVM."""

from __future__ import annotations

from onnx_cfad.targets.cuda.relax_command import cuda_source
from onnx_cfad.targets.tvm.compiler import offer
from onnx_cfad.targets.tvm.programs import offer_programs
from onnx_cfad.targets.tvm.relax import Relax
from onnx_cfad.targets.tvm.schedule_search import offer_search

_RELAX = Relax()
offer(_RELAX)
offer_programs(_RELAX)
offer_search(_RELAX.scheduler)

__all__ = ["cuda_source"]
