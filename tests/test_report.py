"""The report: a page, JSON and CSV with the numbers of the operators."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from commandline import run, small_model
from models import model as onnx_model
from models import plain
from PIL import Image

import dlprune as ha
from dlprune import errors
from dlprune.classifier import Classifier
from dlprune.cost import cost_of
from dlprune.handle import new_handle, unwrap

NASTY = "a<script>alert('x')</script> & \"b\""
BROWSER = next((one for one in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if one), None)
VOID = {"meta", "link"}
CLASSES = ["<one>", "two", "three & more", "four", "five"]


class Page(HTMLParser):
    """Checks that tags are closed in order, and keeps text and attributes of all elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.elements: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID:
            self.elements.append((tag, dict(attrs), ""))
        else:
            self.open.append((tag, dict(attrs), []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        opened, attributes, text = self.open.pop()
        assert opened == tag
        self.elements.append((tag, attributes, "".join(text)))

    def handle_data(self, data: str) -> None:
        for _, _, text in self.open:
            text.append(data)

    def find(self, tag: str, **wanted: str) -> list[tuple[dict[str, str | None], str]]:
        wanted = {"class" if key == "kind" else key: value for key, value in wanted.items()}
        return [(a, t) for name, a, t in self.elements if name == tag and wanted.items() <= a.items()]


def samples(number: int, size: int = 8, channels: int = 3, classes: int = 5) -> list[ha.HHandle]:
    images = np.random.default_rng(1).standard_normal((number, size, size, channels)).astype(np.float32)
    return [
        ha.from_python_dict({"image": ha.himage_from_numpy_array(image), "image_label_id": i % classes})
        for i, image in enumerate(images)
    ]


def net(name: str = "") -> ha.HHandle:
    proto = plain()
    if name:
        proto.graph.node[2].name = name
    return new_handle("dl_model", Classifier.from_proto(proto))


def classifier(handle: ha.HHandle) -> Classifier:
    return unwrap(handle, "dl_model", Classifier, 1)


@pytest.fixture(scope="module")
def job() -> tuple[ha.HHandle, ha.HHandle, ha.HHandle]:
    """Pruning data, model and pruned model, without BatchNormalization; one convolution has a nasty name."""
    model = net(NASTY)
    ha.set_dl_model_param(model, "class_names", CLASSES)
    pruned, pruning, _ = ha.prune_dl_model(model, samples(16), 50, step_percentage=25)
    return pruning, model, pruned


@pytest.fixture
def page_file(job: tuple[ha.HHandle, ha.HHandle, ha.HHandle], tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    points = [(50.0, 0.7), (0.0, 1.0)]
    ha.write_dl_pruning_report(
        *job, str(path), samples=samples(20), curve=points, latency_runs=2, name="x<y>.onnx", command="dlprune prune <&"
    )
    return path


def test_the_numbers_are_those_of_the_operators(
    job: tuple[ha.HHandle, ha.HHandle, ha.HHandle], page_file: Path
) -> None:
    pruning, model, pruned = job
    found = json.loads(page_file.with_suffix(".json").read_text(encoding="utf-8"))
    before, after = cost_of(classifier(model)), cost_of(classifier(pruned))
    for name in ("kernels", "parameters", "macs"):
        assert found["figures"][name] == {"before": getattr(before, name), "after": getattr(after, name)}
    item = ha.serialized_item_as_bytes(ha.serialize_dl_model(pruned))
    assert 0 < found["figures"]["file_size"]["after"] <= len(item)
    for name, value in found["results"].items():
        assert value == ha.get_dl_pruning_param_s(pruning, name)
    for name, value in found["settings"].items():
        assert ha.get_dl_pruning_param(pruning, name) == (value if isinstance(value, list) else [value])
    infos = [ha.as_python_dict_s(one) for one in ha.get_dl_pruning_layer_info(pruning)]
    for layer, info in zip(found["layers"], infos, strict=True):
        assert layer["name"] == info["name"]
        assert layer["removed"] == len(ha.get_dict_tuple(ha.from_python_dict(info), "pruned_kernel_ids"))
        assert layer["kept"] + layer["removed"] + layer["fixed"] == info["kernel_num"] == layer["kernels"]["before"]
        assert sum(layer["gone"]) == layer["removed"]
    assert sum(layer["removed"] for layer in found["layers"]) == ha.get_dl_pruning_param_s(pruning, "pruned_kernel_num")
    gone = [step["kernel_num"] for step in found["history"]]
    assert len(gone) > 1
    assert gone == sorted(gone)
    assert gone[-1] == 6
    assert found["curve"] == [{"percentage": 0.0, "accuracy": 1.0}, {"percentage": 50.0, "accuracy": 0.7}]


def test_accuracy_and_confusion_are_those_of_the_results_of_apply_dl_model(
    job: tuple[ha.HHandle, ha.HHandle, ha.HHandle], page_file: Path
) -> None:
    found = json.loads(page_file.with_suffix(".json").read_text(encoding="utf-8"))
    for which, handle in zip(("before", "after"), job[1:], strict=True):
        table = np.zeros((5, 5), int)
        for i, sample in enumerate(samples(20)):
            size = ha.get_dl_model_param_s(handle, "batch_size")
            (result, *_) = ha.apply_dl_model(handle, [sample] * size, [])
            table[i % 5, ha.get_dict_tuple(result, "classification_class_ids")[0]] += 1
        assert found["confusion"][which] == table.tolist()
        assert found["figures"]["accuracy"][which] == np.trace(table) / 20


def test_page_and_csv_show_the_numbers_of_the_json_file(page_file: Path) -> None:
    found = json.loads(page_file.with_suffix(".json").read_text(encoding="utf-8"))
    page = Page(page_file.read_text(encoding="utf-8"))
    cards = [(a, t) for a, t in page.find("b") if "data-before" in a]
    names = ("kernels", "parameters", "macs", "file_size", "latency", "accuracy")
    for (attributes, _), name in zip(cards, names, strict=True):
        for which in ("before", "after"):
            assert float(attributes[f"data-{which}"] or "") == found["figures"][name][which]
    assert len(page.find("div", kind="bar")) == len(found["layers"]) == 2
    for name in ("network", "scores", "history", "curve"):
        assert len(page.find("svg", id=name)) == 1
    assert len(page.find("table", kind="confusion")) == 2
    lines = list(csv.DictReader(page_file.with_suffix(".csv").read_text(encoding="utf-8").splitlines()))
    assert [(line["name"], int(line["removed"])) for line in lines] == [
        (layer["name"], layer["removed"]) for layer in found["layers"]
    ]


def test_names_are_escaped_and_nothing_is_fetched(page_file: Path) -> None:
    text = page_file.read_text(encoding="utf-8")
    page = Page(text)
    assert len(page.find("script")) == 1  # its own; none came out of a name
    assert page.find("pre", id="command")[0][1] == "dlprune prune <&"
    assert "x<y>.onnx" in page.find("h1")[0][1]
    assert any(t == NASTY for _, t in page.find("td", kind="long"))
    assert any(t == "<one>" for _, t in page.find("th"))
    for _, attributes, _ in page.elements:
        assert not {"src", "srcset", "action"} & attributes.keys()
        assert attributes.get("href", "data:,") == "data:,"
    assert "url(" not in text
    assert "@import" not in text


def test_reasons_and_groups_are_told(tmp_path: Path) -> None:
    """The sum of two convolutions couples them; the third one ends in the output and is fixed."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[N,3,8,8] x) => (float[N,5] y) <float[4,3,3,3] u, float[4,3,1,1] v, float[5,4,1,1] w> {
      a = Conv<pads = [1,1,1,1]>(x, u)
      b = Conv(x, v)
      s = Add(a, b)
      r = Relu(s)
      c = Conv(r, w)
      d = GlobalAveragePool(c)
      y = Flatten(d)
    }"""
    model = new_handle("dl_model", Classifier.from_proto(onnx_model(text)))
    pruning = ha.create_dl_pruning(model, "l2", ha.from_python_dict({"percentage": 50, "compensation": "none"}))
    path = tmp_path / "report.html"
    ha.write_dl_pruning_report(pruning, model, ha.gen_dl_pruned_model(model, pruning), str(path))
    found = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert [layer["group"] for layer in found["layers"]] == ["A", "A", ""]
    assert [layer["removed"] for layer in found["layers"]] == [1, 1, 0]  # one of four must stay, half of three are one
    assert [layer["fixed"] for layer in found["layers"]] == [0, 0, 5]
    page = Page(path.read_text(encoding="utf-8"))
    reason = ha.get_dict_tuple_s(ha.get_dl_pruning_layer_info(pruning)[2], "reason")
    assert reason
    assert page.find("td", kind="why")[-1][1] == reason
    assert reason in (page.find("div", kind="layer")[2][0]["title"] or "")
    assert "not measured" in page.find("div", id="card-latency")[0][1]
    assert "create_dl_pruning" in page.find("pre", id="command")[0][1]


def test_the_steps_outlive_serialization(job: tuple[ha.HHandle, ha.HHandle, ha.HHandle], tmp_path: Path) -> None:
    copy = ha.deserialize_handle(ha.serialize_handle(job[0]))
    texts = []
    for name, pruning in (("a", job[0]), ("b", copy)):
        ha.write_dl_pruning_report(pruning, *job[1:], str(tmp_path / f"{name}.html"))
        texts.append((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ["", "report", "report.txt", "missing/report.html", "folder.html", "a\0.html"])
def test_bad_paths_are_error_3142(job: tuple[ha.HHandle, ha.HHandle, ha.HHandle], tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(ha.HOperatorError) as caught:
        ha.write_dl_pruning_report(*job, str(tmp_path / name) if name else "")
    assert caught.value.error_code == errors.H_ERR_FILE_WR
    assert [path.name for path in tmp_path.iterdir()] == ["folder.html"]


def test_what_does_not_belong_together_is_error_7980(
    job: tuple[ha.HHandle, ha.HHandle, ha.HHandle], tmp_path: Path
) -> None:
    pruning, model, pruned = job
    fresh = ha.create_dl_pruning(model, "l2", [])
    other = new_handle("dl_model", Classifier.from_proto(plain(classes=4)))
    magnitude = ha.create_dl_pruning(model, "magnitude", [])
    wrong = [(fresh, model, pruned), (pruning, model, model), (pruning, pruned, model), (pruning, other, pruned)]
    for handles in [*wrong, (pruning, model, other), (magnitude, model, pruned)]:
        with pytest.raises(ha.HOperatorError) as caught:
            ha.write_dl_pruning_report(*handles, str(tmp_path / "report.html"))
        assert caught.value.error_code == errors.H_ERR_DL_PRUNING_WRONG_DATA
    assert not list(tmp_path.iterdir())


def test_points_of_a_curve_out_of_range_are_error_7914(
    job: tuple[ha.HHandle, ha.HHandle, ha.HHandle], tmp_path: Path
) -> None:
    with pytest.raises(ha.HOperatorError) as caught:
        ha.write_dl_pruning_report(*job, str(tmp_path / "report.html"), curve=[(50, 99.5)])
    assert caught.value.error_code == errors.H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE


# --- command line ----------------------------------------------------------------------------------------------------


def prune(folder: Path, *more: object, code: int = 0) -> str:
    """Prune a small model and return what was printed."""
    images = np.random.default_rng(0).integers(0, 255, (30, 8, 8)).astype(np.uint8)
    np.savez(folder / "images.npz", images=images, labels=np.arange(30) % 3)
    options = ["--images", folder / "images.npz", "-p", 50, "-o", folder / "small.onnx", "--runs", 0, *more]
    return run("prune", small_model(folder), *options, code=code).output


def test_prune_writes_the_report_with_the_figures_that_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/dlprune", "prune", "my model.onnx"])
    prune(tmp_path, "--report", tmp_path / "report.html", "--json", "--quiet")
    found = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert found["model"] == "model.onnx"
    assert found["command"] == "dlprune prune 'my model.onnx'"
    assert found["figures"]["file_size"]["after"] == (tmp_path / "small.onnx").stat().st_size
    assert found["figures"]["test_image_num"] == 6
    assert found["figures"]["latency"] == {"before": None, "after": None}
    assert np.trace(found["confusion"]["after"]) / 6 == found["figures"]["accuracy"]["after"]
    assert len(found["history"]) > 1
    shares = [100 * step["kernel_num"] / found["results"]["prunable_kernel_num"] for step in found["history"]]
    assert [point["percentage"] for point in found["curve"]] == [0, *shares]
    ends = [found["curve"][i]["accuracy"] for i in (0, -1)]
    assert ends == [found["figures"]["accuracy"][which] for which in ("before", "after")]
    Page((tmp_path / "report.html").read_text(encoding="utf-8"))


def test_plots_are_png_files_in_a_new_folder(tmp_path: Path) -> None:
    prune(tmp_path, "--plots", tmp_path / "new" / "plots")
    for name in ("layers", "scores", "steps", "accuracy", "confusion"):
        with Image.open(tmp_path / "new" / "plots" / f"{name}.png") as image:
            assert image.size[0] > 500
            assert len(image.convert("RGB").getcolors(1 << 24) or []) > 5  # something is drawn


def test_without_matplotlib_plots_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert "dlprune[plots]" in prune(tmp_path, "--plots", tmp_path, code=1)


@pytest.mark.parametrize("name", ["report.txt", "missing/report.html", "images.html"])
def test_a_bad_name_for_the_report_is_told_before_the_work(tmp_path: Path, name: str) -> None:
    if name == "images.html":  # images.csv would be replaced
        (tmp_path / "images.csv").write_text("a.png,a\n")
        name, more = str(tmp_path / name), ["--test-images", str(tmp_path / "images.csv")]
    else:
        name, more = str(tmp_path / name), []
    assert "--report" in prune(tmp_path, "--report", name, *more, code=2)
    assert not (tmp_path / "small.onnx").exists()


# --- browser ---------------------------------------------------------------------------------------------------------

_PROBE = """<script>
const seen = {drawn: [], errors: 0};
window.addEventListener("error", () => seen.errors++);
window.addEventListener("load", () => {
  for (const one of document.querySelectorAll("svg, .bar")) {
    const box = one.getBoundingClientRect();
    seen.drawn.push([one.id || one.className.baseVal || one.className, box.width > 3 && box.height > 3]);
  }
  const column = i => [...document.querySelectorAll("#table tbody tr")].map(row => row.cells[i].textContent);
  const button = document.querySelectorAll("#table th button")[4];
  button.click(); seen.up = column(4);
  button.click(); seen.down = column(4);
  seen.overflow = document.documentElement.scrollWidth - window.innerWidth;
  const out = document.createElement("output");
  out.id = "probe"; out.textContent = JSON.stringify(seen); document.body.append(out);
});
</script></head>"""


def _in_browser(page_file: Path, width: int, folder: Path) -> None:
    assert BROWSER is not None
    probe = folder / "probe.html"
    probe.write_text(page_file.read_text(encoding="utf-8").replace("</head>", _PROBE, 1), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"]
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [BROWSER, *options, profile, f"--window-size={width},900", "--dump-dom", probe.as_uri()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in run.stderr
    seen = json.loads(Page(run.stdout).find("output", id="probe")[0][1])
    assert seen["errors"] == 0
    assert seen["overflow"] <= 0
    assert all(is_drawn for _, is_drawn in seen["drawn"])
    assert {"network", "scores", "history", "curve", "strip", "bar"} <= {name for name, _ in seen["drawn"]}
    assert (seen["up"], seen["down"]) == (["6", "8"], ["8", "6"])


def _parsed(page_file: Path) -> None:
    page = Page(page_file.read_text(encoding="utf-8"))
    assert len(page.find("button")) == len(page.find("th", scope="col")) - 2 * len(CLASSES) == 14  # two matrices


@pytest.mark.parametrize(
    "width", [1200, 500], ids=lambda width: f"{width} pixels wide, {'in chromium' if BROWSER else 'NO BROWSER HERE'}"
)
def test_every_figure_is_drawn_and_the_table_sorts(page_file: Path, tmp_path: Path, width: int) -> None:
    """Headless Chromium draws every figure, sorts up and down, and reports no error; without it the name says so."""
    _parsed(page_file)
    if BROWSER:
        _in_browser(page_file, width, tmp_path)
    else:
        print("NO BROWSER HERE (install Debian's chromium): figures and sorting were only checked by parsing the page")
