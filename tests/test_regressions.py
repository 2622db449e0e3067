"""Faults that random and damaged networks have brought to light, each as small as it gets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exactness import assert_exact, assert_prunable, choose, masked, random_images, run
from models import model, plain, saved
from netchecks import score_graph_of
from onnx import TensorProto, helper, numpy_helper
from structures import assert_compensated_in_steps, scored

import dlprune as ha
from dlprune.analysis import analysis_of
from dlprune.classifier import Classifier
from dlprune.errors import HOperatorError
from dlprune.gradients import GradientError
from dlprune.scoregraph import ScoreGraphError


def test_a_computed_target_shape_keeps_the_entries_that_follow_the_image_size() -> None:
    """Two open dimensions and a literal channel number: only the channel number may be written down anew."""
    proto = model(
        """<ir_version: 8, opset_import: ["" : 15]>
        net (float[N,3,H,W] x) => (float[N,K] y)
        <float[6,3,3,3] w, float[8,6,3] v, float[5,8] u, int64[1] c = {8}, int64[1] zero = {0}, int64[1] one = {1},
         int64[1] two = {2}, int64[1] four = {4}, int64[3] flat = {0, 6, -1}> {
          a = Conv<pads = [1,1,1,1]>(x, w)
          ar = Relu(a)
          f = Reshape(ar, flat)
          l = Conv<pads = [1,1]>(f, v)
          s = Shape(ar)
          n = Slice(s, zero, one, zero)
          hw = Slice(s, two, four, zero)
          t = Concat<axis = 0>(n, c, hw)
          m = Reshape(l, t)
          g = GlobalAveragePool(m)
          e = Flatten(g)
          y = Gemm<transB = 1>(e, u)
        }"""
    )
    classifier = Classifier.from_proto(proto)
    classifier.set("image_height", (9,))
    classifier.set("image_width", (7,))
    assert_prunable(classifier)
    found = analysis_of(classifier)
    gone = choose(found.structure, 0.5)
    pruned = assert_exact(classifier, gone)
    classifier.set("image_height", (12,))
    images = random_images(classifier, 2)
    expected = run(masked(classifier.model, found.facts, found.structure, gone), images, "y")
    assert abs(run(pruned.model, images, "y") - expected).max() < 1e-4


def test_a_chain_of_reshapes_that_ends_in_another_rank_is_no_channel_shuffle() -> None:
    proto = model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[N,3,4,4] x) => (float[N,5] y)
        <float[8,3,3,3] w, float[2,5] u, int64[6] s6 = {0, 2, 2, 2, 4, 4}, int64[4] s4 = {0, 2, 8, 8},
         int64[3] s3 = {0, 2, 64}> {
          a = Conv<pads = [1,1,1,1]>(x, w)
          b = Reshape(a, s6)
          c = Transpose<perm = [0,1,4,2,5,3]>(b)
          d = Reshape(c, s4)
          e = Reshape(d, s3)
          f = Transpose<perm = [0,2,1]>(e)
          g = MatMul(f, u)
          y = ReduceMean<axes = [1], keepdims = 0>(g)
        }"""
    )
    assert_prunable(Classifier.from_proto(proto))


def test_a_tensor_of_millions_of_channels_is_left_alone() -> None:
    proto = model(
        """<ir_version: 8, opset_import: ["" : 13]>
        net (float[N,3,4,4] x) => (float[N,4] y)
        <float[4,3,3,3] w, int64[8] pads = {0,16777216,0,0,0,0,0,0}, int64[1] zero = {0}, int64[1] four = {4},
         int64[1] one = {1}> {
          a = Conv<pads = [1,1,1,1]>(x, w)
          b = Pad(a, pads)
          c = Slice(b, zero, four, one)
          y = ReduceMean<axes = [2,3], keepdims = 0>(c)
        }"""
    )
    (layer,) = analysis_of(Classifier.from_proto(proto)).structure.layers
    assert layer.reason == "the output of Pad 'Pad_0' is too large to be followed"


def test_what_a_file_declares_of_a_weight_elsewhere_does_not_count() -> None:
    """Old files list weights among the inputs, and these declarations may be wrong."""
    proto = plain()
    proto.graph.input.append(helper.make_tensor_value_info("w1", TensorProto.FLOAT, [2147483647, 1, 1, 1]))
    classifier = Classifier.from_proto(proto)
    assert classifier.model.graph.initializers["w1"].shape == (6, 3, 3, 3)
    assert_prunable(classifier)
    score_graph_of(classifier)


def test_billions_of_declared_classes_are_no_classes() -> None:
    proto = plain()
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1 << 40
    assert not Classifier.from_proto(proto).is_classification


def test_why_a_model_does_not_run_is_told_where_its_classes_are_unknown() -> None:
    proto = plain(channels=4)
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
    del proto.graph.output[0].type.tensor_type.shape.dim[1:]
    proto.graph.output[0].type.tensor_type.shape.dim.add(dim_param="classes")
    assert "cannot be run" in Classifier.from_proto(proto).reason


def test_a_model_that_cannot_be_analysed_because_it_cannot_run_says_so() -> None:
    proto = plain()
    proto.graph.node[2].attribute.append(helper.make_attribute("group", 5))
    with pytest.raises(HOperatorError, match="ONNX Runtime cannot run this model"):
        analysis_of(Classifier.from_proto(proto))


def test_scores_of_a_model_whose_shapes_depend_on_the_data_are_refused_in_words() -> None:
    proto = model(
        """<ir_version: 8, opset_import: ["" : 13]>
        net (float[2,3,4,4] x) => (float[2,2] y) <float[4,3,1,1] w, float[4,2] u> {
          a = Conv(x, w)
          b = ReduceMean<axes = [2,3], keepdims = 0>(a)
          c = NonZero(a)
          s = Shape(c)
          h = Cast<to = 1>(s)
          p = ReduceMean(h)
          d = Add(b, p)
          e = Compress<axis = 0>(d, k)
          y = MatMul(e, u)
        }""",
        k=(2,),
    )
    keep = next(tensor for tensor in proto.graph.initializer if tensor.name == "k")
    keep.CopyFrom(numpy_helper.from_array(np.ones(2, np.bool_), "k"))
    with pytest.raises(ScoreGraphError, match="is not known"):
        score_graph_of(Classifier.from_proto(proto))


def test_constants_are_computed_as_the_runtime_does_it() -> None:
    """ONNX's reference implementation takes a BatchNormalization before opset 14 for one that is in training."""
    proto = model(
        """<ir_version: 8, opset_import: ["" : 12]>
        net (float[N,3,4,4] x) => (float[N,4] y)
        <float[6,3,3,3] w, float[2,6,1,1] c, float[6] s, float[6] b, float[6] m, float[6] var, float[4,6,1,1] v> {
          a = Conv(x, w)
          n = BatchNormalization(c, s, b, m, var)
          k = ReduceMax<axes = [0], keepdims = 1>(n)
          d = Mul(a, k)
          e = Conv(d, v)
          g = GlobalAveragePool(e)
          y = Flatten(g)
        }"""
    )
    assert_prunable(Classifier.from_proto(proto))


@pytest.mark.parametrize(
    "nodes",
    [
        "b = ConstantOfShape(big)",
        "b = Expand(one, big)",
        "b = Tile(one, big)",
        "c = Cast<to = 1>(big)\n d = Add(c, c)\n e = Cast<to = 7>(d)\n b = ConstantOfShape(e)",
    ],
)
def test_a_constant_that_would_fill_the_memory_is_refused_before_anybody_computes_it(nodes: str) -> None:
    """A runtime computes constants as soon as it loads a model; 34 gigabytes would be gone."""
    proto = model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        net (float[N,3,4,4] x) => (float[N,4] y)
        <float[4,3,3,3] w, int64[2] big = {{1, 8589934592}}, float[1,1] one = {{1.0}}> {{
          {nodes}
          m = ReduceMean<keepdims = 0>(b)
          a = Conv(x, w)
          g = GlobalAveragePool(a)
          f = Flatten(g)
          y = Add(f, m)
        }}"""
    )
    classifier = Classifier.from_proto(proto)
    for use in (classifier.session, lambda: analysis_of(classifier)):
        with pytest.raises(HOperatorError, match="would fill the memory: the constant"):
            use()


def test_a_bias_that_is_a_matrix_survives_several_steps_of_compensation(tmp_path: Path) -> None:
    """The refitted bias is a vector; the next step must not believe what was declared of the old one."""
    proto = model(
        """<ir_version: 8, opset_import: ["" : 13]>
        net (float[2,3,6,6] x) => (float[2,5] y) <float[8,3,3,3] w, float[8,5] u, float[1,5] b> {
          a = Conv(x, w)
          r = Relu(a)
          g = ReduceMean<axes = [2,3], keepdims = 0>(r)
          y = Gemm(g, u, b)
        }"""
    )
    handle = ha.read_dl_model(saved(proto, tmp_path / "net.onnx"))
    pruning = ha.create_dl_pruning(handle, "oracle", ha.from_python_dict({"percentage": 60, "step_percentage": 20}))
    rng = np.random.default_rng(0)
    samples = [ha.create_dict() for _ in range(2)]
    for sample in samples:
        ha.set_dict_object(rng.standard_normal((6, 6, 3)).astype(np.float32), sample, "image")
    ha.add_dl_pruning_batch(handle, pruning, samples)
    ha.gen_dl_pruned_model(handle, pruning)
    assert ha.get_dl_pruning_param_s(pruning, "pruned_kernel_num") == 4


def branched(condition: str) -> Classifier:
    """A net with two ways; `condition` computes which one is taken."""
    proto = model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        net (float[N,3,8,8] x) => (float[N,5] y)
        <float[6,3,3,3] w1, float[4,6,1,1] w2, float[4,5] w3, float zero = {{0.0}}> {{
          a = Conv<pads = [1,1,1,1]>(x, w1)
          b = Conv(a, w2)
          {condition}
          bright = Greater(m, zero)
          c = If(bright) <
            then_branch = bright_net () => (float[N,4,8,8] t) {{ t = Relu(b) }},
            else_branch = dark_net () => (float[N,4,8,8] e) {{ e = Neg(b) }}
          >
          g = ReduceMean<axes = [2,3], keepdims = 0>(c)
          y = MatMul(g, w3)
        }}"""
    )
    return Classifier.from_proto(proto)


BY_IMAGE, ALWAYS_THE_SAME = "m = ReduceMax<keepdims = 0>(x)", "m = Cos(zero)"


def test_what_only_control_flow_reads_is_not_taken_for_something_without_influence() -> None:
    """No input of an If names what its branches read; scores before it were zero."""
    with pytest.raises(GradientError, match="no gradient of what is read inside of control flow"):
        score_graph_of(branched(BY_IMAGE))


@pytest.mark.parametrize(("mode", "condition"), [("l2", BY_IMAGE), ("exact_oracle", ALWAYS_THE_SAME)])
def test_modes_without_gradients_see_through_control_flow(mode: str, condition: str) -> None:
    """Scored, pruned and refitted; 'exact_oracle' runs the net from the removed channel on, through the branches."""
    classifier = branched(condition)
    pruning, data = scored(classifier, mode)
    assert (data.scores()[:6] > 0).all()
    assert_compensated_in_steps(classifier, pruning)
