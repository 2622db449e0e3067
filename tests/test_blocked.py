"""Convolutions on ONNX Runtime's blocked layout: the same numbers as plain ones, and a way back where they fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_training_gradients import NETS, batch, gradients, proto_of

from dlprune.facts import gather_facts
from dlprune.gradients import Writer, differentiate
from dlprune.training import blocked, trainer
from dlprune.training.blocked import block_convolutions, block_size


def results(block: int, feeds: dict[str, np.ndarray], attributes: dict[str, Any]) -> tuple[int, list[np.ndarray]]:
    """Run a convolution and its gradients for image, kernels and bias; `block` 0 = plain."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="g")
    inputs = {}
    for name, array in feeds.items():
        inputs[name] = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(array.shape))
        graph.inputs.append(inputs[name])
    output = ir.Value(name="y", type=ir.TensorType(ir.DataType.FLOAT))
    graph.append(ir.node("Conv", [inputs[n] for n in ("x", "w", "b") if n in inputs], attributes, outputs=[output]))
    model = ir.Model(graph, ir_version=9)
    facts = gather_facts(model, {name: array.shape for name, array in feeds.items()})
    output.shape = ir.Shape(facts.shape("y"))
    writer = Writer(graph)
    writer.fast_depthwise = block > 0
    seed = writer.constant(np.random.default_rng(1).standard_normal(facts.shape("y")).astype(np.float32))
    found = differentiate(writer, {output: seed}, inputs.values()).values
    graph.outputs.append(output)
    for value in inputs.values():
        gradient = writer.op("Identity", found[value])
        gradient.type = ir.TensorType(ir.DataType.FLOAT)
        graph.outputs.append(gradient)
    count = block_convolutions(model, block) if block else 0
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    return count, session.run(None, feeds)


@given(st.data())
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
def test_blocked_convolutions_agree_with_plain_ones(data: st.DataObject):
    """Forward pass and gradients, for any number of channels, kernel, stride, dilation, pads; depthwise or dense."""
    draw = data.draw
    block = block_size()
    if not block:  # this machine has none
        return
    small = st.integers(1, 3)
    kernel = draw(st.sampled_from([[1, 2], [2, 2], [3, 3], [2, 3], [4, 5]]))
    strides, dilations = [draw(small), draw(small)], [draw(st.integers(1, 2)), draw(st.integers(1, 2))]
    pads = [draw(st.integers(0, 2)) for _ in range(4)]
    size = [draw(st.integers(6, 9)), draw(st.integers(6, 9))]
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    assume(all(s + pads[i] + pads[i + 2] >= reach[i] for i, s in enumerate(size)))
    outputs = draw(st.integers(1, 40))
    depthwise = draw(st.booleans())
    inputs = outputs if depthwise else draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    feeds = {
        "x": rng.standard_normal((2, inputs, *size)).astype(np.float32),
        "w": rng.standard_normal((outputs, 1 if depthwise else inputs, *kernel)).astype(np.float32),
    }
    if draw(st.booleans()):
        feeds["b"] = rng.standard_normal(outputs).astype(np.float32)
    attributes = {"strides": strides, "dilations": dilations, "pads": pads, "group": inputs if depthwise else 1}
    count, found = results(block, feeds, attributes)
    assert count >= 1
    for mine, theirs in zip(found, results(0, feeds, attributes)[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())


@pytest.mark.parametrize("name", NETS)
def test_training_is_the_same_without_them(name: str, monkeypatch: pytest.MonkeyPatch):
    """A machine without blocked convolutions trains with standard operators alone, to the same gradients."""
    proto = proto_of(name)
    images, labels = batch(proto)
    loss = "sigmoid" if name == "sigmoid" else "softmax"
    expected = gradients(proto, images, labels, loss=loss).snapshot().states["velocity"]
    monkeypatch.setattr(trainer, "block_size", lambda: 0)
    plain = gradients(proto, images, labels, loss=loss).snapshot().states["velocity"]
    largest = max(float(np.abs(gradient).max()) for gradient in plain.values())
    for weight, gradient in plain.items():
        np.testing.assert_allclose(expected[weight], gradient, rtol=1e-3, atol=1e-5 * largest)


def test_a_build_that_refuses_them_falls_back(monkeypatch: pytest.MonkeyPatch):
    """A session that does not take the internal operators is replaced by one of standard operators."""
    proto = proto_of("plain")
    images, labels = batch(proto)
    original = trainer.build
    blocks: list[int] = []

    def build(*arguments: Any) -> Any:
        blocks.append(arguments[-1])
        graph = original(*arguments)
        if arguments[-1]:
            graph.model.graph.opset_imports["com.microsoft.nchwc"] = 99
        return graph

    monkeypatch.setattr(trainer, "build", build)
    assert gradients(proto, images, labels).step_count == 1
    assert blocks in ([block_size(), 0], [0])


def test_operators_that_give_other_numbers_are_not_used(monkeypatch: pytest.MonkeyPatch):
    """If the trial does not agree the block size is 0."""
    block_size.cache_clear()
    monkeypatch.setattr(blocked, "_agrees", lambda *_arguments: False)
    assert block_size() == 0
    block_size.cache_clear()
    monkeypatch.undo()
    monkeypatch.setattr(blocked, "_DOMAIN", "com.example.nothing")
    assert block_size() == 0
    block_size.cache_clear()
