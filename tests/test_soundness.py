"""Files that ONNX's checker lets pass but nobody could stand are refused before any work is done."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from models import model, plain
from onnx import TensorProto, helper, numpy_helper

import dlprune as ha
from dlprune.classifier import Classifier
from dlprune.soundness import fault_of


def refused(proto: onnx.ModelProto) -> str:
    with pytest.raises(ha.HOperatorError) as caught:
        Classifier.from_bytes(proto.SerializeToString())
    assert caught.value.error_code == 7801
    return caught.value.extended_error_message


def test_a_sound_model_has_no_fault():
    assert fault_of(plain()) == ""


@pytest.mark.parametrize("dims", [[6, 3, 3, 4], [1 << 40], [-1, 3, 3, 3], []])
def test_dimensions_must_fit_the_numbers_of_a_weight(dims: list[int]):
    proto = plain()
    proto.graph.initializer[0].dims[:] = dims
    assert "weight 'w1'" in refused(proto)


def test_numbers_that_are_no_raw_bytes_are_counted_too():
    proto = plain()
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.float_data.extend([0.5] * 7)
    assert "needs 162 numbers but holds 7" in refused(proto)


def test_a_weight_may_not_change_its_type_without_its_bytes():
    proto = plain()
    proto.graph.initializer[0].data_type = TensorProto.INT8
    assert "needs 162 bytes but holds 648" in refused(proto)


def call(name: str, source: str, target: str) -> onnx.NodeProto:
    return helper.make_node(name, [source], [target], domain="local")


def with_functions(bodies: dict[str, list[onnx.NodeProto]]) -> onnx.ModelProto:
    """A classifier that ends in a call of 'first'; each function computes b from a."""
    proto = plain()
    opsets = [proto.opset_import[0], helper.make_opsetid("local", 1)]
    proto.functions.extend(helper.make_function("local", n, ["a"], ["b"], nodes, opsets) for n, nodes in bodies.items())
    proto.opset_import.append(helper.make_opsetid("local", 1))
    proto.graph.node[-1].CopyFrom(call("first", "m", "y"))
    return proto


def test_functions_that_double_in_size_forty_times_are_refused():
    bodies = {"first": [call("f0", "a", "b")], "f40": [helper.make_node("Relu", ["a"], ["b"])]}
    for i in range(40):
        bodies[f"f{i}"] = [call(f"f{i + 1}", "a", "c"), call(f"f{i + 1}", "c", "b")]
    assert "nodes once its functions are written out" in refused(with_functions(bodies))


def test_functions_that_call_each_other_are_refused():
    proto = with_functions({"first": [call("second", "a", "b")], "second": [call("first", "a", "b")]})
    assert "calls itself" in refused(proto)


def test_a_function_may_be_called_often():
    inner = [call("second", "a", "c"), call("second", "c", "d"), call("second", "d", "b")]
    proto = with_functions({"first": inner, "second": [helper.make_node("Relu", ["a"], ["b"])]})
    assert Classifier.from_proto(proto).is_classification


LOOP = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,3,8,8] x) => (float[N,4] y) <float[4,3,3,3] w, bool yes = {1}, int64 n = {3}> {
  a = Conv(x, w)
  b = Loop (n, yes, a) <body = step (int64 i, bool go, float[P,4,6,6] s) => (bool on, float[P,4,6,6] t) {
    on = Identity(go)
    t = Relu(s)
  }>
  c = GlobalAveragePool(b)
  y = Flatten(c)
}"""


def test_a_loop_of_a_few_rounds_is_read():
    assert Classifier.from_proto(model(LOOP)).is_classification


@pytest.mark.parametrize("rounds", [1 << 40, None])
def test_a_loop_that_might_never_end_is_refused(rounds: int | None):
    proto = model(LOOP)
    if rounds is None:
        proto.graph.node[1].input[0] = ""
    else:
        trips = next(tensor for tensor in proto.graph.initializer if tensor.name == "n")
        trips.CopyFrom(numpy_helper.from_array(np.array(rounds, np.int64), "n"))
    assert "the loop" in refused(proto)
