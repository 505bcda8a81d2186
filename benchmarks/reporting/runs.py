"""Libraries and datasets → what each row took, measured in turns."""

from __future__ import annotations

import io
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remote import serving
from reporting.data import Dataset
from reporting.environments import Contestant, variables
from web_server import Network, web_server

SERVE = Path(__file__).parents[1] / "peers" / "serve.py"
CONNECTIONS = Network(connection_nbytes=20e6)
BATCH = 256
COLD_BATCH = 64


class MissingError(Exception):
    """A cell cannot be had; the text is the reason."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    small: Dataset
    large: Dataset
    pictures: Dataset
    crops: Dataset
    remote: Dataset
    fast: Dataset
    rate_nbytes: float
    reads: int
    cold_batches: int
    num_indices: int
    num_read: int
    pause_after: int
    remote_samples: int
    most_s: float


FULL = Sizes(
    Dataset("small", 10, 1000, "bin", 1000),
    Dataset("large", 10, 300, "bin", 100_000),
    Dataset("pictures", 5, 120, "jpg", None),
    Dataset("crops", 5, 384, "jpg", None, (500, 375)),
    Dataset("remote", 8, 150, "bin", 20_000),
    Dataset("fast", 8, 500, "bin", 128_000),
    rate_nbytes=8e6,
    reads=4000,
    cold_batches=10,
    num_indices=1_000_000_000,
    num_read=200_000,
    pause_after=60,
    remote_samples=1024,
    most_s=120,
)
QUICK = Sizes(
    Dataset("small", 4, 300, "bin", 1000),
    Dataset("large", 2, 100, "bin", 10_000),
    Dataset("pictures", 2, 32, "jpg", None),
    Dataset("crops", 2, 64, "jpg", None, (500, 375)),
    Dataset("remote", 3, 40, "bin", 5000),
    Dataset("fast", 3, 64, "bin", 20_000),
    rate_nbytes=4e6,
    reads=300,
    cold_batches=2,
    num_indices=10_000_000,
    num_read=1000,
    pause_after=5,
    remote_samples=64,
    most_s=60,
)


class Process:
    """A library's process, which answers requests."""

    def __init__(self, contestant: Contestant, python: str, folder: Path, most_s: float) -> None:
        self.most_s = most_s
        self.started_s = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [python, "-W", "ignore", str(SERVE), contestant.module, contestant.variant],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env=variables(contestant, folder),
                start_new_session=True,  # so that its workers end with it
            )

    def ask(self, work: str, **about: Any) -> Any:
        """Return the value of an answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"work": work, **about}).encode() + b"\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], self.most_s)[0]:
            self.kill()
            raise MissingError(f"it took more than {self.most_s:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise MissingError(f"its process ended with status {self.process.wait()}")
        answer = json.loads(line)
        if "unsupported" in answer:
            raise MissingError(answer["unsupported"])
        if "error" in answer:
            raise MissingError("it failed: " + answer["error"].strip().splitlines()[-1][:200])
        return answer["value"]

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process.stdout.close()

    def kill(self) -> None:
        """End the process at once, with all that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Results:
    """What was measured.

    Attributes:
        values: Row → contestant → a number for each turn.
        reasons: Row → contestant → why it has none.
        versions: Contestant → versions of its libraries.
        about: The machine, and when.
        network: The rows of `network.py`: row → metric → program → a number for each turn.
    """

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    reasons: dict[str, dict[str, str]] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    network: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)

    def note(self, row: str, name: str, value: float) -> None:
        """Add a number."""
        self.values.setdefault(row, {}).setdefault(name, []).append(value)

    def miss(self, row: str, name: str, reason: str) -> None:
        """Note why there is no number; those that were measured before are not counted."""
        self.values.get(row, {}).pop(name, None)
        self.reasons.setdefault(row, {})[name] = reason


class Run:
    """Measures all rows; the processes of all libraries take turns."""

    def __init__(
        self, contestants: list[Contestant], pythons: dict[str, str], folder: Path, sizes: Sizes
    ) -> None:
        self.contestants = contestants
        self.pythons = pythons
        self.folder = folder
        self.sizes = sizes
        self.random = random.Random(0)
        self.results = Results()
        self.live: dict[str, Process] = {}
        self.expected: dict[str, list[int]] = {}
        self.num_folders = 0

    # Files and processes.

    @property
    def tars(self) -> Path:
        """The folder of the plain tars."""
        return self.folder / "tars"

    def own(self, contestant: Contestant) -> Path:
        """Return the folder of a library."""
        return self.folder / contestant.name.replace(" ", "-").replace(",", "")

    def data(self, contestant: Contestant, dataset: Dataset) -> dict[str, object]:
        """Return what a library is told of a dataset."""
        return dataset.request(self.tars, self.own(contestant))

    def start(self, contestant: Contestant) -> Process:
        """Start a process of a library."""
        python = self.pythons[contestant.environment]
        return Process(contestant, python, self.own(contestant), self.sizes.most_s)

    @contextmanager
    def fresh(self, contestant: Contestant) -> Iterator[Process]:
        """Start a process of a library, for the time of the block."""
        process = self.start(contestant)
        try:
            yield process
        finally:
            process.close()

    def asked(self, contestant: Contestant) -> Process:
        """Return the process of a library that lives as long as the run."""
        process = self.live.get(contestant.name)
        if process is None or process.process.poll() is not None:
            process = self.live[contestant.name] = self.start(contestant)
        return process

    def close(self) -> None:
        """End all processes."""
        for process in self.live.values():
            process.close()

    # Preparation.

    def prepare(self) -> None:
        """Write the tars, have each library convert them, and compare what it reads."""
        self.tars.mkdir(parents=True)
        sizes = self.sizes
        local = (sizes.small, sizes.large, sizes.pictures, sizes.crops)
        for dataset in (*local, sizes.remote, sizes.fast):
            dataset.write(self.tars)
        for contestant in self.contestants:
            show(f"prepare {contestant.name}")
            with self.fresh(contestant) as process:  # what it maps would stay in the page cache
                self.results.versions[contestant.name] = process.ask("versions")
                self.try_row("prepare", contestant, self.convert_all(process))
            self.try_row("check", contestant, self.check)
            self.try_row("pause", contestant, self.pause)

    def convert_all(self, process: Process) -> Callable[[Contestant], float]:
        """Return the work that makes the forms of the local datasets."""

        def work(contestant: Contestant) -> float:
            sizes = self.sizes
            for dataset in (sizes.small, sizes.pictures, sizes.crops, sizes.large):
                found = process.ask("convert", data=self.data(contestant, dataset))
            self.results.note("large_s", contestant.name, found["seconds"])
            self.results.note("large_nbytes", contestant.name, found["nbytes"])
            return 0.0

        return work

    def check(self, contestant: Contestant) -> float:
        """Compare samples, epochs and pixels with what was written."""
        for work in (self.check_samples, self.check_epoch, self.check_pictures):
            try:
                work(contestant, self.asked(contestant))
            except MissingError as reason:
                if "failed" in str(reason):
                    raise
        return 0.0

    def check_samples(self, contestant: Contestant, process: Process) -> None:
        """Compare some samples byte by byte."""
        small = self.sizes.small
        data = self.data(contestant, small)
        indices = [0, 1, small.length - 1, small.length, small.num_samples - 1]
        found = process.ask("check_samples", data=data, indices=indices)
        for index, (content, number) in zip(indices, found, strict=True):
            if (bytes.fromhex(content), number) != (small.content(index), index):
                raise MissingError(f"it failed: sample {index} is not what was written")

    def check_epoch(self, contestant: Contestant, process: Process) -> None:
        """Compare an epoch with the set of all samples."""
        data = self.data(contestant, self.sizes.small)
        for num_workers in (0, 2):
            found = process.ask("check_epoch", data=data, num_workers=num_workers)
            if sorted(found) != list(range(self.sizes.small.num_samples)):
                raise MissingError("it failed: an epoch does not have each sample once")
            if found[:100] == sorted(found[:100]):
                raise MissingError("it failed: an epoch is not shuffled")

    def check_pictures(self, contestant: Contestant, process: Process) -> None:
        """Compare the mean of each picture with what Pillow decodes."""
        import numpy as np
        from PIL import Image

        pictures = self.sizes.pictures
        found = process.ask("check_pictures", data=self.data(contestant, pictures))
        means = sorted(
            float(np.asarray(Image.open(io.BytesIO(pictures.content(number)))).mean())
            for number in range(pictures.num_samples)
        )
        if len(means) != len(found) or np.abs(np.subtract(means, found)).max() > 0.5:
            raise MissingError("it failed: pictures differ from what Pillow decodes")

    def pause(self, contestant: Contestant) -> float:
        """Save a state in the middle of an epoch."""
        small = self.data(contestant, self.sizes.small)
        path = str(self.own(contestant) / "state")
        self.expected[contestant.name] = self.asked(contestant).ask(
            "pause", data=small, path=path, num_batches=self.sizes.pause_after
        )
        return 0.0

    def try_row(self, row: str, contestant: Contestant, work: Callable[..., float]) -> None:
        """Measure, and note the number or the reason."""
        name = contestant.name
        is_asked = not contestant.only or row in ("prepare", "check", *contestant.only)
        if not is_asked or name in self.results.reasons.get(row, {}):
            return
        broken = [
            self.results.reasons[needed][name]
            for needed in ("prepare", "check")
            if name in self.results.reasons.get(needed, {}) and not contestant.is_limit
        ]
        if broken:
            self.results.miss(row, name, broken[0])
            return
        try:
            value = work(contestant)
        except (MissingError, BrokenPipeError) as reason:
            self.results.miss(row, name, str(reason))
        else:
            if row not in ("prepare", "check", "pause"):
                self.results.note(row, name, value)

    # Rows: each method measures one library once.

    def single(self, contestant: Contestant) -> float:
        """One sample at a time, in random order."""
        count, size = self.sizes.reads, self.sizes.small.num_samples
        indices = [self.random.randrange(size) for _ in range(count)]
        return self.warm(contestant, "single", indices=indices)

    def batch(self, contestant: Contestant) -> float:
        """256 samples at a time, in random order."""
        batches = self.batches(
            self.sizes.small.num_samples, max(2, self.sizes.reads // BATCH), BATCH
        )
        return self.warm(contestant, "batched", batches=batches)

    def warm(self, contestant: Contestant, work: str, **request: Any) -> float:
        """Do work twice, and measure the second time: everything is open and in memory then."""
        process, data = self.asked(contestant), self.data(contestant, self.sizes.small)
        process.ask(work, data=data, **request)
        return float(process.ask(work, data=data, **request))

    def batches(self, size: int, count: int, width: int) -> list[list[int]]:
        """Return batches of random indices."""
        return [[self.random.randrange(size) for _ in range(width)] for _ in range(count)]

    def cold(self, contestant: Contestant) -> float:
        """64 samples of 100 kB at a time, in random order, from the disk."""
        large = self.sizes.large
        count = min(large.num_samples // COLD_BATCH, self.sizes.cold_batches + 1)
        order = self.random.sample(range(large.num_samples), count * COLD_BATCH)
        batches = [order[n : n + COLD_BATCH] for n in range(0, len(order), COLD_BATCH)]
        folder = self.own(contestant) / large.name
        paths = [str(path) for path in folder.rglob("*") if path.is_file()]
        if contestant.reads == "tars":
            paths += large.shards(self.tars)
        with self.fresh(contestant) as process:
            data = self.data(contestant, large)
            return float(process.ask("cold", data=data, batches=batches, paths=paths))

    def convert(self, contestant: Contestant) -> float:
        """First index, or conversion, of small samples."""
        self.num_folders += 1
        folder = self.own(contestant) / f"again-{self.num_folders}"
        data = {**self.data(contestant, self.sizes.small), "folder": str(folder)}
        with self.fresh(contestant) as process:
            found = process.ask("convert", data=data)
        shutil.rmtree(folder)
        self.results.note("convert_nbytes", contestant.name, found["nbytes"])
        return float(found["seconds"])

    def importing(self, contestant: Contestant) -> float:
        """Import the library."""
        with self.fresh(contestant) as process:
            return float(process.ask("import_library"))

    def opening(self, contestant: Contestant) -> float:
        """Import, open a dataset and read a sample."""
        data = self.data(contestant, self.sizes.small)
        self.try_row("import", contestant, self.importing)
        # Right before, without a clock: the system has forgotten a part of torch since the previous
        # turn, and only those that import it in the row above would have it again.
        with self.fresh(contestant) as process:
            process.ask("opening", data=data)
        with self.fresh(contestant) as process:
            found = process.ask("opening", data=data)
        self.results.note("memory", contestant.name, found["nbytes"])
        self.results.note("start", contestant.name, found["start_s"])
        return float(found["open_s"])

    def note_processor(
        self, row: str, contestant: Contestant, num_workers: int, found: Mapping[str, float]
    ) -> None:
        """Add processor time, where that of all workers is known."""
        if num_workers and contestant.uncounted:
            self.results.miss(row, contestant.name, contestant.uncounted)
        else:
            self.results.note(row, contestant.name, found["processor_s"])

    def epoch(self, num_workers: int) -> Callable[[Contestant], float]:
        """Return the row of epochs of small samples."""

        def work(contestant: Contestant) -> float:
            found = self.epoch_of("epoch", self.sizes.small, contestant, num_workers)
            self.note_processor(f"epoch_{num_workers}_cpu", contestant, num_workers, found)
            return found["seconds"]

        return work

    def pictures(self, num_workers: int) -> Callable[[Contestant], float]:
        """Return the row of epochs of pictures, as pictures per second."""

        def work(contestant: Contestant) -> float:
            found = self.epoch_of("pictures", self.sizes.pictures, contestant, num_workers)
            self.note_processor(f"pictures_{num_workers}_cpu", contestant, num_workers, found)
            return 1 / found["seconds"]

        return work

    def crops(self, contestant: Contestant) -> float:
        """Crop all pictures by the caller's own function, in 2 workers; return them per second."""
        return 1 / self.epoch_of("crops", self.sizes.crops, contestant, 2)["seconds"]

    def epoch_of(
        self, work: str, dataset: Dataset, contestant: Contestant, num_workers: int
    ) -> dict[str, float]:
        """Return what an epoch took for a sample."""
        data = self.data(contestant, dataset)
        found: dict[str, float] = self.asked(contestant).ask(
            work, data=data, num_workers=num_workers
        )
        return found

    def published(self, contestant: Contestant, dataset: Dataset) -> Path:
        """Return the folder to serve; made when it is first needed."""
        folder = self.own(contestant) / f"published-{dataset.name}"
        if not folder.exists():
            folder.mkdir(parents=True)
            tars = []
            for shard in dataset.shards(self.tars):
                tars.append(folder / Path(shard).name)
                tars[-1].hardlink_to(shard)
            data = {**self.data(contestant, dataset), "shards": list(map(str, tars))}
            with self.fresh(contestant) as process:
                process.ask("publish", data=data, folder=str(folder))
        return folder

    def remote(self, contestant: Contestant) -> float:
        """A first sample, then an epoch, over a network of a known rate."""
        with self.fresh(contestant) as process:
            seconds, nbytes = self.remote_work("remote_first", contestant, process)
            self.results.note("remote_first", contestant.name, float(seconds))
            self.results.note("remote_first_nbytes", contestant.name, nbytes)
            return self.remote_work("remote_epoch", contestant, process)[0]["seconds"]

    def remote_work(self, work: str, contestant: Contestant, process: Process) -> tuple[Any, float]:
        """Return what the library's process answers, and the bytes that the server sent."""
        self.num_folders += 1
        cache = self.own(contestant) / f"copies-{self.num_folders}"
        cache.mkdir(parents=True)
        data = self.data(contestant, self.sizes.remote)
        published = self.published(contestant, self.sizes.remote)
        with serving(published, self.sizes.rate_nbytes) as (url, asked):
            found = process.ask(work, data=data, url=url, cache=str(cache))
            nbytes = sum(sent for _, sent in asked())
        shutil.rmtree(cache)
        return found, nbytes

    def remote_random(self, contestant: Contestant) -> float:
        """The first random samples of 128 kB, 64 at a time, as seconds of the processor."""
        dataset = self.sizes.fast
        order = self.random.sample(range(dataset.num_samples), self.sizes.remote_samples)
        batches = [order[n : n + COLD_BATCH] for n in range(0, len(order), COLD_BATCH)]
        found, nbytes = self.served(Network(), contestant, "remote_random", batches=batches)
        self.results.note("remote_random_s", contestant.name, found["seconds"])
        self.results.note("remote_random_nbytes", contestant.name, nbytes / len(order))
        return float(found["processor_s"])

    def connections(self, contestant: Contestant) -> float:
        """An epoch over a network that limits each connection, as bytes of samples a second."""
        return self.epoch_over(CONNECTIONS, contestant)[0]

    def epoch_over(self, network: Network, contestant: Contestant) -> tuple[float, float]:
        """Return the bytes of samples a second of an epoch, and the seconds to its first batch."""
        found, _ = self.served(network, contestant, "remote_epoch")
        dataset = self.sizes.fast
        rate_nbytes = dataset.num_samples * (dataset.nbytes or 0) / found["seconds"]
        return rate_nbytes, found["first_s"]

    def served(
        self, network: Network, contestant: Contestant, work: str, **about: Any
    ) -> tuple[Any, float]:
        """Return what the library's process answers, and the bytes that nginx sent."""
        if shutil.which("nginx") is None:
            raise MissingError("nginx is not installed")
        dataset = self.sizes.fast
        self.num_folders += 1
        cache = self.own(contestant) / f"copies-{self.num_folders}"
        published = self.published(contestant, dataset)
        cache.mkdir(parents=True)
        try:
            with web_server(published, network) as server, self.fresh(contestant) as process:
                data = self.data(contestant, dataset)
                found = process.ask(work, data=data, url=server.url, cache=str(cache), **about)
                return found, server.counted().nbytes
        finally:
            shutil.rmtree(cache)

    def resume(self, contestant: Contestant) -> float:
        """From the start of a process to the first batch after a saved state."""
        if contestant.name not in self.expected:
            reason = self.results.reasons.get("pause", {}).get(contestant.name, "it has no loader")
            raise MissingError(reason)
        with self.fresh(contestant) as process:
            found = process.ask(
                "resume",
                data=self.data(contestant, self.sizes.small),
                path=str(self.own(contestant) / "state"),
                started_s=process.started_s,
            )
        is_exact = found["numbers"] == self.expected[contestant.name]
        self.results.note("exact", contestant.name, float(is_exact))
        return float(found["seconds"])

    def order(self, contestant: Contestant) -> float:
        """The order of a billion samples."""
        with self.fresh(contestant) as process:
            found = process.ask(
                "order", num_samples=self.sizes.num_indices, count=self.sizes.num_read
            )
        self.results.note("order_each", contestant.name, found["each_s"])
        return float(found["seconds"])

    def rows(self) -> dict[str, tuple[Callable[[Contestant], float], int]]:
        """Return the work of each row, and how many turns it has in a round."""
        return {
            "single": (self.single, 5),
            "batch": (self.batch, 5),
            "epoch_0": (self.epoch(0), 1),
            "epoch_2": (self.epoch(2), 1),
            "pictures_0": (self.pictures(0), 1),
            "pictures_1": (self.pictures(1), 1),
            "pictures_2": (self.pictures(2), 1),
            "crops_2": (self.crops, 1),
            "cold": (self.cold, 1),
            "convert": (self.convert, 1),
            "open": (self.opening, 3),
            "remote_epoch": (self.remote, 1),
            "remote_random": (self.remote_random, 1),
            "connections": (self.connections, 1),
            "resume": (self.resume, 1),
            "order": (self.order, 1),
        }

    def measure(self, rounds: int, names: list[str], keep: Callable[[Results], None]) -> None:
        """Measure all rows, so many times; in each, the libraries take turns.

        ``keep`` is called after each row.
        """
        for round_ in range(rounds):
            self.results.about["rounds"] = round_ + 1
            for row, (work, turns) in self.rows().items():
                if names and row not in names:
                    continue
                start_s = time.monotonic()
                for _ in range(turns):
                    for contestant in self.contestants:
                        self.try_row(row, contestant, work)
                keep(self.results)
                show(f"round {round_ + 1} {row}: {time.monotonic() - start_s:.0f} s")


def show(text: str) -> None:
    """Print how far the run is."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)
