"""`dlprune doctor`."""

from __future__ import annotations

import typer

from ..exits import ERROR
from ..options import OutputOptions

_PACKAGES = ("dlprune", "numpy", "onnx", "onnx-ir", "onnxruntime", "typer", "rich", "pillow")


def doctor(output_options: OutputOptions) -> None:
    """Show versions, providers and threads, and test whether everything works together here.

    Ends with exit code 1 if the test fails.

    Examples:

        dlprune doctor

        dlprune doctor --json
    """
    import platform
    from importlib.metadata import version

    import onnxruntime as ort

    from ...division import processors
    from ..output import Output

    output = Output(output_options)
    facts = {
        "python": platform.python_version(),
        "system": platform.platform(),
        **{name: version(name) for name in _PACKAGES},
        "providers": ort.get_available_providers(),
        "threads": processors(),
    }
    for name, value in facts.items():
        output.line(f"{name}: {', '.join(value) if isinstance(value, list) else value}")
    results = _self_test()
    for name, problem in results.items():
        output.line(f"{name}: {'FAILED: ' + problem if problem else 'ok'}")
    output.json({**facts, "self_test": {name: problem or "ok" for name, problem in results.items()}})
    if any(results.values()):
        typer.echo("The self-test failed.", err=True)
        raise typer.Exit(ERROR)


def _self_test() -> dict[str, str]:
    """Return what is wrong with each step of a small pruning run; empty where nothing is."""
    import tempfile
    from pathlib import Path

    import numpy as np

    import dlprune as ha

    from ...demo import demo_images
    from ...model import unwrap_model

    results: dict[str, str] = {}
    number = 50
    images, labels = demo_images("test")
    pixels = images[:number, np.newaxis].astype(np.float32) - 127
    labels = labels[:number]

    def accuracy(model: ha.HHandle) -> float:
        return float(np.mean(unwrap_model(model, 1).confidences(pixels).argmax(axis=1) == labels))

    try:
        step = "classify"
        model = ha.read_dl_model(ha.demo_model_file())
        ha.set_dl_model_param(model, "batch_size", number)
        before = accuracy(model)
        results[step] = "" if before > 0.95 else f"only {before:.0%} of the embedded images are recognised"
        step = "score"
        pruning = ha.create_dl_pruning(model, "oracle", [])
        ha.add_dl_pruning_batch(model, pruning, ha.demo_samples()[:number])
        results[step] = ""
        step = "prune"
        pruned = ha.gen_dl_pruned_model(model, pruning)
        after = accuracy(pruned)
        results[step] = "" if after > 0.9 else f"only {after:.0%} are recognised after pruning by 10 %"
        step = "write and read"
        with tempfile.TemporaryDirectory() as folder:
            file = str(Path(folder) / "pruned.onnx")
            ha.write_dl_model(pruned, file)
            again = accuracy(ha.read_dl_model(file))
        results[step] = "" if again == after else "the model read again decides differently"
    except Exception as error:  # whatever it is, the report must show it
        results[step] = f"{type(error).__name__}: {error}"
    return results
