"""One model pruned by many criteria, targets and percentages: what each costs and saves, and what no other beats."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from .. import files
from ..classifier import Classifier
from ..cost import cost_of, latency
from ..errors import H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE, H_ERR_FILE_WR, HOperatorError
from ..evaluation import Contestant, LabelledImages, evaluate
from ..parallel.crew import Workers, in_order
from ..preprocessing import Preprocessing
from ..pruningdata import PruningData
from ..removal import generate

#: What accuracy is weighed against, in the order of the pictures.
COSTS: Final = ("macs", "latency", "file_size")
RESULT: Final = "sweep.json"


@dataclass(frozen=True)
class Setting:
    """One way to prune: mode, target and percentage, as in set_dl_pruning_param; mode '' is the original."""

    mode: str = ""
    target: str = "kernels"
    percentage: float = 0.0


@dataclass(frozen=True)
class Point:
    """What a setting came to.

    Attributes:
        mode, target, percentage: the setting.
        pruned_kernel_num, pruned_percentage, target_reached: see get_dl_pruning_param.
        kernels, parameters, macs: of the whole network.
        file_size: in bytes.
        latency: seconds of one run, None if not measured. Measured in turn with the original, of whose time at the
            beginning it is a share, so that a machine that slows down does not matter.
        accuracy: 0…1 on the test images, None without labels.
        seconds: that pruning took.
        optimal: costs for which no other point is as accurate and cheaper, or more accurate and as cheap.
    """

    mode: str
    target: str
    percentage: float
    pruned_kernel_num: int
    pruned_percentage: float
    target_reached: float
    kernels: int
    parameters: int
    macs: int
    file_size: int
    latency: float | None
    accuracy: float | None
    seconds: float
    optimal: tuple[str, ...] = ()

    @property
    def setting(self) -> Setting:
        """How it was pruned."""
        return Setting(self.mode, self.target, self.percentage)

    @property
    def label(self) -> str:
        """The criterion, with the target where that is not the kernels."""
        return self.mode if self.target == "kernels" else f"{self.mode}, {self.target}"


@dataclass(frozen=True)
class TestImages:
    """Images that the accuracy is measured on: those of ascending `indices`."""

    data: LabelledImages
    indices: Sequence[int]
    preprocessing: Preprocessing


@dataclass(frozen=True)
class SweepJob:
    """Prunes a classifier in one way and measures the result; can be pickled, so that others can do it.

    Attributes:
        classifier: the original.
        scored: pruning data by mode; they are not changed.
        test: images for the accuracy, None without.
        runs: timed runs for the latency, 0 = none, None = about a second's worth.
        models: folder that pruned models are written to, None = none.
    """

    classifier: Classifier
    scored: Mapping[str, PruningData]
    test: TestImages | None = None
    runs: int | None = 0
    models: Path | None = None

    def __call__(self, setting: Setting, /) -> Point:
        """Prune and measure. Raises HOperatorError as gen_dl_pruned_model does, ImagesError."""
        if not setting.mode:
            return self._measured(self.classifier, setting, None)
        data = PruningData.from_bytes(self.scored[setting.mode].to_bytes())  # another one may be at work with it
        data.set("target", (setting.target,))
        data.set("percentage", (setting.percentage,))
        pruned, _ = generate(self.classifier, data)
        if self.models is not None:
            pruned.write(str(self.models / f"{setting.mode}_{setting.target}_{setting.percentage:g}.onnx"))
        return self._measured(pruned, setting, data)

    def _measured(self, classifier: Classifier, setting: Setting, data: PruningData | None) -> Point:
        cost = cost_of(classifier)
        time: float | None = None
        if self.runs != 0:
            found = latency([self.classifier, classifier], runs=self.runs)
            time = found.seconds[0] if data is None else found.ratio  # see run_sweep
        return Point(
            **asdict(setting),
            pruned_kernel_num=0 if data is None else data.pruned_kernel_num,
            pruned_percentage=0.0 if data is None else data.pruned_percentage,
            target_reached=0.0 if data is None else data.target_reached,
            kernels=cost.kernels,
            parameters=cost.parameters,
            macs=cost.macs,
            file_size=len(classifier.to_bytes()),
            latency=time,
            accuracy=self._accuracy(classifier),
            seconds=0.0 if data is None else sum(float(step["seconds"]) for step in data.history),
        )

    def _accuracy(self, classifier: Classifier) -> float | None:
        if self.test is None or not self.test.indices:
            return None
        contestants = [Contestant(classifier, self.test.preprocessing)]
        return evaluate(contestants, self.test.data, self.test.indices).accuracies[0]


def run_sweep(
    job: SweepJob,
    settings: Sequence[Setting],
    done: Sequence[Point] = (),
    *,
    workers: Workers = None,
    report: Callable[[list[Point]], object] = lambda _points: None,
) -> list[Point]:
    """Work off the settings that are not among the points done, the original first, and return all points in order.

    Args:
        job: what to do.
        settings: in which ways to prune.
        done: points of an earlier run.
        workers: who works, see parallel.crew; None = one after the other.
        report: called with all points so far, after each.

    Raises:
        HOperatorError, ImagesError: as the job.
    """
    known = {point.setting: point for point in done}
    wanted = [Setting(), *dict.fromkeys(settings)]
    if Setting() not in known:
        known[Setting()] = job(Setting())
    base = known[Setting()].latency

    def points() -> list[Point]:
        return with_optimal([known[setting] for setting in wanted if setting in known])

    report(points())
    missing = [setting for setting in wanted if setting not in known]
    found: Iterator[Point] = map(job, missing) if workers is None else in_order(workers, job, missing)
    for point in found:
        time = None if point.latency is None or base is None else point.latency * base
        known[point.setting] = replace(point, latency=time)
        report(points())
    return points()


def with_optimal(points: Sequence[Point]) -> list[Point]:
    """Return the points with what each is best at."""
    return [replace(one, optimal=tuple(cost for cost in COSTS if _is_optimal(one, points, cost))) for one in points]


def _is_optimal(point: Point, points: Sequence[Point], cost: str) -> bool:
    price, accuracy = getattr(point, cost), point.accuracy
    if price is None or accuracy is None:
        return False
    for other in points:
        their_price, their_accuracy = getattr(other, cost), other.accuracy
        if their_price is None or their_accuracy is None:
            continue
        no_worse = their_price <= price and their_accuracy >= accuracy
        if no_worse and (their_price < price or their_accuracy > accuracy):
            return False
    return True


@dataclass(frozen=True)
class SweepFolder:
    """Where points are kept while the work goes on: sweep.json and sweep.csv, which are the result in the end as well.

    Attributes:
        path: the folder.
        task: digest of everything that the points depend on.
    """

    path: Path
    task: str

    def read(self) -> list[Point]:
        """Return the points that are there, [] in a fresh folder, which is made.

        Raises HOperatorError 7914 if they are of other work, 3142 if there can be no such folder.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            text = (self.path / RESULT).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise HOperatorError(H_ERR_FILE_WR, f"{str(self.path)!r} cannot be used: {error}.") from None
        try:
            found = json.loads(text)
            points = [Point(**{**one, "optimal": tuple(one["optimal"])}) for one in found["points"]]
            task = found["task"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._strange(f"holds a {RESULT} that is none of dlprune's, or was damaged ({error})") from None
        if task != self.task:
            raise self._strange("holds points of other work (model, images or settings differ)")
        return points

    def write(self, points: Sequence[Point]) -> None:
        """Write the points, each file in one step. Raises HOperatorError 3142."""
        entries = {"task": self.task, "points": [asdict(point) for point in points]}
        texts = {RESULT: json.dumps(entries, indent=1), "sweep.csv": as_csv(points)}
        for name, text in texts.items():
            try:
                files.replace(self.path / name, text.encode())
            except OSError as error:
                raise HOperatorError(H_ERR_FILE_WR, f"{str(self.path / name)!r} cannot be written: {error}.") from None

    def _strange(self, what: str) -> HOperatorError:
        return HOperatorError(
            H_ERR_DL_MODEL_UNSUPPORTED_GENVALUE, f"{str(self.path)!r} {what}; give another folder, or empty this one."
        )


def as_csv(points: Sequence[Point]) -> str:
    """Return a line per point, with a head."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = [field.name for field in fields(Point)]
    writer.writerow(names)
    for point in points:
        values: dict[str, Any] = asdict(point)
        values["optimal"] = " ".join(point.optimal)
        writer.writerow([values[name] for name in names])
    return stream.getvalue()
