"""What is compared of golden files: samples, keys, columns, problems, and runs that resume.

`make.py` records these values, `test_golden_files.py` compares them. It uses public names of wids
and the command line only, so that no change inside the library changes what is compared.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import fsspec

import wids

HOUR_NS = 3600 * 10**9
"""The time of modification of files that are packed."""

HERE = "/proc/self/cwd"
"""The current folder, by a name under which it is the same wherever it is."""

SPECS = (
    "published/train.json",
    "published/bare.json",
    "published/own.json",
    "published/mixed.json",
    "published/saved.json",
    "odd/odd.json",
    "odd/last.json",
    "headers/headers.json",
    "packed/out.json",
    "written/captions.json",
    "rewritten/new.json",
    "table/small.json",
)
"""The datasets of a generation."""

SEVERAL = ("published/train.json", "table/small.json", "written/captions-000001.tar")
"""What is one dataset as a list: two specs and a tar."""


def run(*arguments: object) -> int:
    """Run the command ``wids`` in this process, as the package declares it."""
    command = next(iter(entry_points(group="console_scripts", name="wids")))
    status: int = command.load()([str(argument) for argument in arguments])
    return status


def unpack(folder: Path, target: Path) -> Path:
    """Copy a generation, as a user has it on disk: with the shard that is compressed here."""
    shutil.copytree(folder, target, dirs_exist_ok=True)
    for path in target.rglob("*.tar.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    return target


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """The block has this current folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def samples(dataset: Any) -> list[Any]:
    """Return the key of each sample and the digests of its fields."""
    return [
        [
            sample["__key__"],
            {name: digest(data) for name, data in sample.items() if not name.startswith("__")},
        ]
        for sample in dataset
    ]


def facts(spec: Path | str | list[Path], **options: Any) -> dict[str, Any]:
    """Return what a dataset has: samples, lengths, names, keys, weights and the entries kept."""
    with wids.ShardListDataset(spec, transformations=[], raw="bytes", **options) as dataset:
        found = samples(dataset)
        keys = [key for key, _ in found]
        return {
            "samples": found,
            "lengths": dataset.lengths,
            "name": dataset.spec.name,
            "datasets": [shard.dataset for shard in dataset.spec.shards],
            "weights": dict(dataset.weights),
            "extras": dict(dataset.spec.extras),
            "shards": [
                [os.path.basename(s.url), s.num_samples, s.nbytes, s.md5sum, s.sha256]
                for s in dataset.spec.shards
            ],
            # By the tables of keys, where there are any; the last one first.
            "found": [dataset.find_key(key) for key in keys[::-1]],
        }


def problems(spec: Path) -> list[Any]:
    """Return what `verify_spec` finds, as severity and shard; texts may become better."""
    remarks: list[Any] = []
    found = wids.verify_spec(spec, progress=False, on_remark=remarks.append)
    return [[p.severity, os.path.basename(p.shard)] for p in (*found, *remarks)]


def columns(spec: Path) -> dict[str, Any]:
    """Return the values and types of the saved table."""
    table = wids.load_table(spec)
    return {field.name: [str(field.type), table[field.name].to_pylist()] for field in table.schema}


def decoded(spec: Path) -> list[Any]:
    """Return the decoded fields of all samples."""
    with wids.ShardListDataset(spec) as dataset:
        return [
            {name: value for name, value in sample.items() if not name.startswith("__")}
            for sample in dataset
        ]


# Runs that are resumed. Each is called in a folder of its own.


def place(source: Path, target: Path) -> None:
    """Copy files, all with one time."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    for path in target.rglob("*"):
        os.utime(path, ns=(HOUR_NS, HOUR_NS))


class Watched(io.FileIO):
    """A file that notes its name when it is read, and not when it is only opened."""

    def __init__(self, path: Path, names: list[str], name: str) -> None:
        super().__init__(path)
        self._names, self._name = names, name

    def read(self, size: int | None = -1, /) -> bytes | None:
        self._names.append(self._name)
        return super().read(size)

    def readinto(self, buffer: Any, /) -> int | None:
        self._names.append(self._name)
        return super().readinto(buffer)


def opener(folder: Path, names: list[str]) -> Callable[[str], Any]:
    """Return what opens ``golden:`` URLs: files of a generation, on a server that never moves.

    Args:
        folder: The generation.
        names: Gets the name of a file at each read.
    """

    def open_url(url: str) -> Any:
        name = url.removeprefix("golden://data/")
        return Watched(folder / name, names, name)

    return open_url


def create(folder: Path) -> int:
    """Describe the shards of `published` here, as its spec and dataset index do."""
    for path in sorted((folder / "published").glob("train-*.tar")):
        shutil.copy(path, path.name)
    shards = [f"{HERE}/train-{number:06d}.tar" for number in range(3)]
    return run("create", *shards, "-o", f"{HERE}/train.json", "-n", "train")


def pack(folder: Path) -> None:
    """Pack the files of `packed/in` here."""
    place(folder / "packed" / "in", Path("in"))
    output = f"{HERE}/out"
    wids.pack_folder(f"{HERE}/in", output, maxcount=3, progress=False)


def rewrite(folder: Path) -> None:
    """Rewrite `published` here: one field of its samples, backwards."""
    handlers = {"golden": opener(folder, [])}
    url = "golden://data/published/train.json"
    with wids.ShardListDataset(url, handlers=handlers, fields=["json"]) as dataset:
        output = f"{HERE}/new-%06d.tar"
        wids.rewrite(dataset[::-1], output, maxcount=5, progress=False)


def shuffle(folder: Path) -> int:
    """Rewrite `published` here: one field of its samples, in a random order."""
    memory = fsspec.filesystem("memory")
    for path in (folder / "published").iterdir():
        memory.pipe(f"/golden/{path.name}", path.read_bytes())
    arguments = ("--fields", "cls", "--shuffle", "3", "--maxcount", "6", "-j", "1")
    try:
        return run("rewrite", "memory://golden/train.json", f"{HERE}/random", *arguments)
    finally:
        memory.rm("/golden", recursive=True)


def digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return the digests of files, by their names."""
    return {path.name: digest(path.read_bytes()) for path in sorted(paths)}


RUNS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "create": (create, "published", "train.*"),
    "pack": (pack, "packed", "out*"),
    "rewrite": (rewrite, "rewritten", "new*"),
    "shuffle": (shuffle, "shuffled", "random*"),
}
"""What is written from fixed input, and where the result of the generation is."""
