"""All benchmarks in order, into one folder and one Markdown file: machine, versions, medians, ratios.

Each part is a command of its own. What it prints (or writes as Markdown) becomes a section of ``benchmarks.md``; its
own results stay in the folder, so that a part that was interrupted goes on where it was. A part that is done with the
same versions is not run again (``--again`` does), one whose packages are missing is left out and named: run the suite
once more, with another interpreter, to fill the gaps::

    python tests/benchmarks/suite.py FOLDER                       # everything; most of a day on two cores
    python tests/benchmarks/suite.py FOLDER growth latency large  # some parts
    python tests/benchmarks/suite.py FOLDER --quick               # a look whether all of them run: few repetitions
    python tests/benchmarks/suite.py FOLDER --list

Accuracy needs trained nets, which the part 'nets' makes; it wants the files of Fashion-MNIST (see nets.py). Parts that
measure time want a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from machine import Kept, markdown, processor, where

HERE = Path(__file__).resolve().parent
#: Modules whose versions decide whether a part is done.
PACKAGES = ("numpy", "onnx", "torch", "torchvision", "timm", "torch-pruning", "onnxsim")


@dataclass(frozen=True)
class Part:
    """A benchmark.

    Attributes:
        title: the heading of its section.
        commands: scripts with their arguments; 'ZOO', 'NETS' and 'OUT' stand for the folders of files and of results.
        needs: modules beside those of dlprune.
        trained: whether it works on trained nets, see nets.py.
        quick: arguments for a short look, added to each command.
        shows: files in the folder of results that belong into the section, instead of what the last command prints.
        minutes: about how long it takes on two cores.
    """

    title: str
    commands: Sequence[str]
    needs: Sequence[str] = ()
    trained: bool = False
    quick: str = ""
    shows: Sequence[str] = ()
    minutes: int = 1


TORCH = ("torch", "torchvision", "timm")
ONE_NET = "--nets densenet --seeds 0"
PARTS = {
    "growth": Part(
        "Growth of time and memory",
        ["growth.py OUT/growth.md --plot OUT/growth.png"],
        ["matplotlib"],
        quick="--quick",
        shows=["growth.md", "growth.png"],
        minutes=4,
    ),
    "memory": Part("Memory while scoring from disk", ["memory.py"], ["PIL"], quick="--numbers 150 300", minutes=4),
    "latency": Part(
        "Latency", ["latency.py ZOO"], TORCH, quick="resnet18 --percentages 30 --multiples 1 8 --seconds 0.1", minutes=6
    ),
    "speed": Part(
        "Scoring, structure and surgery",
        ["speed.py ZOO OUT/speed.md"],
        [*TORCH, "torch_pruning"],
        quick="resnet18 --repetitions 1 --prunings 1",
        shows=["speed.md"],
        minutes=10,
    ),
    "large": Part("Large networks", ["large.py ZOO"], TORCH[:2], quick="chain_small", minutes=6),
    "whole_job": Part(
        "A whole job",
        ["whole_job.py ZOO"],
        [*TORCH, "torch_pruning"],
        quick="--name mobilenet_v2 --images 8",
        minutes=12,
    ),
    "train_speed": Part(
        "Training steps", ["train_speed.py"], TORCH[:1], quick="--nets VGG --parts speed --repetitions 2", minutes=10
    ),
    "zoo": Part(
        "Known topologies",
        ["topologies.py ZOO", "zoo.py ZOO measure", "zoo.py ZOO time", "zoo.py ZOO table"],
        [*TORCH, "onnxscript", "torch_pruning", "onnxsim"],
        quick="resnet18",
        minutes=40,
    ),
    "nets": Part(
        "Trained nets", ["nets.py NETS"], ["torch", "sklearn"], quick="--nets densenet vgg --seeds 0", minutes=60
    ),
    "correlation": Part(
        "Rank correlation with the exact oracle",
        ["correlation.py NETS"],
        trained=True,
        quick=f"{ONE_NET} --images 64",
        minutes=20,
    ),
    "accuracy": Part(
        "Accuracy without retraining",
        ["accuracy.py NETS peers", "accuracy.py NETS dlprune", "accuracy.py NETS table --plot OUT/accuracy.png"],
        ["torch", "torch_pruning", "onnxsim", "matplotlib"],
        trained=True,
        quick=f"{ONE_NET} --kernels 30 --macs 60",
        minutes=300,
    ),
    "accuracy_budget": Part(
        "One point of accuracy", ["budgets.py NETS accuracy_drop"], trained=True, quick=ONE_NET, minutes=60
    ),
    "time_budget": Part(
        "Thirty per cent of the time", ["budgets.py NETS latency"], trained=True, quick=ONE_NET, minutes=10
    ),
    "magnitude": Part(
        "Gradual magnitude pruning",
        ["magnitude.py NETS --images 6000 --epochs 5", "magnitude.py NETS --table"],
        TORCH[:1],
        trained=True,
        quick="--nets vgg --seeds 0 --images 128 --epochs 1 --sparsities 0.5",
        minutes=120,
    ),
    "finetune": Part(
        "Training after pruning",
        ["finetune.py NETS", "finetune.py NETS --table"],
        TORCH[:1],
        trained=True,
        quick="--nets vgg --seeds 0 --images 128",
        minutes=60,
    ),
}


class Suite:
    """Runs parts and puts their sections together.

    Args:
        folder: where everything is kept.
        zoo: folder of exported topologies.
        nets: folder of trained nets.
        quick: whether parts only take a short look.
    """

    def __init__(self, folder: Path, zoo: Path, nets: Path, quick: bool) -> None:
        self._folder, self._out, self._quick = folder, folder / "out", quick
        self._places = {"ZOO": zoo, "NETS": nets, "OUT": self._out}
        self._out.mkdir(parents=True, exist_ok=True)
        self.place = where(PACKAGES)
        self._state = Kept(folder / "suite.json", "")

    def run(self, name: str, again: bool) -> bool:
        """Run a part unless it is done or lacks packages; tell whether it did not fail."""
        part, known = PARTS[name], self._state.found.get(name, {})
        if known.get("state") == "done" and known["place"] == self.place and not again:
            return True
        missing = [module for module in part.needs if find_spec(module) is None]
        if part.trained and not any(self._places["NETS"].glob("*.onnx")):
            missing.append("trained nets")
        if missing:
            if known.get("state") != "done":  # what another interpreter has measured stays
                self._save(name, f"left out: {', '.join(missing)} missing")
            return True
        start = time.perf_counter()
        print(f"{name}: about {part.minutes} minutes", file=sys.stderr, flush=True)
        for command in part.commands:
            if not self._command(name, command):
                self._save(name, f"failed, see out/{name}.log")
                return False
        self._save(name, "done", time.perf_counter() - start)
        return True

    def _save(self, name: str, state: str, seconds: float = 0.0) -> None:
        self._state.save(name, {"state": state, "seconds": seconds, "place": self.place})
        print(f"{name}: {state}", file=sys.stderr, flush=True)
        (self._folder / "benchmarks.md").write_text(self.report())

    def _command(self, name: str, command: str) -> bool:
        script, *words = [*command.split(), *(PARTS[name].quick.split() if self._quick else [])]
        for short, path in self._places.items():
            words = [str(path) + word.removeprefix(short) if word.split("/")[0] == short else word for word in words]
        with (self._out / f"{name}.txt").open("w") as told, (self._out / f"{name}.log").open("a") as log:
            command_line = [sys.executable, str(HERE / script), *words]
            environment = os.environ | {"OMP_WAIT_POLICY": "passive", "MPLBACKEND": "agg"}
            return subprocess.run(command_line, stdout=told, stderr=log, env=environment, check=False).returncode == 0

    def report(self) -> str:
        """Return the Markdown file: what was run where, then a section for each part."""
        rows, sections = [], []
        for name, part in PARTS.items():
            known = self._state.found.get(name, {"state": "not run", "seconds": 0.0})
            rows.append([part.title, known["state"], f"{known['seconds'] / 60:.1f}" if known["seconds"] else ""])
            if known["state"] == "done":
                text = self._section(name, part)
                place = "" if processor() in text else f"{known['place']}\n\n"
                sections.append(f"## {part.title}\n\n{place}{text}")
        note = " A short look only: these numbers mean nothing." if self._quick else ""
        head = f"# Benchmarks\n\n{self.place}.{note}\n\n{markdown(['part', 'state', 'minutes'], rows)}"
        return "\n\n".join([head, *sections]) + "\n"

    def _section(self, name: str, part: Part) -> str:
        pieces = []
        for file in part.shows or [f"{name}.txt"]:
            picture = file.endswith(".png")
            pieces.append(f"![{part.title}](out/{file})" if picture else (self._out / file).read_text().strip())
        return "\n\n".join(pieces)


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--zoo", type=Path, help="folder of topologies.py, FOLDER/zoo unless given")
    parser.add_argument("--nets", type=Path, help="folder of nets.py, FOLDER/nets unless given")
    parser.add_argument("--quick", action="store_true", help="a short look; give it a folder of its own")
    parser.add_argument("--again", action="store_true", help="also what is done already")
    parser.add_argument("--list", action="store_true", help="name parts, packages and minutes")
    arguments = parser.parse_intermixed_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if arguments.list:
        rows = [[name, part.title, ", ".join(part.needs), part.minutes] for name, part in PARTS.items()]
        print(markdown(["part", "measures", "needs", "minutes"], rows))
        return
    folder = arguments.folder.resolve()
    zoo, nets = arguments.zoo or folder / "zoo", arguments.nets or folder / "nets"
    suite = Suite(folder, zoo.resolve(), nets.resolve(), arguments.quick)
    done = [suite.run(name, arguments.again) for name in arguments.parts or PARTS]
    print(suite.report())
    if not all(done):
        sys.exit(1)


if __name__ == "__main__":
    main()
