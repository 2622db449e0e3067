"""The work of `sweep`: score once per criterion, prune and measure many times, print."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import dlprune as ha

from ..fit import scored_data
from ..pruningdata import PruningData
from ..report.plots import require_matplotlib
from ..report.sweepplots import write_sweep_plots
from ..sweep.run import Point, Setting, SweepFolder, SweepJob, TestImages, run_sweep
from .advice import advise_on_chance
from .exits import StoppedError
from .output import Output, milliseconds, number, percent
from .scoring import ScoringState, ScoringTask, score
from .setup import Work


@dataclass(frozen=True)
class SweepWork:
    """In which ways a model is to be pruned, and where the results go."""

    work: Work
    grid: Sequence[Setting]
    settings: Mapping[str, str | float]
    folder: Path
    keep_models: bool
    runs: int | None


def run(job: SweepWork, output: Output) -> None:
    """Do the job and print the result. Raises HError, StoppedError, typer.BadParameter."""
    work = job.work
    task = ScoringTask(work.model, work.preprocessing, work.data, work.indices)
    fresh = {mode: _fresh(job, mode) for mode in dict.fromkeys(setting.mode for setting in job.grid)}
    folder = SweepFolder(job.folder, _digest(job, task))
    done = folder.read()
    folder.write(done)
    if done:
        output.note(f"{len(done)} models are in {job.folder} already.")
    try:
        points = _points(job, task, fresh, folder, done, output)
    except KeyboardInterrupt:
        raise StoppedError(
            f"Interrupted; what is done is in {str(job.folder)!r}. The same command goes on from there.", signal.SIGINT
        ) from None
    for mode in fresh:
        _state_file(job, mode).unlink(missing_ok=True)
    work.tell_skipped(output)
    classes = work.classifier.class_num
    advise_on_chance(points[0].accuracy, len(work.test_indices), classes, output, "The original")
    _plots(job, points, output)
    _print(job, points, output)


def _fresh(job: SweepWork, mode: str) -> ha.HHandle:
    """Return pruning data that take what all targets need; wrong settings show before the work."""
    handle = ha.create_dl_pruning(job.work.model, mode, ha.from_python_dict(dict(job.settings)))
    for setting in sorted(job.grid, key=lambda setting: setting.target == "accuracy_drop"):
        ha.set_dl_pruning_param(handle, "target", setting.target)
    return handle


def _digest(job: SweepWork, task: ScoringTask) -> str:
    work = job.work
    names = [work.test.images.names[index] for index in work.test_indices]
    described = [task.fingerprint(), sorted(job.settings.items()), names, job.runs == 0]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:32]


def _state_file(job: SweepWork, mode: str) -> Path:
    return job.folder / f"{mode}.state"


def _points(
    job: SweepWork,
    task: ScoringTask,
    fresh: Mapping[str, ha.HHandle],
    folder: SweepFolder,
    done: Sequence[Point],
    output: Output,
) -> list[Point]:
    work = job.work
    finished = {point.setting for point in done}
    scored = {
        mode: _scored(job, task, mode, handle, output)
        for mode, handle in fresh.items()
        if any(setting.mode == mode and setting not in finished for setting in job.grid)
    }
    test = TestImages(work.test, work.test_indices, work.preprocessing)
    total = len({Setting(), *job.grid})
    with output.progress("Pruning", total) as advance:
        told = 0

        def report(points: list[Point]) -> None:
            nonlocal told
            folder.write(points)
            advance(len(points) - told)
            told = len(points)

        models = job.folder if job.keep_models else None
        sweep = SweepJob(work.classifier, scored, test, job.runs, models)
        return run_sweep(sweep, job.grid, done, report=report)


def _scored(job: SweepWork, task: ScoringTask, mode: str, fresh: ha.HHandle, output: Output) -> PruningData:
    """Score the images by a criterion, or go on where that was interrupted."""
    path, state = _state_file(job, mode), ScoringState(fresh)
    if path.exists():
        state = ScoringState.read(path, task.fingerprint(), "--out")
    if state.position < len(task.indices):
        score(replace(task, state_file=path, title=f"Scoring by {mode}"), state, output)
        state.write(path, task.fingerprint())
    return scored_data(state.pruning, 1)


def _plots(job: SweepWork, points: Sequence[Point], output: Output) -> None:
    try:
        require_matplotlib()
    except ha.HError as error:
        output.note(str(error))
        return
    for path in write_sweep_plots(points, job.folder):
        output.note(f"Figure: {path}")


def _print(job: SweepWork, points: Sequence[Point], output: Output) -> None:
    columns = [
        "criterion",
        "target",
        " percentage",
        " kernels",
        " parameters",
        " MACs",
        " bytes",
        " latency",
        " accuracy",
    ]
    output.table(
        job.work.file.name,
        [*columns, "not beaten in"],
        [
            (
                point.mode or "original",
                point.target if point.mode else "",
                f"{point.percentage:g}" if point.mode else "",
                point.kernels,
                point.parameters,
                point.macs,
                point.file_size,
                None if point.latency is None else milliseconds(point.latency),
                percent(point.accuracy),
                ", ".join(point.optimal).replace("_", " "),
            )
            for point in points
        ],
    )
    output.line(f"{number(len(points) - 1)} models; written: {job.folder}")
    output.json(
        {
            "model": str(job.work.file),
            "out": str(job.folder),
            "scored_images": len(job.work.indices),
            "test_images": len(job.work.test_indices),
            "points": [asdict(point) for point in points],
            "settings": dict(job.settings),
            "preprocessing": job.work.preprocessing.entries(),
            "skipped": job.work.skipped,
        }
    )
