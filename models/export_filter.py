"""Exports a recursive filter with an adaptive gain from TensorFlow: a tf.while_loop that ends early, by way of tf2onnx.

Each step reads a row of the observations, an attention over the rows of a memory, and writes a row of a TensorArray. As
tf2onnx writes it, the Loop carries weights and sequences that never change, reads a row by a Slice with a step of 10^9,
counts in int32, and has no trip limit.

Needs tensorflow 2.21 and tf2onnx 1.17 instead of PyTorch.
"""

from __future__ import annotations

import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import onnx
import onnxruntime
import tensorflow as tf
import tf2onnx

FOLDER = pathlib.Path(__file__).parent
STATE, SLOTS, STEPS = 4, 5, 9
NAMES = ("rows", "state", "memory", "weight")
OUTPUTS = ("states", "state_end", "gain_end")


def filtered(rows: tf.Tensor, state: tf.Tensor, memory: tf.Tensor, weight: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """All states [T, D], the last one and the last gain; at most one step for each of ``rows`` [N, D].

    Args:
        rows: Observations [N, D].
        state: The first state [D].
        memory: What is attended to [S, D].
        weight: The matrix of the transition [D, D].
    """
    count = tf.shape(rows)[0]

    def goes_on(step: tf.Tensor, _: tf.Tensor, gain: tf.Tensor, __: tf.TensorArray) -> tf.Tensor:
        return tf.logical_and(step < count, gain > tf.cast(0.05, gain.dtype))

    def body(step: tf.Tensor, h: tf.Tensor, gain: tf.Tensor, written: tf.TensorArray) -> tuple[object, ...]:
        scores = tf.nn.softmax(tf.linalg.matvec(memory, h))
        seen = tf.reduce_sum(memory * scores[:, None], axis=0)
        innovation = rows[step] - tf.tanh(tf.linalg.matvec(weight, h) + seen)
        h = h + gain * innovation
        quarter = tf.cast(0.25, gain.dtype)
        gain = tf.where(tf.reduce_sum(innovation) > 0, gain * (1 - quarter), gain / (1 + gain * tf.reduce_sum(h * h)))
        return step + 1, h, gain, written.write(step, h)

    array = tf.TensorArray(rows.dtype, size=0, dynamic_size=True, element_shape=(STATE,))
    start = (tf.constant(0), state, tf.ones((), rows.dtype), array)
    _, h, gain, written = tf.while_loop(goes_on, body, start)
    return written.stack(), h, gain


def main() -> None:
    """Writes filter.onnx and filter.npz."""
    rng = np.random.default_rng(11)
    shapes = ((STEPS, STATE), (STATE,), (SLOTS, STATE), (STATE, STATE))
    scales = (1.0, 1.0, 0.7, 0.6)
    inputs = {
        name: (scale * rng.standard_normal(shape)).astype(np.float32)
        for name, shape, scale in zip(NAMES, shapes, scales, strict=True)
    }
    declared = ((None, STATE), *shapes[1:])
    signature = [tf.TensorSpec(shape, tf.float32, name=name) for name, shape in zip(NAMES, declared, strict=True)]
    model, _ = tf2onnx.convert.from_function(tf.function(filtered), signature, opset=17)
    rename = dict(zip((output.name for output in model.graph.output), OUTPUTS, strict=True))
    for output in model.graph.output:
        output.name = rename[output.name]
    for node in model.graph.node:
        node.output[:] = [rename.get(name, name) for name in node.output]
        node.input[:] = [rename.get(name, name) for name in node.input]
    onnx.checker.check_model(model, full_check=True)
    leaves = {name: tf.constant(value.astype(np.float64)) for name, value in inputs.items()}
    with tf.GradientTape() as tape:
        tape.watch(list(leaves.values()))
        results = filtered(*leaves.values())
        seeds = [np.random.default_rng(2024 + i).standard_normal(r.shape) for i, r in enumerate(results)]
        total = tf.add_n([tf.reduce_sum(r * s) for r, s in zip(results, seeds, strict=True)])
    gradients = tape.gradient(total, list(leaves.values()))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, given, result in zip(OUTPUTS, session.run(OUTPUTS, inputs), results, strict=True):
        difference = np.abs(given - result.numpy()).max() / np.abs(result.numpy()).max()
        print(f"output '{name}' {given.shape}: relative difference of ONNX Runtime and TensorFlow {difference:.1e}")
        if not difference <= 2e-5:
            raise ValueError(f"output '{name}' of the exported model differs by {difference:.1e}")
    arrays = {f"in_{name}": value for name, value in inputs.items()}
    arrays |= {f"out_{name}": result.numpy() for name, result in zip(OUTPUTS, results, strict=True)}
    arrays |= {f"cot_{i}": seed for i, seed in enumerate(seeds)}
    arrays |= {f"grad_{name}": g.numpy() for name, g in zip(NAMES, gradients, strict=True)}
    onnx.save(model, FOLDER / "filter.onnx")
    np.savez_compressed(FOLDER / "filter.npz", allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
