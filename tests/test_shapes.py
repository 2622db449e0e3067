"""The rules for plain operators say what ONNX's own shape inference says."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from netgenerator import generate

from dlprune import facts, shapes
from dlprune.classifier import Classifier
from dlprune.facts import gather_facts
from dlprune.shapes import Type

EXPORTS = sorted((Path(__file__).parent / "exports").glob("*.onnx"))


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Compare each answer of a rule with ONNX's; count the answers by operator."""
    count: Counter[str] = Counter()
    rule, infer = shapes.output_type, facts.Facts._infer

    def compared(self: facts.Facts, node: ir.Node) -> dict[str, Type]:
        answers: list[Type | None] = []
        monkeypatch.setattr(facts, "output_type", lambda *arguments: answers.append(rule(*arguments)))
        expected = infer(self, node)
        found = [answer for answer in answers if answer is not None]
        if found:
            assert expected == {node.outputs[0].name: found[0]}, node
            count[node.op_type] += 1
        return expected

    monkeypatch.setattr(facts.Facts, "_infer", compared)
    return count


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_in_random_nets(first: int, spoken: Counter[str]) -> None:
    for seed in range(first, first + 20):
        net = generate(seed)
        classifier = Classifier.from_proto(net.proto)
        gather_facts(classifier.model, {classifier.input_name: net.images().shape})
    assert spoken["Conv"] > 100


@pytest.mark.parametrize("path", EXPORTS, ids=lambda path: path.stem)
def test_in_files_of_exporters(path: Path, spoken: Counter[str]) -> None:
    classifier = Classifier.read(str(path))
    gather_facts(classifier.model, {classifier.input_name: classifier.input_shape(3)})
    assert spoken["Conv"] >= 5


FORMS = [
    *(f"Conv<{options}>(x, w)" for options in (
        "group = 1", "pads = [1,0,2,3]", "strides = [2,3]", "dilations = [3,2]", "group = 2", "kernel_shape = [3,3]",
        "kernel_shape = [2,3]", "dilations = [6,6]", "strides = [9,9]", 'auto_pad = "SAME_UPPER", strides = [2,2]',
        'auto_pad = "VALID"', "strides = [2]", "pads = [1,1]",
    )),
    "Conv(x, narrow)", "Conv(x, flat)",
    *(f"{name}<kernel_shape = [3,2]{options}>(x)" for name in ("MaxPool", "AveragePool") for options in (
        "", ", strides = [2,2]", ", pads = [1,1,0,0], strides = [2,1]", ", ceil_mode = 1, strides = [2,2]",
        ', auto_pad = "SAME_LOWER", strides = [2,2]',
    )),
    "MaxPool<kernel_shape = [3,3], dilations = [2,3]>(x)", "MaxPool<kernel_shape = [12,3]>(x)",
    "MaxPool<kernel_shape = [3]>(x)", "GlobalMaxPool(x)", "GlobalAveragePool(x)", "GlobalAveragePool(square)",
    *(f"{name}(x, {other})" for name in ("Add", "Sub", "Mul", "Div") for other in ("x", "row", "one", "bias")),
    "Add(row, x)", "Add(square, bias)", "Add(row, column)", "Add(x, square)",
    *(f"{name}(x)" for name in (
        "Abs", "Clip", "Elu", "Exp", "HardSigmoid", "LeakyRelu", "Log", "Neg", "Reciprocal", "Relu", "Selu",
        "Sigmoid", "Softplus", "Sqrt", "Tanh", "Erf", "HardSwish", "Gelu",
    )),
    "Clip(x, one, one)", "Clip(x, , one)",
    "BatchNormalization(x, c, c, c, c)", "BatchNormalization(x, c, c, c, row)", "BatchNormalization(x, c, c, bias, c)",
    *(f"Flatten<axis = {axis}>(x)" for axis in (0, 1, 2, 4, -1, 5)), "Flatten(square)",
    "Gemm(square, square, one)", "Gemm<transA = 1>(tall, tall, one)", "Gemm<transB = 1>(tall, tall, one)",
    "Gemm(tall, tall, one)", "Gemm(square, square)", "Gemm(x, square, one)",
    *(f"Concat<axis = {axis}>(x, x)" for axis in (0, 1, 3, -1, 4)), "Concat<axis = 1>(x, square)",
    "Concat<axis = 0>(square, tall)", "Concat<axis = 1>(square, tall)", "Concat<axis = 1>(x)",
    "Transpose(x)", "Transpose<perm = [0,2,3,1]>(x)", "Transpose<perm = [0,1]>(x)", "Transpose<perm = [0,0,1,2]>(x)",
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float", "float16", "double", "int64"])
@pytest.mark.parametrize("opset", [7, 9, 11, 14, 17, 20, 22])
def test_in_every_form(opset: int, dtype: str, spoken: Counter[str]) -> None:
    inputs = "T[2,4,11,9] x, T[6,4,3,3] w, T[6,3,3,3] narrow, T[6,4,3] flat, T[3,3] square, T[5,3] tall, T[9] row, "
    inputs += "T[11,1] column, T[4,1,1] bias, T[1] one, T[4] c"
    header = f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}'
    for form in FORMS:
        proto = onnx.parser.parse_model(header.replace("T[", f"{dtype}[") + f") => ({dtype}[N] y) {{ y = {form} }}")
        gather_facts(ir.from_proto(proto), {})
    known = {name for name, (since, _) in shapes._RULES.items() if since <= opset}
    assert set(spoken) == (known if dtype != "int64" else set())


POOLS = [
    f"{name}<kernel_shape = [{k},{k}], strides = [{step},{step}]{dilations}{auto}{ceil}>(x)"
    for name, k, step, dilations, auto, ceil in product(
        ("MaxPool", "AveragePool", "LpPool"), (1, 2, 3), (1, 2, 3, 5), ("", ", dilations = [2,2]"),
        ("", *(f', auto_pad = "{one}"' for one in ("VALID", "SAME_UPPER", "SAME_LOWER"))), ("", ", ceil_mode = 1"),
    )
    if step <= k or "SAME" not in auto  # else pads are negative, which not all kernels of the runtime take
]  # fmt: skip
RESIZED = [f'Resize<mode = "{mode}">(x, , s{number})' for mode in ("nearest", "linear") for number in range(4)]


@pytest.mark.parametrize("opset", [19, 22])
def test_where_the_inference_is_wrong_shapes_are_those_of_a_run(opset: int) -> None:
    """Pools that round up or pad themselves, and maps resized by scales; one graph holds all forms."""
    scales = ((1.4, 1.4), (0.6, 1.1), (1 / 3, 1 / 9), (2, 2.3))
    weights = ", ".join(f"float[4] s{i} = {{1, 1, {h}, {w}}}" for i, (h, w) in enumerate(scales))
    forms = [*POOLS, *RESIZED]
    nodes = "\n".join(f"y{number} = {form}" for number, form in enumerate(forms))
    outputs = ", ".join(f"float[A{i},B{i},C{i},D{i}] y{i}" for i in range(len(forms)))
    text = (
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[2,4,15,9] x) => ({outputs}) <{weights}> {{ {nodes} }}'
    )
    proto = onnx.parser.parse_model(text)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    run = session.run(None, {"x": np.ones((2, 4, 15, 9), np.float32)})
    found = gather_facts(ir.from_proto(proto), {"x": (2, 4, 15, 9)})
    assert {form: found.shape(f"y{i}") for i, form in enumerate(forms)} == {
        form: array.shape for form, array in zip(forms, run, strict=True)
    }
