"""CuPy's place taken by NumPy, and a GPU's by one thread: kernels in CUDA C are compiled as C++ and run block by block.

The threads of a block are coroutines that take turns at each barrier, and a shuffle is two barriers around a read. So
what a kernel computes can be checked without a GPU; its speed, its memory model and nvcc's code cannot.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\) \{')
_ALIGNED = re.compile(r"(__shared__) (alignas\(\d+\))")  # g++ wants the other order
_PRELUDE = r"""
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>
#include <ucontext.h>
#define __global__
#define __launch_bounds__(n)
#define __shared__ static
#define __device__
#define __forceinline__ inline
typedef unsigned int uint;
typedef unsigned char uchar;
struct Index { int x, y, z; };
static Index threadIdx, blockIdx, blockDim, gridDim;
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T> static inline T max(T a, T b) { return a > b ? a : b; }
template <class T> static inline T min(T a, T b) { return a < b ? a : b; }
#define __expf expf
static inline float __ldg(const float* p) { return *p; }

static ucontext_t scheduler;
static std::vector<ucontext_t> threads;
static std::vector<std::vector<char>> stacks;
static std::vector<char> ended;
static int current;
static std::function<void()> body;

static void place(int k) {
  current = k;
  threadIdx = {k % blockDim.x, k / blockDim.x % blockDim.y, k / (blockDim.x * blockDim.y)};
}
static void __syncthreads() { int k = current; swapcontext(&threads[k], &scheduler); place(k); }
static void begin() { body(); ended[current] = 1; swapcontext(&threads[current], &scheduler); }
static unsigned __activemask() { return ~0u; }
template <class T> static T __shfl_down_sync(unsigned, T value, int delta, int width = 32) {
  static T slots[1024];
  slots[current] = value;
  __syncthreads();
  int lane = current % width, from = lane + delta < width ? current + delta : current;
  T read = slots[from < (int)threads.size() ? from : current];
  __syncthreads();
  return read;
}
static void run(const int* grid, const int* block, bool waits) {
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  int count = block[0] * block[1] * block[2];
  while (waits && (int)stacks.size() < count) stacks.emplace_back(32768);
  for (int z = 0; z < grid[2]; ++z) for (int y = 0; y < grid[1]; ++y) for (int x = 0; x < grid[0]; ++x) {
    blockIdx = {x, y, z};
    if (!waits) {
      for (int k = 0; k < count; ++k) { place(k); body(); }
      continue;
    }
    threads.assign(count, ucontext_t());
    ended.assign(count, 0);
    for (int k = 0; k < count; ++k) {
      getcontext(&threads[k]);
      threads[k].uc_stack.ss_sp = stacks[k].data();
      threads[k].uc_stack.ss_size = stacks[k].size();
      threads[k].uc_link = nullptr;
      makecontext(&threads[k], begin, 0);
    }
    for (int left = count; left;) {
      for (int k = 0; k < count; ++k) {
        if (ended[k]) continue;
        place(k);
        swapcontext(&scheduler, &threads[k]);
        left -= ended[k];
      }
    }
  }
}
"""


class Emulated:
    """What stands in for the module ``cupy``.

    Args:
        folder: Where libraries are built.
        capability: The device's, such as "80".
    """

    ndarray = np.ndarray

    def __init__(self, folder: Path, capability: str = "80") -> None:
        self._folder = folder
        self.cuda = SimpleNamespace(Device=lambda: SimpleNamespace(compute_capability=capability))
        self.launched: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def asnumpy(self, array: Any) -> Any:
        return array

    def RawModule(self, *, path: str) -> Any:
        """The kernels of the source beside the compiled file."""
        source = Path(path).with_name("kernels.cu").read_text(encoding="utf-8")
        kernels = source[source.index('extern "C" __global__') :]
        parts = [text for text in kernels.split('extern "C" __global__') if "{" in text]
        wrappers = [_wrapper('extern "C" __global__' + text) for text in parts]
        text, library = self._folder / "kernels.cpp", self._folder / "kernels.so"
        kernels = _ALIGNED.sub(r"\2 \1", kernels)
        text.write_text("\n".join([_PRELUDE, kernels, *wrappers]), encoding="utf-8")
        command = ["g++", "-O1", "-w", "-fPIC", "-shared", "-std=c++17", str(text), "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True)
        loaded = ctypes.CDLL(str(library))

        def get_function(name: str) -> Any:
            def launch(grid: Sequence[int], block: Sequence[int], arguments: Any, shared_mem: int = 0) -> None:
                assert shared_mem == 0
                self.launched.append(name)
                pointers = (ctypes.c_void_p * len(arguments))(*(array.ctypes.data for array in arguments))
                sizes = [(ctypes.c_int * 3)(*size) for size in (grid, block)]
                loaded[f"launch_{name}"](pointers, *sizes)

            return launch

        return SimpleNamespace(get_function=get_function)


def _wrapper(text: str) -> str:
    """A function that launches a kernel: its arguments, a grid and a block as arrays."""
    found = _KERNEL.search(text)
    assert found is not None
    name, parameters = found.group(1), found.group(2)
    types = [part.replace("__restrict__", "").strip().rpartition(" ")[0] for part in parameters.split(",")]
    given = ", ".join(f"({kind})a[{k}]" for k, kind in enumerate(types))
    waits = "true" if "__syncthreads" in text or "_sync(" in text else "false"
    head = f'extern "C" void launch_{name}(void** a, const int* g, const int* b)'
    return f"{head} {{ body = [=] {{ {name}({given}); }}; run(g, b, {waits}); }}"
