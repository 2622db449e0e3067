"""Check that wheel and source package hold what they must: python check_packages.py FOLDER."""

import sys
import tarfile
import zipfile
from pathlib import Path

DATA = {"dlprune/py.typed", "dlprune/data/digits.onnx", "dlprune/data/digits.npz"}
SOURCES = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "tests/test_cli.py", "examples/halcon_workflow.py"}

folder = Path(sys.argv[1])
(wheel,) = folder.glob("*.whl")
(sdist,) = folder.glob("*.tar.gz")
in_wheel = set(zipfile.ZipFile(wheel).namelist())
in_sdist = {name.partition("/")[2] for name in tarfile.open(sdist).getnames()}
missing = sorted((DATA - in_wheel) | ((DATA | SOURCES) - in_sdist))
modules = {path.as_posix() for path in Path("dlprune").rglob("*.py")}
missing += sorted(modules - in_wheel)
strangers = sorted(name for name in in_wheel if not name.startswith(("dlprune/", "dlprune-")))
if missing or strangers:
    sys.exit(f"missing: {missing}; should not be in the wheel: {strangers}")
print(f"{wheel.name} and {sdist.name} are complete")
