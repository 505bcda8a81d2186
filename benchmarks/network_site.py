"""What the benchmark of the network serves, and the programs that read it."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from reporting.data import Dataset
from reporting.environments import ROOT

WORKER = Path(__file__).with_name("network_worker.py")
PART_NBYTES = 8 << 20
MOST_S = 300

Metrics: TypeAlias = dict[str, float]


class WorkError(Exception):
    """A program failed; the text says how."""


FULL_DATA = Dataset("train", 8, 1000, "bin", 128_000)
TOY_DATA = Dataset("train", 4, 40, "bin", 4000)


class Site:
    """The files that are served, and what is known about them."""

    def __init__(self, folder: Path, data: Dataset) -> None:
        self.folder = folder
        self.data = data
        self.root = folder / "www"
        self.bucket = self.root / "bucket"
        self.num_caches = 0
        self.random = random.Random(0)

    def write(self) -> None:
        """Write shards, a spec with an index, and a spec that states digests alone."""
        import wids

        self.bucket.mkdir(parents=True)
        self.data.write(self.bucket)
        shards = self.data.shards(self.bucket)
        spec = wids.build_spec(shards, dataset_index=self.bucket / "train.index", progress=False)
        spec.save(self.bucket / "train.json")
        document = json.loads((self.bucket / "train.json").read_text(encoding="utf-8"))
        document.pop("index")
        for name, shardlist in (
            ("plain", document["shardlist"]),
            ("one", document["shardlist"][:1]),
        ):
            text = json.dumps({**document, "shardlist": shardlist})
            (self.bucket / f"{name}.json").write_text(text, encoding="utf-8")

    @cached_property
    def paths(self) -> list[str]:
        """The names of the shards."""
        return [Path(path).name for path in self.data.shards(self.bucket)]

    @cached_property
    def nbytes(self) -> int:
        """The length of all shards."""
        return sum((self.bucket / path).stat().st_size for path in self.paths)

    @contextmanager
    def cache(self) -> Iterator[str]:
        """Provide a path where nothing is, and delete what comes there."""
        self.num_caches += 1
        path = self.folder / f"cache-{self.num_caches}"
        try:
            yield str(path)
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def indices(self, count: int) -> list[int]:
        """Return random samples, each once."""
        return self.random.sample(range(self.data.num_samples), count)

    def ranges(self, indices: list[int]) -> list[tuple[str, int, int]]:
        """Return where the payloads of samples are: shard, start and stop."""
        return [self.payloads[index] for index in indices]

    @cached_property
    def payloads(self) -> list[tuple[str, int, int]]:
        """The place of each payload."""
        places = []
        for path in self.paths:
            with tarfile.open(self.bucket / path) as archive:
                places += [
                    (path, member.offset_data, member.offset_data + member.size)
                    for member in archive
                    if member.name.endswith(".bin")
                ]
        return places


@dataclass(frozen=True)
class Client:
    """A program that reads: a checkout of wids, or this interpreter with what is installed."""

    name: str
    site: Site
    source: Path = ROOT

    def ask(self, work: str, **about: Any) -> Metrics:
        """Do a work in a process of its own."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.source),
            "WIDS_CACHE": str(self.site.folder / "home"),
            "WIDS_PROGRESS": "0",
            "OMP_NUM_THREADS": "1",
            "NO_PROXY": "127.0.0.1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        shutil.rmtree(self.site.folder / "home", ignore_errors=True)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(WORKER)],
            input=json.dumps({"work": work, **about}),
            env=environment,
            cwd=self.site.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=MOST_S,
        )
        if done.returncode:
            reason = done.stderr.strip()[-2000:] or f"status {done.returncode}"
            raise WorkError(f"{self.name}, {work}: {reason}")
        found: Metrics = json.loads(done.stdout)
        return found


def curl(arguments: list[str], parallel: int) -> float:
    """Run curl for several URLs at a time; return the seconds."""
    command = ["curl", "--silent", "--show-error", "--fail", "--parallel"]
    command += ["--parallel-immediate", "--parallel-max", str(parallel)]
    start = time.perf_counter()
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorkError(f"curl: {done.stderr.strip()[-500:]}")
    return time.perf_counter() - start


def curl_files(site: Site, url: str) -> float:
    """Download all shards into files, each by one connection; return the seconds."""
    with site.cache() as folder:
        wanted = [f"{url}/bucket/{path}" for path in site.paths]
        output = [part for path in site.paths for part in ("--output", f"{folder}/{path}")]
        return curl([*wanted, *output, "--create-dirs"], len(wanted))


def curl_parts(site: Site, url: str, parallel: int) -> float:
    """Request all shards in parts, to be thrown away; return the seconds."""
    blocks = []
    for path in site.paths:
        nbytes = (site.bucket / path).stat().st_size
        for start in range(0, nbytes, PART_NBYTES):
            stop = min(start + PART_NBYTES, nbytes)
            blocks.append(
                f'url = "{url}/bucket/{path}"\nrange = "{start}-{stop - 1}"\noutput = "/dev/null"\n'
            )
    path = site.folder / "curl"
    path.write_text("next\n".join(blocks), encoding="utf-8")
    return curl(["--config", str(path)], parallel)


def is_there(metric: str) -> bool:
    """Return whether the program of a metric can be run here."""
    name = metric.partition(",")[0].partition(" ")[0]
    if name == "curl":
        return shutil.which("curl") is not None
    return importlib.util.find_spec(name) is not None
