# Claim: for residual networks of 16 to 256 Ifs (two convolution branches each; and three-layer perceptrons), the
# gradient is ready (differentiation and session) at least 1.8 times faster than onnx-ad's at 16, in time that grows no
# faster than the number of blocks, with at most 4 nodes per node of the model, and runs in at most 3.3 times the CPU
# time of the forward run. A branch in a loop of 10^5 iterations tapes one byte an iteration.
"""The gradient of many branches one after the other; and the record of one branch in a long loop."""

from __future__ import annotations

import argparse
import itertools
import math
from typing import Any

import numpy as np
import onnx
import recurrent
from gradients import onnx_ad, ours
from meter import FORWARD, Bench, Case, Measured, System, forward
from onnx import ModelProto, helper, numpy_helper

IMAGES, CHANNELS, SIZE = 4, 16, 16
ROWS, WIDTH = 16, 64
NETWORKS = ("convolutions", "perceptrons", "tiny")
LONG = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, nargs="+", default=[8, 16, 64, 256])
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=["convolutions"])
    parser.add_argument("--loop", action="store_true", help="only the branch in a loop")
    parser.add_argument("--weights", action="store_true", help="only forward runs, of one block's weights and of all")
    settings = parser.parse_args()
    bench = Bench("w7_branches")
    if settings.loop:
        _long_loop(bench)
    elif settings.weights:
        _of_weights(bench, settings.network, settings.blocks)
    else:
        for network in settings.network:
            _network(bench, network, settings.blocks)
    bench.finish()


# The nodes of the Ifs have no names: onnx-ad names the reversed If as the If, which ONNX Runtime refuses.


def _network(bench: Bench, network: str, blocks: list[int]) -> None:
    ready: dict[str, dict[int, float]] = {}
    for count in blocks:
        case = case_of(network, count)
        systems = [forward(case), ours(case, "default"), onnx_ad(case)]
        if count <= 16:
            systems[2:2] = [ours(case, "recomputed", sites=_sites(count, "routed(residuals=recomputed)"))]
            systems[3:3] = [ours(case, "masked", sites=_sites(count, "masked"))]
        measured = bench.measure(case, systems, at_most=40)
        for name, figures in measured.items():
            ready.setdefault(name, {})[count] = figures.create_cpu_s
        _claims(bench, case, systems, measured)
    sizes = sorted(blocks)
    if len(sizes) > 1:
        growth = {name: _exponent(found, *sizes[-2:]) for name, found in ready.items() if sizes[-1] in found}
        bench.report({"case": f"{network}, {sizes[-2]} to {sizes[-1]} Ifs", "exponents_of_ready": str(growth)})
        text = f"{network}: exponent of the time until ready, {sizes[-2]} to {sizes[-1]}"
        bench.claim(text, growth["default"], at_most=1.1)


def _of_weights(bench: Bench, networks: list[str], blocks: list[int]) -> None:
    """Time of a forward run for each If, where all blocks have the weights of one and where each has its own."""
    for network, count, shared in itertools.product(networks, blocks, (True, False)):
        case = case_of(network, count, shared=shared)
        measured = bench.measure(case, [forward(case)], at_most=40)[FORWARD]
        size = sum(value.nbytes for name, value in case.feeds.items() if name != "x")
        bench.report({"case": case.name, "weights_mib": size / 2**20, "us_for_each_if": measured.cpu_s / count * 1e6})


def _exponent(ready: dict[int, float], small: int, large: int) -> float:
    """With which power of the number of Ifs the time until ready grows; that of the forward run is its session's."""
    return round(math.log(ready[large] / ready[small]) / math.log(large / small), 3)


def _claims(bench: Bench, case: Case, systems: list[System], measured: dict[str, Measured]) -> None:
    own = measured["default"]
    before, after = (system.about["nodes"] for system in systems[:2])
    bench.claim(f"{case.name}: nodes for each node of the model", after / before, at_most=4)
    bench.claim(f"{case.name}: times forward", own.ratio, at_most=3.3)
    if "onnx-ad" in measured and " 16 Ifs" in case.name:
        other = measured["onnx-ad"].create_cpu_s
        bench.claim(f"{case.name}: ready, times faster than onnx-ad", other / own.create_cpu_s, at_least=1.8)


def _sites(count: int, adjoint: str) -> tuple[str, ...]:
    return tuple(f"main/if_{k}={adjoint}" for k in range(count))


def case_of(network: str, count: int, *, shared: bool = False) -> Case:
    """A residual network: block k adds one of two branches to x, by the sign of the mean of x.

    Each block has weights of its own, unless they are ``shared``.
    """
    rng = np.random.default_rng(0)
    states = {"convolutions": [IMAGES, CHANNELS, SIZE, SIZE], "perceptrons": [ROWS, WIDTH], "tiny": [8]}
    state = states[network]
    sizes: dict[str, list[int]] = {"x": state}
    nodes: list[Any] = []
    x = "x"
    for k in range(count):
        owner = "" if shared else k
        branches = [_branch(network, f"{side}{k}", x, state, sizes, f"{side}{owner}") for side in ("then", "else")]
        nodes += [
            helper.make_node("ReduceMean", [x], [f"mean_{k}"], keepdims=0),
            helper.make_node("Greater", [f"mean_{k}", "zero"], [f"positive_{k}"]),
            helper.make_node("If", [f"positive_{k}"], [f"x_{k}"], then_branch=branches[0], else_branch=branches[1]),
        ]
        x = f"x_{k}"
    nodes.append(helper.make_node("ReduceSum", [x], ["loss"], keepdims=0))
    inputs = [recurrent.tensor(name, dims) for name, dims in sizes.items()]
    zero = numpy_helper.from_array(np.array(0, np.float32), "zero")
    graph = helper.make_graph(nodes, "branches", inputs, [recurrent.tensor("loss", [])], [zero])
    feeds = {name: (0.05 * rng.standard_normal(dims)).astype(np.float32) for name, dims in sizes.items()}
    wrt = tuple(name for name in sizes if name != "x")
    name = f"{network}, {count} Ifs{' of the same weights' if shared else ''}"
    return Case(name, recurrent.model_of(graph), feeds, wrt)


def _branch(network: str, name: str, x: str, state: list[int], sizes: dict[str, list[int]], owner: str) -> Any:
    """Two convolutions, three products, or one factor, with a nonlinearity behind each but the last, added to x.

    Its weights are called after their ``owner``.
    """
    activation = "Relu" if name.startswith("then") else "Tanh"
    layers = {"convolutions": 2, "perceptrons": 3, "tiny": 1}[network]
    nodes: list[Any] = []
    value = x
    for layer in range(layers):
        weight, made = f"W_{owner}_{layer}", f"{name}_{layer}"
        if network == "convolutions":
            sizes[weight] = [CHANNELS, CHANNELS, 3, 3]
            nodes.append(helper.make_node("Conv", [value, weight], [made], pads=[1, 1, 1, 1]))
        elif network == "perceptrons":
            sizes[weight] = [WIDTH, WIDTH]
            nodes.append(helper.make_node("MatMul", [value, weight], [made]))
        else:
            sizes[weight] = state
            nodes.append(helper.make_node("Mul", [value, weight], [made]))
        value = made
        if layer < layers - 1:
            nodes.append(helper.make_node(activation, [made], [f"{made}_active"]))
            value = f"{made}_active"
    nodes.append(helper.make_node("Add", [x, value], [f"{name}_sum"]))
    return helper.make_graph(nodes, name, [], [recurrent.tensor(f"{name}_sum", state)])


def _long_loop(bench: Bench) -> None:
    """One branch in a loop of 10^5 iterations: what the forward loop stacks for the reverse pass."""
    case = _loop_case()
    site = "main/loop/body/choice"
    systems = [
        forward(case),
        ours(case, "recomputed", plan="taped", sites=(f"{site}=routed(residuals=recomputed)",)),
        ours(case, "saved", plan="taped", sites=(f"{site}=routed(residuals=saved)",)),
        ours(case, "checkpointed", plan="checkpointed"),
    ]
    bench.measure(case, systems, rounds=1, at_most=3)
    masks: dict[str, int] = {}
    for name in ("recomputed", "saved"):
        kinds = _stacked_bytes(onnx.load(case.folder / f"{name}.onnx"))
        masks[name] = kinds.get("bool", 0)
        bench.report({"case": case.name, "plan": name, "stacked_bytes": {k: v * LONG for k, v in kinds.items()}})
        bench.claim(f"{name}: bytes of the mask for each iteration", masks[name], at_most=1)


def _loop_case() -> Case:
    """h <- one of two expressions of four functions each, by the sign of its mean; h has 8 elements."""
    functions = {"then": ("Sin", "Cos", "Sin", "Tanh"), "else": ("Tanh", "Sin", "Tanh", "Cos")}
    branches: list[Any] = []
    for side, names in functions.items():
        values = ["h", *(f"{side}_{k}" for k in range(len(names)))]
        nodes = [helper.make_node(n, [a], [b]) for n, a, b in zip(names, values, values[1:], strict=False)]
        nodes.append(helper.make_node("Mul", [values[-1], "w"], [f"{side}_end"]))
        branches.append(helper.make_graph(nodes, side, [], [recurrent.tensor(f"{side}_end", [8])]))
    body = [
        helper.make_node("ReduceMean", ["h"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "zero"], ["positive"]),
        helper.make_node(
            "If", ["positive"], ["h_next"], name="choice", then_branch=branches[0], else_branch=branches[1]
        ),
    ]
    loop = recurrent.loop(body, {"h": [8]}, "n", ["h0"], ["h_end"])
    loop.name = "loop"
    graph = helper.make_graph(
        [loop, helper.make_node("ReduceSum", ["h_end"], ["loss"], keepdims=0)],
        "long_loop",
        [recurrent.tensor(name, [8]) for name in ("h0", "w")],
        [recurrent.tensor("loss", [])],
        [numpy_helper.from_array(np.array(LONG), "n"), numpy_helper.from_array(np.array(0, np.float32), "zero")],
    )
    rng = np.random.default_rng(0)
    feeds = {"h0": rng.standard_normal(8).astype(np.float32), "w": (1.5 * rng.standard_normal(8)).astype(np.float32)}
    return Case(f"a branch in a loop, N={LONG:,}", recurrent.model_of(graph), feeds, ("h0", "w"))


def _stacked_bytes(model: ModelProto) -> dict[str, int]:
    """Bytes for each iteration that the forward loop stacks, by element type."""
    loop = next(node for node in model.graph.node if node.op_type in ("Loop", "Scan"))
    body = next(attribute.g for attribute in loop.attribute if attribute.name == "body")
    found: dict[str, int] = {}
    for output in body.output[2 if loop.op_type == "Loop" else 1 :]:  # behind the condition and the carry
        tensor = output.type.tensor_type
        kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        size = math.prod(d.dim_value for d in tensor.shape.dim) * kind.itemsize
        found[kind.name] = found.get(kind.name, 0) + size
    return found


if __name__ == "__main__":
    main()
