"""What a classifier costs, against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from models import model, plain, saved

from dlprune.classifier import Classifier
from dlprune.cost import cost_of, file_size, latency

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\nnet '


def classifier(body: str) -> Classifier:
    return Classifier.from_proto(model(HEADER + body))


def test_a_plain_network_costs_what_the_sum_by_hand_says() -> None:
    cost = cost_of(Classifier.from_proto(plain(channels=3, size=8, classes=5)))
    # w1 6·3·3·3 + b1 6, w2 8·6·3·3, w3 8·5 + b3 5
    assert [layer.parameters for layer in cost.layers] == [162 + 6, 432, 40 + 5]
    assert cost.parameters == 168 + 432 + 45
    # 8×8 pixels, each kernel weight once per pixel
    assert [layer.macs for layer in cost.layers] == [64 * 162, 64 * 432, 40]
    assert [layer.kernels for layer in cost.layers] == [6, 8, 5]
    assert (cost.kernels, cost.macs) == (14, 64 * 162 + 64 * 432 + 40)


def test_a_fixed_batch_is_counted_per_image() -> None:
    assert cost_of(Classifier.from_proto(plain(batch=4))) == cost_of(Classifier.from_proto(plain(batch="N")))


def test_groups_strides_and_transposed_convolutions_are_counted_by_their_own_weights() -> None:
    cost = cost_of(
        classifier("""(float[N,4,8,8] x) => (float[N,5] y)
        <float[8,2,3,3] w1, float[8,1,3,3] w2, float[8,3,2,2] w3, float[6,5] w4>
        {
          a = Conv<group = 2, pads = [1,1,1,1], strides = [2,2]>(x, w1)
          b = Conv<group = 8, pads = [1,1,1,1]>(a, w2)
          c = ConvTranspose<group = 2, strides = [2,2]>(b, w3)
          d = GlobalAveragePool(c)
          e = Flatten(d)
          y = MatMul(e, w4)
        }""")
    )
    # 4×4 pixels come out of the first two; every one of the 8×4×4 numbers that go into the third meets 3·2·2 weights.
    assert [layer.macs for layer in cost.layers] == [16 * 8 * 2 * 9, 16 * 8 * 9, 8 * 16 * 3 * 4, 30]
    assert [layer.kernels for layer in cost.layers] == [8, 8, 6, 5]
    assert cost.kernels == 22


def test_a_shared_weight_counts_once_and_a_plain_number_not_at_all() -> None:
    cost = cost_of(
        classifier("""(float[N,4,6,6] x) => (float[N,4] y)
        <float[4,4,1,1] w, float[4] b, float six = {6.0}>
        {
          a = Conv(x, w, b)
          r = Clip(a, , six)
          c = Conv(r, w, b)
          d = GlobalAveragePool(c)
          y = Flatten(d)
        }""")
    )
    assert cost.parameters == 16 + 4
    assert [layer.parameters for layer in cost.layers] == [20, 20]


def test_a_weight_that_the_graph_computes_counts_as_a_weight() -> None:
    cost = cost_of(
        classifier("""(float[N,4,6,6] x) => (float[N,4] y)
        <int64[4] s = {4, 4, 1, 1}>
        {
          w = ConstantOfShape(s)
          a = Conv(x, w)
          d = GlobalAveragePool(a)
          y = Flatten(d)
        }""")
    )
    assert cost.parameters == 16


def test_a_product_of_two_activations_has_no_kernels() -> None:
    cost = cost_of(
        classifier("""(float[N,4,6,6] x) => (float[N,5] y)
        <int64[3] s = {0, 4, 36}, float[4,5] w>
        {
          a = Reshape(x, s)
          t = Transpose<perm = [0,2,1]>(a)
          p = MatMul(a, t)
          m = ReduceMean<axes = [2], keepdims = 0>(p)
          y = MatMul(m, w)
        }""")
    )
    assert [(layer.kernels, layer.macs) for layer in cost.layers] == [(0, 4 * 36 * 4), (5, 20)]


def test_file_size_counts_the_files_with_external_weights(tmp_path: Path) -> None:
    single = saved(plain(), tmp_path / "one.onnx")
    assert file_size(single) == (tmp_path / "one.onnx").stat().st_size
    onnx.save(plain(), tmp_path / "two.onnx", save_as_external_data=True, location="two.data", size_threshold=0)
    both = (tmp_path / "two.onnx").stat().st_size + (tmp_path / "two.data").stat().st_size
    assert file_size(tmp_path / "two.onnx") == both


def test_latency_tells_a_large_network_from_a_small_one() -> None:
    small, large = Classifier.from_proto(plain(size=8)), Classifier.from_proto(plain(size=256))
    measured = latency([large, small], runs=5)
    assert measured.runs == 5
    assert measured.ratio == pytest.approx(measured.seconds[1] / measured.seconds[0])
    assert 0 < measured.ratio < 0.5


def test_latency_runs_as_often_as_the_time_allows() -> None:
    assert 5 <= latency([Classifier.from_proto(plain(batch=3))], seconds=0.01).runs <= 500
