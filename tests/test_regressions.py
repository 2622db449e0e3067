"""Faults that random and damaged networks have brought to light, each as small as it gets."""

from __future__ import annotations

from exactness import assert_exact, assert_prunable, choose, masked, random_images, run
from models import model

from dlprune.analysis import analysis_of
from dlprune.classifier import Classifier


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
        net (float[N,3,4,4] x) => (float[N,16777220] y)
        <float[4,3,3,3] w, int64[8] pads = {0,16777216,0,0,0,0,0,0}> {
          a = Conv<pads = [1,1,1,1]>(x, w)
          b = Pad(a, pads)
          c = ReduceMean<axes = [2,3], keepdims = 0>(b)
          y = Softmax<axis = 1>(c)
        }"""
    )
    (layer,) = analysis_of(Classifier.from_proto(proto)).structure.layers
    assert layer.reason == "the output of Pad 'Pad_0' is too large to be followed"
