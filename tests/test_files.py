"""Classifier files as exporters write them: read, scored, pruned exactly and written in the form in which they came."""

from __future__ import annotations

import math
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from exactness import assert_exact, assert_same, choose, masked, random_images, run
from models import saved
from onnx import numpy_helper
from structures import net, scored

import dlprune as ha
from dlprune.analysis import analysis_of
from dlprune.classifier import Classifier
from dlprune.model import unwrap_model
from dlprune.selection import removable_kernels


def check_file(path: Path, *, kernels: int, convolutions: int, class_output: str = "") -> onnx.ModelProto:
    """Read a file, score and prune it by half through the operators, and compare the written file with the truth."""
    handle = ha.read_dl_model(str(path))
    if class_output:
        ha.set_dl_model_param(handle, "class_output", class_output)
    classifier = unwrap_model(handle, 1)
    pruning, data = scored(classifier)
    found = tuple(ha.get_dl_pruning_param_s(pruning, f"prunable_{what}_num") for what in ("kernel", "conv"))
    assert found == (kernels, convolutions)
    ha.set_dl_pruning_param(pruning, "percentage", 50)
    ha.set_dl_pruning_param(pruning, "compensation", "none")
    pruned_path = path.with_name("pruned.onnx")
    ha.write_dl_model(ha.gen_dl_pruned_model(handle, pruning), str(pruned_path))

    analysis = analysis_of(classifier)
    assert data.removed is not None
    truth = masked(classifier.model, analysis.facts, analysis.structure, data.removed)
    pruned = Classifier.read(str(pruned_path))
    if class_output:
        pruned.set("class_output", (class_output,))
    images = random_images(classifier, 3)
    expected, actual = run(truth, images, classifier.logits_name), run(pruned.model, images, pruned.logits_name)
    assert_same(actual, expected, 1e-4, path.name)
    assert_exact(pruned, choose(analysis_of(pruned).structure, 0.5))

    before, after = onnx.load(path), onnx.load(pruned_path)
    assert _opsets(after) == _opsets(before)
    assert after.ir_version == before.ir_version
    assert list(after.graph.output) == list(before.graph.output)
    assert after.graph.input[0] == before.graph.input[0]
    return after


def _opsets(proto: onnx.ModelProto) -> dict[str, int]:
    return {entry.domain: entry.version for entry in proto.opset_import}


BODY = """
    a = Conv<pads = [1,1,1,1]>(x, w1, b1)
    n = BatchNormalization(a, s, h, m, var)
    r = Relu(n)
    p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(r)
    b = Conv<pads = [1,1,1,1]>(p, w2, b2)
    br = Relu(b)"""
WEIGHTS = """float[6,3,3,3] w1, float[6] b1, float[6] s, float[6] h, float[6] m, float[6] var, float[5,6,3,3] w2,
    float[5] b2"""
KERNELS, CONVOLUTIONS = 5 + 4, 2


def with_inputs_for_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """List every initializer as an input too, as files before IR version 4 must."""
    for tensor in proto.graph.initializer:
        proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return proto


# --- versions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", range(7, 24))
def test_every_opset_is_pruned_and_kept(opset: int, tmp_path: Path) -> None:
    ir_version = 3 if opset < 9 else 8 if opset < 20 else 10
    proto = net(BODY, WEIGHTS, ("br", 5), opset=opset, ir_version=ir_version)
    if ir_version == 3:
        with_inputs_for_weights(proto)
    saved(proto, tmp_path / "model.onnx")
    check_file(tmp_path / "model.onnx", kernels=KERNELS, convolutions=CONVOLUTIONS)


@pytest.mark.parametrize("opset", [7, 8, 9])
def test_attributes_of_old_opsets_are_mended(opset: int, tmp_path: Path) -> None:
    upsample = (
        'u = Upsample<mode = "nearest", scales = [1.0,1.0,2.0,2.0]>(p)'
        if opset < 9
        else 'u = Upsample<mode = "nearest">(p, scales)'
    )
    proto = net(
        f"""
        a = Conv<pads = [1,1,1,1]>(x, w1, b1)
        c = Clip<min = 0.0, max = 6.0>(a)
        l, r = Split<axis = 1, split = [4,4]>(c)
        s = Slice<axes = [1,2], starts = [1,0], ends = [4,8]>(l)
        q = Pad<pads = [0,2,0,0,0,0,0,0], mode = "constant">(r)
        j = Concat<axis = 1>(s, q)
        p = AveragePool<kernel_shape = [2,2], strides = [2,2]>(j)
        {upsample}
        b = Conv(u, w2)
        z = Sum(b, b)
        d, mask = Dropout<ratio = 0.3>(z)
        g = ReduceMean<axes = [2,3], keepdims = 1>(d)
        f = Squeeze<axes = [2,3]>(g)
        y = Gemm(f, w3, b3)""",
        """float[8,3,3,3] w1, float[8] b1, float[5,9,1,1] w2, float[5,5] w3, float[5] b3"""
        + ("" if opset < 9 else ", float[4] scales = {1.0,1.0,2.0,2.0}"),
        opset=opset,
        ir_version=3,
    )
    saved(with_inputs_for_weights(proto), tmp_path / "model.onnx")
    # The left half is read from its second kernel on, of which one must stay; one of the right half stays too.
    check_file(tmp_path / "model.onnx", kernels=3 + 3 + 4, convolutions=2)


def test_statistics_that_old_files_return_to_nobody_do_not_matter(tmp_path: Path) -> None:
    """PyTorch's old exporter in training mode wrote five outputs."""
    body = BODY.replace("n = Batch", "n, mean, variance, saved_mean, saved_variance = Batch")
    saved(net(body, WEIGHTS, ("br", 5), opset=9), tmp_path / "model.onnx")
    check_file(tmp_path / "model.onnx", kernels=KERNELS, convolutions=CONVOLUTIONS)


def test_initializers_that_are_also_inputs_are_weights(tmp_path: Path) -> None:
    proto = with_inputs_for_weights(net(BODY, WEIGHTS, ("br", 5), opset=13, ir_version=8))
    saved(proto, tmp_path / "model.onnx")
    check_file(tmp_path / "model.onnx", kernels=KERNELS, convolutions=CONVOLUTIONS)


# --- weights ----------------------------------------------------------------------------------------------------------


def test_weights_may_be_filled_by_constant_of_shape(tmp_path: Path) -> None:
    proto = net(
        """
        w1 = ConstantOfShape<value = float[1] {0.05}>(s1)
        a = Conv<pads = [1,1,1,1]>(x, w1, b1)
        r = Relu(a)
        w2 = ConstantOfShape<value = float[1] {0.1}>(s2)
        b = Conv(r, w2, b2)
        br = Relu(b)""",
        "int64[4] s1 = {6,3,3,3}, float[6] b1, int64[4] s2 = {5,6,1,1}, float[5] b2",
        ("br", 5),
    )
    saved(proto, tmp_path / "model.onnx")
    pruned = check_file(tmp_path / "model.onnx", kernels=5 + 4, convolutions=2)
    assert sum(node.op_type == "ConstantOfShape" for node in pruned.graph.node) == 2


def test_weights_may_stand_in_constant_nodes(tmp_path: Path) -> None:
    proto = net(BODY, WEIGHTS, ("br", 5))
    nodes = [
        onnx.helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in list(proto.graph.initializer)
    ]
    del proto.graph.initializer[:]
    for node in reversed(nodes):
        proto.graph.node.insert(0, node)
    saved(proto, tmp_path / "model.onnx")
    check_file(tmp_path / "model.onnx", kernels=KERNELS, convolutions=CONVOLUTIONS)


def test_equal_weights_may_be_shared_through_identity_nodes(tmp_path: Path) -> None:
    proto = net(
        """
        b2 = Identity(b1)
        h = Identity(b1)
        a = Conv<pads = [1,1,1,1]>(x, w1, b1)
        n = BatchNormalization(a, s, h, b2, var)
        r = Relu(n)
        b = Conv<pads = [1,1,1,1]>(r, w2, b2)
        br = Relu(b)""",
        "float[6,3,3,3] w1, float[6] b1, float[6] s, float[6] var, float[6,6,3,3] w2",
        ("br", 6),
    )
    saved(proto, tmp_path / "model.onnx")
    check_file(tmp_path / "model.onnx", kernels=5 + 5, convolutions=2)


def test_external_weights_are_read_and_written_back_into_the_file(tmp_path: Path) -> None:
    proto = net(BODY, WEIGHTS, ("br", 5))
    onnx.save(proto, tmp_path / "model.onnx", save_as_external_data=True, location="model.data", size_threshold=0)
    pruned = check_file(tmp_path / "model.onnx", kernels=KERNELS, convolutions=CONVOLUTIONS)
    assert all(tensor.data_location != onnx.TensorProto.EXTERNAL for tensor in pruned.graph.initializer)


# --- heads and outputs ------------------------------------------------------------------------------------------------

HEADS = {
    "softmax": "f = Flatten(g) l = Gemm(f, w3, b3) y = Softmax<axis = 1>(l)",
    "softmax behind Reshape": "f = Flatten(g) l = Gemm(f, w3, b3) o = Softmax<axis = 1>(l) y = Reshape(o, shape)",
    "softmax of a map behind Flatten": "l = Conv(g, w4, b3) o = Softmax<axis = 1>(l) y = Flatten(o)",
    "log softmax": "f = Flatten(g) l = Gemm(f, w3, b3) y = LogSoftmax<axis = -1>(l)",
    "logits as a map": "y = Conv(g, w4, b3)",
    "softmax of a map": "l = Conv(g, w4, b3) y = Softmax<axis = 1>(l)",
    "dropout with two outputs": "d, mask = Dropout(g) f = Flatten(d) y = Gemm(f, w3, b3)",
}


@pytest.mark.parametrize("head", HEADS)
def test_heads_are_recognised(head: str, tmp_path: Path) -> None:
    weights = ", float[5,5] w3, float[5,5,1,1] w4, float[5] b3, int64[2] shape = {-1,5}"
    proto = net(f"{BODY}\n g = GlobalAveragePool(br)\n {HEADS[head]}", WEIGHTS + weights)
    unread = {"w3", "w4", "shape"} - {name for node in proto.graph.node for name in node.input}
    for tensor in [tensor for tensor in proto.graph.initializer if tensor.name in unread]:
        proto.graph.initializer.remove(tensor)
    if "as a map" in head or head.endswith("of a map"):
        for _ in range(2):
            proto.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 1
    saved(proto, tmp_path / "model.onnx")
    check_file(tmp_path / "model.onnx", kernels=KERNELS, convolutions=CONVOLUTIONS)


def test_the_user_names_the_class_output_and_the_others_stay_as_they_are(tmp_path: Path) -> None:
    proto = net(BODY + "\n q = Flatten(p)\n aux = Gemm(q, w5)", WEIGHTS + ", float[96,4] w5", ("br", 5))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("aux", onnx.TensorProto.FLOAT, ["N", 4]))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("br", onnx.TensorProto.FLOAT, ["N", 5, 4, 4]))
    saved(proto, tmp_path / "model.onnx")
    # A feature map that is an output keeps all its channels.
    check_file(tmp_path / "model.onnx", kernels=5, convolutions=1, class_output="y")


# --- inputs -----------------------------------------------------------------------------------------------------------


def test_channels_last_images_are_turned_by_a_leading_transpose(tmp_path: Path) -> None:
    proto = net(
        BODY.replace("Conv<pads = [1,1,1,1]>(x,", "Conv<pads = [1,1,1,1]>(t,", 1).replace(
            "a = Conv", "t = Transpose<perm = [0,3,1,2]>(x) a = Conv", 1
        ),
        WEIGHTS,
        ("br", 5),
        image="N,8,8,3",
    )
    saved(proto, tmp_path / "model.onnx")
    check_file(tmp_path / "model.onnx", kernels=KERNELS, convolutions=CONVOLUTIONS)


def test_scalar_preprocessing_before_the_first_convolution_is_kept(tmp_path: Path) -> None:
    proto = net(
        """
        scaled = Mul(x, factor)
        moved = Sub(scaled, mean)
        divided = Div(moved, deviation)"""
        + BODY.replace("(x,", "(divided,"),
        WEIGHTS + ", float factor = {0.5}, float[1,3,1,1] mean = {0.1,0.2,0.3}, float[3,1,1] deviation = {0.5,0.6,0.7}",
        ("br", 5),
    )
    saved(proto, tmp_path / "model.onnx")
    check_file(tmp_path / "model.onnx", kernels=KERNELS, convolutions=CONVOLUTIONS)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_fixed_batch_is_scored_at_that_batch(batch: int, tmp_path: Path) -> None:
    proto = net(BODY, WEIGHTS, ("br", 5), image=f"{batch},3,8,8")
    saved(proto, tmp_path / "model.onnx")
    check_file(tmp_path / "model.onnx", kernels=KERNELS, convolutions=CONVOLUTIONS)


def test_height_and_width_may_be_open(tmp_path: Path) -> None:
    proto = net(
        """
        a = Conv<pads = [1,1,1,1]>(x, w1, b1)
        ar = Relu(a)
        b = Conv<strides = [2,2], pads = [1,1,1,1]>(ar, w2, b2)
        br = Relu(b)
        shape = Shape(ar)
        space = Slice(shape, two, four)
        head = Shape(br)
        channels = Slice(head, zero, two)
        sizes = Concat<axis = 0>(channels, space)
        u = Resize<mode = "linear">(br, , , sizes)
        j = Concat<axis = 1>(ar, u)
        rows = Concat<axis = 0>(batch, ten, minus)
        f = Reshape(j, rows)
        g = ReduceMean<axes = [2], keepdims = 0>(f)
        y = Gemm(g, w3, b3)""",
        """float[4,3,3,3] w1, float[4] b1, float[6,4,3,3] w2, float[6] b2, float[10,5] w3, float[5] b3,
        int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}, int64[1] batch = {0}, int64[1] ten = {10},
        int64[1] minus = {-1}""",
        image="N,3,H,W",
    )
    path = tmp_path / "model.onnx"
    saved(proto, path)
    handle = ha.read_dl_model(str(path))
    ha.set_dl_model_param(handle, "image_dimensions", [16, 12, 3])
    classifier = unwrap_model(handle, 1)
    structure = analysis_of(classifier).structure
    assert removable_kernels(structure) == 3 + 5
    gone = choose(structure, 0.5)
    pruned = assert_exact(classifier, gone)
    truth = masked(classifier.model, analysis_of(classifier).facts, structure, gone)
    for size in ((12, 16), (8, 8), (9, 21)):
        images = np.random.default_rng(0).standard_normal((2, 3, *size)).astype(np.float32)
        assert_same(run(pruned.model, images, "y"), run(truth, images, "y"), 1e-4, f"{size}")


def test_bounds_and_amounts_may_follow_the_size_of_the_image(tmp_path: Path) -> None:
    proto = net(
        """
        a = Conv<pads = [1,1,1,1]>(x, w1, b1)
        ar = Relu(a)
        shape = Shape(ar)
        rows = Slice(shape, two, three)
        half = Div(rows, two)
        ends = Concat<axis = 0>(seven, half)
        s = Slice(ar, starts, ends, axes, steps)
        rest = Sub(rows, half)
        amounts = Concat<axis = 0>(zeros, one, zero, zero, rest, zero)
        p = Pad(s, amounts)
        b = Conv(p, w2)
        br = Relu(b)""",
        """float[8,3,3,3] w1, float[8] b1, float[5,4,1,1] w2, int64[1] zero = {0}, int64[1] one = {1},
        int64[1] two = {2}, int64[1] three = {3}, int64[1] seven = {7}, int64[2] starts = {1,0}, int64[2] axes = {1,2},
        int64[2] steps = {2,1}, int64[3] zeros = {0,1,0}""",
        ("br", 5),
        image="N,3,H,W",
    )
    # Channels 1, 3, 5 are read behind a padded one; the odd one out and its likes are free. One of the three must stay.
    saved(proto, tmp_path / "model.onnx")
    handle = ha.read_dl_model(str(tmp_path / "model.onnx"))
    ha.set_dl_model_param(handle, "image_dimensions", [16, 12, 3])
    classifier = unwrap_model(handle, 1)
    analysis = analysis_of(classifier)
    assert removable_kernels(analysis.structure) == 7 + 4
    for share in (0.4, 1.0):
        gone = choose(analysis.structure, share)
        truth = masked(classifier.model, analysis.facts, analysis.structure, gone)
        pruned = assert_exact(classifier, gone)
        images = np.random.default_rng(0).standard_normal((2, 3, 22, 10)).astype(np.float32)
        assert_same(run(pruned.model, images, "y"), run(truth, images, "y"), 1e-4, "another size")


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_with_slashes_and_colons_and_nodes_without_names_are_fine(tmp_path: Path) -> None:
    proto = net(BODY, WEIGHTS, ("br", 5))
    names = {"a": "/stem/conv/Conv_output_0", "n": "net/bn:0", "br": "net/block_1/Relu:0", "w1": "onnx::Conv_12"}
    for node in proto.graph.node:
        node.name = ""
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for tensor in proto.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    saved(proto, tmp_path / "model.onnx")
    pruned = check_file(tmp_path / "model.onnx", kernels=KERNELS, convolutions=CONVOLUTIONS)
    # A weight that was cut keeps its name.
    assert {tensor.name for tensor in pruned.graph.initializer} == {tensor.name for tensor in proto.graph.initializer}


# --- the well-known networks of the onnx package ----------------------------------------------------------------------

LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("light_*.onnx"))
#: Convolutions that can lose kernels, and all of them. LRN fixes two each of AlexNet, ZFNet and Inception v1, the layer
#: that makes the classes one of DenseNet and SqueezeNet. In the second stage of ShuffleNet 34 channels of each of four
#: groups are dealt out to four groups, which couples all of them.
LIGHT_CONVOLUTIONS = {
    "bvlc_alexnet": (3, 5),
    "densenet121": (120, 121),
    "inception_v1": (55, 57),
    "inception_v2": (69, 69),
    "resnet50": (53, 53),
    "shufflenet": (41, 49),
    "squeezenet": (25, 26),
    "vgg19": (16, 16),
    "zfnet512": (3, 5),
}
#: Hidden dense layers are made this narrow: at full width those of VGG-19 alone would fill 500 MB.
DENSE = 128


def randomised(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Replace the generated weights of one number each by random ones that keep activations at a sane size."""
    graph = proto.graph
    literals = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    fillers = {node.output[0]: node for node in graph.node if node.op_type == "ConstantOfShape"}
    shapes = {name: [int(size) for size in literals[node.input[0]]] for name, node in fillers.items()}
    dense = [node for node in graph.node if node.op_type == "Gemm"]
    for before, after in pairwise(dense):
        for name, axis in ((before.input[1], 0), (before.input[2], 0), (after.input[1], 1)):
            shapes[name][axis] = DENSE
    scales = {node.input[1] for node in graph.node if node.op_type in ("BatchNormalization", "Mul")}
    variances = {node.input[4] for node in graph.node if node.op_type == "BatchNormalization"}
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        if name in scales | variances:
            array = rng.uniform(0.5, 1.5, shape)
        else:
            fan_in = math.prod(shape[1:]) if len(shape) in (2, 4) else 32
            array = rng.standard_normal(shape, np.float32) * math.sqrt(2 / fan_in)
        graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    for node in fillers.values():
        graph.node.remove(node)
    return proto


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem.removeprefix("light_"))
def test_well_known_networks_lose_thirty_percent_exactly(path: Path) -> None:
    classifier = Classifier.from_proto(randomised(onnx.load(path)))
    structure = analysis_of(classifier).structure
    prunable = sum(not layer.reason for layer in structure.layers)
    assert (prunable, len(structure.layers)) == LIGHT_CONVOLUTIONS[path.stem.removeprefix("light_")]
    pruned = assert_exact(classifier, choose(structure, 0.3))
    assert np.ptp(pruned.logits(random_images(pruned))) > 0


# --- what PyTorch's exporters write -----------------------------------------------------------------------------------

#: One network in many variants, by tests/benchmarks/exports.py.
EXPORTS = sorted((Path(__file__).parent / "exports").glob("*.onnx"))


@pytest.mark.parametrize("path", EXPORTS, ids=lambda path: path.stem)
def test_both_exporters_of_pytorch_give_the_same_structure_in_all_their_variants(path: Path, tmp_path: Path) -> None:
    """Opsets 9 to 20, folded or not, BatchNormalization kept, weights as inputs or external, open sizes."""
    copy = tmp_path / path.name
    shutil.copytree(path.parent, tmp_path, dirs_exist_ok=True)
    # Of the trunk, one channel stays in either half of the split: three units of three kernels, three of four (with
    # the depthwise one). Of 6, 4, 4 and 7 other kernels all but one leave.
    check_file(copy, kernels=3 * 3 + 3 * 4 + 5 + 3 + 3 + 6, convolutions=8)
