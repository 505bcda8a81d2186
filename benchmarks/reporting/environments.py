"""Libraries → the interpreters that run them, each in the environment that it needs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TORCH = ("torch==2.13.0",)
STATEFUL = ("torchdata==0.11.0", "pillow==13.0.0")

ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    "wids": (*TORCH, "-e", f"{ROOT}[turbo,s3]"),
    "wids-0.1.11": (*TORCH, "wids==0.1.11", "numpy==2.4.6", "pillow==13.0.0"),
    "webdataset": (*TORCH, "webdataset==1.0.2", "numpy==2.4.6", "pillow==13.0.0"),
    "streaming": (*TORCH, *STATEFUL, "mosaicml-streaming==0.13.0"),
    "litdata": (*TORCH, *STATEFUL, "litdata==0.2.76"),
    "datasets": (*TORCH, *STATEFUL, "datasets==5.2.0", "aiohttp==3.14.5", "requests==2.34.2"),
    "webshart": (*TORCH, *STATEFUL, "webshart==0.4.6", "numpy==2.4.6"),
    "lancedb": (*TORCH, "lancedb==0.40.0", "pylance==14.0.2", "pillow==13.0.0"),
    "grain": ("grain==0.2.18", "array-record==0.8.6", "pillow==13.0.0"),
    "records": (*TORCH, *STATEFUL, "bagz==0.3.8", "lmdb==3.0.0", "simplejpeg==1.9.0"),
}
"""What is installed for each. torch comes first: pip then keeps the build that it found."""

NEEDED = {"wids": "wids", "wids-0.1.11": "-", "records": "lmdb"}
"""What to look for in this environment, where that is not named as the environment."""


@dataclass(frozen=True)
class Contestant:
    """A library in the report.

    Attributes:
        name: What readers call it.
        module: Its module in ``peers``.
        variant: Which way to use it.
        environment: Where it runs.
        reads: The form that it reads.
        only: The rows in which it is shown for comparison, where it wins nothing; empty for a
            library, which has all.
        uncounted: Why the processor time of its workers is not known; empty where it is.
    """

    name: str
    module: str
    variant: str
    environment: str
    reads: str
    only: tuple[str, ...] = ()
    uncounted: str = ""

    @property
    def is_limit(self) -> bool:
        """Whether it is shown for comparison."""
        return bool(self.only)


FORK_SERVER = "its workers are a fork server's, whose processor time is not counted"
PICTURES = ("pictures_0", "pictures_1", "pictures_2")
CONTESTANTS = (
    Contestant("wids", "wids", "", "wids", "tars"),
    Contestant("wids 0.1.11", "old_wids", "", "wids-0.1.11", "tars"),
    Contestant("webdataset", "webdataset", "", "webdataset", "tars"),
    Contestant("mosaicml-streaming", "streaming", "", "streaming", "MDS"),
    Contestant("litdata", "litdata", "", "litdata", "chunks"),
    Contestant("HF datasets", "datasets", "", "datasets", "Arrow"),
    Contestant("webshart", "webshart", "", "webshart", "tars"),
    Contestant("LanceDB", "lancedb", "", "lancedb", "Lance", uncounted=FORK_SERVER),
    Contestant("array_record + grain", "array_record", "", "grain", "ArrayRecord"),
    Contestant("bagz", "bagz", "", "records", "bag"),
    Contestant("LMDB", "lmdb", "", "records", "LMDB"),
    Contestant("files", "files", "", "records", "files"),
    Contestant("wids, Pillow", "wids", "pillow", "wids", "tars", PICTURES),
    Contestant("files, simplejpeg", "files", "turbo", "records", "files", PICTURES),
    Contestant("LMDB, undivided values", "lmdb", "values", "records", "LMDB", ("single", "batch")),
    Contestant("obstore", "obstore", "", "wids", "tars", ("remote_random",)),
    Contestant("pread", "files", "pread", "records", "tars", ("single", "batch", "cold")),
)


def make(folder: Path, names: list[str]) -> dict[str, str]:
    """Make the environments that are not there yet; return why some cannot be made."""
    reasons = {}
    for name in names:
        if interpreter(folder, name).exists():
            continue
        print(f"installing {name} …", file=sys.stderr, flush=True)
        target = folder / name
        subprocess.run([sys.executable, "-m", "venv", str(target)], check=True)
        # One call for all, after torch, so that nothing replaces its build.
        for wanted in (ENVIRONMENTS[name][:1], ENVIRONMENTS[name]):
            command = [str(target / "bin" / "pip"), "install", "--quiet", *wanted]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                reasons[name] = done.stderr.strip().splitlines()[-1]
                interpreter(folder, name).unlink()
                break
    return reasons


def interpreter(folder: Path, name: str) -> Path:
    """Return the interpreter of an environment."""
    return folder / name / "bin" / "python"


def interpreters(
    folder: Path | None, old_python: str | None, names: Collection[str] = ENVIRONMENTS.keys()
) -> tuple[dict[str, str], dict[str, str]]:
    """Return interpreters by environment, and the reasons for those that are missing.

    Without a folder they are this interpreter, for what is installed here, and ``old_python``.
    """
    if folder is not None:
        folder = folder.absolute()
        reasons = make(folder, list(names))
        found = {name: str(interpreter(folder, name)) for name in names if name not in reasons}
        return found, reasons
    found, reasons = {}, {}
    for name in names:
        if name == "wids-0.1.11":
            if old_python:
                found[name] = old_python
        elif importlib.util.find_spec(NEEDED.get(name, name)):
            found[name] = sys.executable
        if name not in found:
            reasons[name] = "it is not installed in this environment"
    return found, reasons


def variables(contestant: Contestant, folder: Path) -> dict[str, str]:
    """Return the environment variables of a library's process."""
    settings = {
        **os.environ,
        "WIDS_CACHE": str(folder / "cache"),
        "HF_HOME": str(folder / "huggingface"),
        "OMP_NUM_THREADS": "1",  # with two cores, more threads than processes only add noise
        "PYTHONWARNINGS": "ignore",
        "LITDATA_CACHE_DIR": str(folder / "litdata"),
        "HOME": str(folder),
    }
    settings.pop("PYTHONPATH", None)
    # pip compiles what it installs; this checkout is compiled when it is first imported.
    settings.pop("PYTHONDONTWRITEBYTECODE", None)
    if contestant.environment == "wids":
        settings["PYTHONPATH"] = str(ROOT)
    return settings
