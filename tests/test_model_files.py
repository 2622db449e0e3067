"""Reading, writing and serializing models."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import model, plain, saved
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import dlprune as ha
from dlprune import onnxfile
from dlprune.classifier import Classifier
from dlprune.model import unwrap_model

NHWC = """<ir_version: 8, opset_import: ["" : 17]>
nhwc (float[N,12,10,3] image) => (float[N,4] y) <float[5,3,3,3] w, float[5,4] v> {
  scaled = Mul(image, factor)
  t = Transpose<perm = [0,3,1,2]>(scaled)
  c = Conv(t, w)
  p = GlobalAveragePool(c)
  f = Flatten(p)
  y = MatMul(f, v)
}"""


def nhwc() -> onnx.ModelProto:
    proto = model(NHWC)
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "factor"))
    return proto


def with_head(nodes: str, output: str = "float[N,5] y", opset: int = 17, extra: str = "") -> onnx.ModelProto:
    """A convolution, then whatever turns the map `g` [N,5,1,1] into the output."""
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
    head (float[N,3,8,8] x) => ({output}) <float[5,3,3,3] w {extra}> {{
      c = Conv(x, w)
      g = GlobalAveragePool(c)
      {nodes}
    }}"""
    return model(text)


def without_initializers(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Move every weight into a Constant node."""
    graph = proto.graph
    constants = [helper.make_node("Constant", [], [one.name], value=one) for one in graph.initializer]
    nodes = [*constants, *graph.node]
    del graph.initializer[:], graph.node[:]
    graph.node.extend(nodes)
    return proto


def with_initializers_as_inputs(proto: onnx.ModelProto) -> onnx.ModelProto:
    for one in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(one.name, one.data_type, one.dims))
    return proto


def with_odd_names(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Give nodes no names or the same one, and values names with slashes and colons."""
    graph = proto.graph
    inner = [value for node in graph.node for value in node.output if value != "y"]
    rename = {value: f"/layer.{i}/conv:{i}" for i, value in enumerate(inner)}
    for node in graph.node:
        node.name = "" if node.op_type == "Relu" else "same"
        node.input[:] = [rename.get(one, one) for one in node.input]
        node.output[:] = [rename.get(one, one) for one in node.output]
    return proto


def truth(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    evaluator = ReferenceEvaluator(proto)
    weights = {one.name for one in proto.graph.initializer}
    (name,) = [one.name for one in proto.graph.input if one.name not in weights]
    return np.asarray(evaluator.run(None, {name: x})[0])


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def test_logits_get_a_softmax_and_probabilities_do_not():
    x = np.random.default_rng(0).standard_normal((3, 3, 8, 8)).astype(np.float32)
    logits = truth(plain(), x)
    for head in ("Identity", "Softmax"):
        classifier = Classifier.from_proto(plain(head=head))
        np.testing.assert_allclose(classifier.confidences(x), softmax(logits), rtol=1e-5)
        np.testing.assert_allclose(classifier.logits(x), logits, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "activation", "logits_name"),
    [
        ("f = Flatten(g) s = Softmax(f) y = Identity(s)", "softmax", "f"),
        ("s = Softmax<axis = 1>(g) y = Flatten(s)", "softmax", "g"),
        ("f = Flatten(g) y = LogSoftmax(f)", "log_softmax", "f"),
        ("f = Flatten(g) y = Sigmoid(f)", "sigmoid", "f"),
        ("f = Flatten(g) s = Softmax<axis = 0>(f) y = Identity(s)", "none", "y"),
        ("y = Flatten(g)", "none", "y"),
    ],
)
def test_the_final_activation_is_found_behind_reshaping(nodes: str, activation: str, logits_name: str):
    classifier = Classifier.from_proto(with_head(nodes))
    assert classifier.is_classification
    assert classifier.head is not None
    assert (classifier.head.activation, classifier.logits_name) == (activation, logits_name)


def test_softmax_of_old_opsets_works_on_everything_behind_its_axis():
    classifier = Classifier.from_proto(with_head("s = Softmax(g) y = Flatten(s)", opset=11))
    assert classifier.logits_name == "g"
    assert classifier.logits(np.zeros((2, 3, 8, 8), np.float32)).shape == (2, 5)


def test_log_softmax_gives_confidences_that_add_up_to_one():
    x = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    rows = Classifier.from_proto(with_head("f = Flatten(g) y = LogSoftmax(f)")).confidences(x)
    np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=1e-5)


def test_output_with_trailing_ones_counts_as_classes():
    classifier = Classifier.from_proto(with_head("y = Identity(g)", "float[N,5,1,1] y"))
    assert classifier.class_num == 5
    assert classifier.confidences(np.zeros((2, 3, 8, 8), np.float32)).shape == (2, 5)


def test_number_of_classes_is_found_by_a_run_if_the_file_does_not_tell():
    classifier = Classifier.from_proto(with_head("y = Flatten(g)", "float[N,K] y"))
    assert (classifier.class_num, classifier.is_classification) == (5, True)


@pytest.mark.parametrize(
    ("make", "layout", "shape"),
    [
        (plain, "NCHW", (2, 3, 8, 8)),
        (nhwc, "NHWC", (2, 12, 10, 3)),
        (lambda: plain(channels=1), "NCHW", (2, 1, 8, 8)),
        (lambda: plain(channels=7, size=3), "NCHW", (2, 7, 3, 3)),
        (lambda: plain(size=4), "NCHW", (2, 3, 4, 4)),
        (lambda: plain(size="S"), "NCHW", (2, 3, 224, 224)),
    ],
)
def test_layout_and_size_are_read_off_the_graph(make, layout: str, shape: tuple[int, ...]):
    classifier = Classifier.from_proto(make())
    assert (classifier.layout, classifier.input_shape(2)) == (layout, shape)


VARIANTS = {
    "plain": plain,
    "fixed batch": lambda: plain(batch=2),
    "opset 7": lambda: plain(opset=7, ir_version=3),
    "opset 21": lambda: plain(opset=21, ir_version=10),
    "initializers as inputs": lambda: with_initializers_as_inputs(plain(opset=9, ir_version=3)),
    "constant nodes": lambda: without_initializers(plain()),
    "odd names": lambda: with_odd_names(plain()),
    "probabilities": lambda: plain(head="Softmax"),
    "nhwc": nhwc,
}


@pytest.mark.parametrize("kind", VARIANTS)
def test_written_model_computes_the_same_and_keeps_opset_and_format(kind: str, tmp_path: Path):
    proto = VARIANTS[kind]()
    if proto.ir_version == 3 and kind == "opset 7":
        with_initializers_as_inputs(proto)
    handle = ha.read_dl_model(saved(proto, tmp_path / "a.onnx"))
    ha.write_dl_model(handle, str(tmp_path / "b.onnx"))
    again = onnx.load(tmp_path / "b.onnx")
    onnx.checker.check_model(again, full_check=True)
    assert again.ir_version == proto.ir_version
    assert again.opset_import == proto.opset_import
    x = np.random.default_rng(1).standard_normal(unwrap_model(handle, 1).input_shape(2)).astype(np.float32)
    np.testing.assert_allclose(truth(again, x), truth(proto, x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        unwrap_model(ha.read_dl_model(str(tmp_path / "b.onnx")), 1).confidences(x),
        unwrap_model(handle, 1).confidences(x),
        rtol=1e-6,
    )


def test_every_node_gets_a_name_of_its_own():
    names = [node.name for node in Classifier.from_proto(with_odd_names(plain())).model.graph]
    assert all(names)
    assert len(set(names)) == len(names)


def test_left_out_optional_outputs_stay_left_out():
    proto = with_head("f = Flatten(g) y, m = Dropout(f)")
    proto.graph.node[-1].output[1] = ""
    classifier = Classifier.from_proto(proto)
    assert [one for one in onnx.load_from_string(classifier.to_bytes()).graph.node[-1].output if one] == ["y"]


def test_functions_of_the_model_are_inlined():
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    f (float[N,3,8,8] x) => (float[N,3] y) { c = local.twice(x) g = GlobalAveragePool(c) y = Flatten(g) }
    <domain: "local", opset_import: ["" : 17]> twice (a) => (b) { b = Add(a, a) }""")
    assert {node.op_type for node in Classifier.from_proto(proto).model.graph} == {
        "Add",
        "GlobalAveragePool",
        "Flatten",
    }


def test_open_sizes_written_as_minus_one_are_open():
    proto = plain()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    classifier = Classifier.from_proto(proto)
    classifier.set("batch_size", (3,))
    assert classifier.input_shape() == (3, 3, 8, 8)


LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_well_known_networks_are_classifiers(path: Path):
    """The onnx package brings them: opset 9, format 3, fixed batch, weights from ConstantOfShape."""
    classifier = Classifier.read(str(path))
    assert classifier.is_classification
    assert (classifier.input_shape(), classifier.class_num) == ((1, 3, 224, 224), 1000)


# --- several inputs and outputs ---------------------------------------------------------------------------------------

TWO_OUTPUTS = "float[N,5] y, float[N,5] aux"


def test_the_only_fitting_output_is_taken():
    classifier = Classifier.from_proto(
        with_head("y = Flatten(g) best = ArgMax<axis=1>(y)", "float[N,5] y, int64[N,1] best")
    )
    assert classifier.output_name == "y"


def test_one_of_several_fitting_outputs_must_be_named_and_is_remembered(tmp_path: Path):
    proto = with_head("y = Flatten(g) aux = Relu(y)", TWO_OUTPUTS)
    handle = ha.read_dl_model(saved(proto, tmp_path / "a.onnx"))
    assert ha.get_dl_model_param(handle, "type") == ["generic"]
    assert ha.get_dl_model_param(handle, "class_output") == []
    with pytest.raises(ha.HOperatorError, match="class_output"):
        unwrap_model(handle, 1).require_classification("Pruning")
    ha.set_dl_model_param(handle, "class_output", "aux")
    ha.write_dl_model(handle, str(tmp_path / "b.onnx"))
    again = ha.read_dl_model(str(tmp_path / "b.onnx"))
    assert ha.get_dl_model_param(again, "type") == ["classification"]
    assert ha.get_dl_model_param(again, "class_output") == ["aux"]


NOT_CLASSIFIERS = {
    "two inputs": """<ir_version: 8, opset_import: ["" : 17]>
        t (float[N,3,8,8] a, float[N,3,8,8] b) => (float[N,3] y) {
          c = Add(a, b) g = GlobalAveragePool(c) y = Flatten(g) }""",
    "no image": '<ir_version: 8, opset_import: ["" : 17]> t (float[N,10] a) => (float[N,10] y) { y = Relu(a) }',
    "bytes as input": """<ir_version: 8, opset_import: ["" : 17]>
        t (uint8[N,3,8,8] a) => (float[N,3] y) { c = Cast<to = 1>(a) g = GlobalAveragePool(c) y = Flatten(g) }""",
    "image as output": """<ir_version: 8, opset_import: ["" : 17]>
        t (float[N,3,8,8] a) => (float[N,3,8,8] y) { y = Relu(a) }""",
    "one class": """<ir_version: 8, opset_import: ["" : 17]>
        t (float[N,1,8,8] a) => (float[N,1] y) { g = GlobalAveragePool(a) y = Flatten(g) }""",
    "open channels": """<ir_version: 8, opset_import: ["" : 17]>
        t (float[N,C,8,8] a) => (float[N,5] y) { g = GlobalAveragePool(a) y = Flatten(g) }""",
}


@pytest.mark.parametrize("kind", NOT_CLASSIFIERS)
def test_other_networks_are_generic_with_the_reason_in_words(kind: str):
    classifier = Classifier.from_proto(onnx.parser.parse_model(NOT_CLASSIFIERS[kind]))
    assert classifier.params.type == "generic"
    with pytest.raises(ha.HOperatorError) as caught:
        classifier.set("type", ("classification",))
    assert caught.value.error_code == 7914
    assert classifier.reason in caught.value.extended_error_message
    for call in (lambda: classifier.output_name, lambda: classifier.require_classification("x")):
        with pytest.raises(ha.HOperatorError) as caught:
            call()
        assert caught.value.error_code == 7912


# --- files that cannot be read ----------------------------------------------------------------------------------------


def nan_weight() -> bytes:
    proto = plain()
    weight = numpy_helper.to_array(proto.graph.initializer[0]).copy()
    weight.flat[3] = np.nan
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, proto.graph.initializer[0].name))
    return proto.SerializeToString()


def unsorted_nodes() -> bytes:
    proto = plain()
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto.SerializeToString()


def bad_operator() -> bytes:
    proto = plain()
    proto.graph.node[0].op_type = "Convolution"
    return proto.SerializeToString()


def bad_metadata(value: str) -> bytes:
    proto = plain()
    helper.set_model_props(proto, {"dlprune": value})
    return proto.SerializeToString()


BAD_FILES = {
    "empty": (b"", "empty"),
    "text": (b"this is no model at all", "no ONNX model"),
    "truncated": (plain().SerializeToString()[:-40], "truncated"),
    "another protobuf": (numpy_helper.from_array(np.zeros((3, 4), np.float32), "w").SerializeToString(), "no"),
    "model without graph": (onnx.ModelProto(ir_version=8).SerializeToString(), "no network"),
    "opset 6": (plain(opset=6).SerializeToString(), "opset 6"),
    "unknown operator": (bad_operator(), "Convolution"),
    "unsorted": (unsorted_nodes(), "valid"),
    "NaN": (nan_weight(), "NaN"),
    "name not in UTF-8": (plain().SerializeToString().replace(b"plain", b"pl\xe4in"), "UTF-8"),
    "metadata no JSON": (bad_metadata("{"), "metadata"),
    "metadata of another form": (bad_metadata("[1]"), "metadata"),
    "metadata with a bad value": (bad_metadata('{"parameters": {"batch_size": -1}}'), "batch_size"),
    "metadata with a bad type": (bad_metadata('{"parameters": {"class_ids": [null]}}'), "metadata"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_unreadable_files_raise_7801_with_the_reason(kind: str, tmp_path: Path):
    data, words = BAD_FILES[kind]
    path = tmp_path / "a.onnx"
    path.write_bytes(data)
    with pytest.raises(ha.HOperatorError, match=words) as caught:
        ha.read_dl_model(str(path))
    assert caught.value.error_code == 7801


@pytest.mark.parametrize("name", ["missing.onnx", "", "no/such/folder.onnx", "\0.onnx", "missing.hdl"])
def test_missing_file_raises_5200(name: str):
    with pytest.raises(ha.HOperatorError) as caught:
        ha.read_dl_model(name)
    assert caught.value.error_code == 5200


def test_folder_and_other_formats_raise_7801(tmp_path: Path):
    (tmp_path / "a.hdl").write_bytes(b"HALCON")
    (tmp_path / "a.pt").write_bytes(b"PK")
    (tmp_path / "folder.onnx").mkdir()
    for name, words in (("a.hdl", "ONNX"), ("a.pt", ".onnx"), ("folder.onnx", "folder"), (".", "folder")):
        with pytest.raises(ha.HOperatorError, match=words) as caught:
            ha.read_dl_model(str(tmp_path / name))
        assert caught.value.error_code == 7801


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_files_raise_7801_or_read_but_nothing_else(tmp_path: Path, data):
    good = plain(size=3).SerializeToString()
    position = data.draw(st.integers(0, len(good) - 1))
    bad = (
        good[:position] + data.draw(st.binary(min_size=1, max_size=4)) + good[position + data.draw(st.integers(0, 4)) :]
    )
    (tmp_path / "a.onnx").write_bytes(bad)
    codes: list[int] = []
    try:
        ha.read_dl_model(str(tmp_path / "a.onnx"))
    except ha.HOperatorError as error:
        codes.append(error.error_code)
    assert codes in ([], [7801])


# --- external data ----------------------------------------------------------------------------------------------------


def external(tmp_path: Path) -> Path:
    path = tmp_path / "a.onnx"
    onnx.save(plain(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_external_weights_are_read_and_no_longer_needed_afterwards(tmp_path: Path):
    handle = ha.read_dl_model(str(external(tmp_path)))
    os.unlink(tmp_path / "weights.bin")
    ha.write_dl_model(handle, str(tmp_path / "b.onnx"))
    x = np.ones((1, 3, 8, 8), np.float32)
    np.testing.assert_allclose(truth(onnx.load(tmp_path / "b.onnx"), x), truth(plain(), x), rtol=1e-6)


@pytest.mark.parametrize("location", ["../outside.bin", "/etc/hostname", "link.bin", "", ".", "a/../../outside.bin"])
def test_external_data_outside_the_folder_is_refused(location: str, tmp_path: Path):
    folder = tmp_path / "inner"
    folder.mkdir()
    path = external(folder)
    (tmp_path / "outside.bin").write_bytes(bytes(100000))
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ha.HOperatorError, match="outside") as caught:
        ha.read_dl_model(str(path))
    assert caught.value.error_code == 7801


def test_missing_or_short_external_data_raises_7801(tmp_path: Path):
    path = external(tmp_path)
    weights = tmp_path / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ha.HOperatorError, match=r"weights\.bin") as caught:
        ha.read_dl_model(str(path))
    assert caught.value.error_code == 7801
    weights.unlink()
    with pytest.raises(ha.HOperatorError, match="missing") as caught:
        ha.read_dl_model(str(path))
    assert caught.value.error_code == 7801


def test_model_in_bytes_cannot_point_to_files():
    proto = plain()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    with pytest.raises(ha.HOperatorError) as caught:
        Classifier.from_bytes(proto.SerializeToString())
    assert caught.value.error_code == 7801


def test_huge_models_are_written_with_a_data_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    handle = ha.read_dl_model(saved(plain(), tmp_path / "a.onnx"))
    monkeypatch.setattr(onnxfile, "EXTERNAL_DATA_BYTES", 1000)
    ha.write_dl_model(handle, str(tmp_path / "b.onnx"))
    assert sorted(os.listdir(tmp_path)) == ["a.onnx", "b.onnx", "b.onnx.data"]
    x = np.ones((1, 3, 8, 8), np.float32)
    again = unwrap_model(ha.read_dl_model(str(tmp_path / "b.onnx")), 1)
    np.testing.assert_allclose(again.confidences(x), softmax(truth(plain(), x)), rtol=1e-5)
    with pytest.raises(ha.HOperatorError) as caught:
        ha.serialize_dl_model(handle)
    assert caught.value.error_code == 7803


# --- writing and serializing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["b.hdl", "b.pt", "b", "", "folder.onnx", "no/folder.onnx", "\0.onnx", "x" * 300 + ".onnx"]
)
def test_unwritable_files_raise_7803_and_leave_nothing(name: str, tmp_path: Path):
    handle = ha.read_dl_model(saved(plain(), tmp_path / "a.onnx"))
    (tmp_path / "folder.onnx").mkdir()
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(ha.HOperatorError) as caught:
        ha.write_dl_model(handle, str(tmp_path / name) if name else "")
    assert caught.value.error_code == 7803
    assert caught.value.extended_error_message
    assert sorted(os.listdir(tmp_path)) == before


def test_invalid_model_is_not_written_and_the_old_file_stays(tmp_path: Path):
    path = tmp_path / "a.onnx"
    handle = ha.read_dl_model(saved(plain(), path))
    before = path.read_bytes()
    classifier = unwrap_model(handle, 1)
    classifier.model.graph.node("Conv_1").op_type = "Convolution"
    with pytest.raises(ha.HOperatorError, match="Convolution") as caught:
        ha.write_dl_model(handle, str(path))
    assert caught.value.error_code == 7803
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.onnx"]


def test_stale_inner_shapes_do_not_keep_a_model_from_being_written(tmp_path: Path):
    proto = plain()
    proto.graph.value_info.append(helper.make_tensor_value_info("ar", TensorProto.FLOAT, ["N", 99, 8, 8]))
    handle = ha.read_dl_model(saved(proto, tmp_path / "a.onnx"))
    ha.write_dl_model(handle, str(tmp_path / "b.onnx"))
    onnx.checker.check_model(str(tmp_path / "b.onnx"), full_check=True)


def test_writing_over_the_own_file_and_through_a_link_keeps_the_permissions_of_new_files(tmp_path: Path):
    path, link = tmp_path / "a.onnx", tmp_path / "link.onnx"
    handle = ha.read_dl_model(saved(plain(), path))
    link.symlink_to(path)
    ha.write_dl_model(handle, str(link))
    assert link.is_symlink()
    (tmp_path / "new").write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "new").stat().st_mode)
    assert ha.get_dl_model_param(ha.read_dl_model(str(path)), "type") == ["classification"]


def test_serialized_model_comes_back_with_its_parameters(tmp_path: Path):
    handle = ha.read_dl_model(saved(plain(), tmp_path / "a.onnx"))
    ha.set_dl_model_param(handle, "class_names", list("vwxyz"))
    again = ha.deserialize_dl_model(ha.serialize_dl_model(handle))
    assert again != handle
    assert ha.get_dl_model_param(again, "class_names") == list("vwxyz")
    assert ha.tuple_sem_type(ha.deserialize_handle(ha.serialize_handle(handle))) == "dl_model"


def test_item_of_another_type_is_no_model():
    with pytest.raises(ha.HOperatorError) as caught:
        ha.deserialize_dl_model(ha.serialize_handle(ha.create_dict()))
    assert caught.value.error_code == 9580


def test_clone_is_independent_and_shares_weights():
    classifier = Classifier.from_proto(plain())
    copy = classifier.clone()
    copy.set("batch_size", (4,))
    copy.params.meta_data["a"] = "b"
    assert classifier.params.batch_size == 1
    assert classifier.params.meta_data == {}
    assert copy.model is not classifier.model
    assert copy.model.graph.initializers["w1"].const_value is classifier.model.graph.initializers["w1"].const_value
