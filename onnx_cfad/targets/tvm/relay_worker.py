"""The commands of a worker with TVM 0.19."""

from __future__ import annotations

from onnx_cfad.targets.cuda.relay_source import relay_cuda_source
from onnx_cfad.targets.tvm.compiler import offer
from onnx_cfad.targets.tvm.programs import offer_programs
from onnx_cfad.targets.tvm.relay import Relay
from onnx_cfad.targets.tvm.schedule_search import offer_search

_RELAY = Relay()
offer(_RELAY)
offer_programs(_RELAY)
offer_search(_RELAY.scheduler)

__all__ = ["relay_cuda_source"]
