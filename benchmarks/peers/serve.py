"""One library at work: reads requests from standard input, answers with what it measured.

    PYTHON peers/serve.py MODULE [VARIANT]

A request is a JSON line ``{"work": …, …}``. The answer is ``{"value": …}``, or
``{"unsupported": reason}``, or ``{"error": traceback}``. Clocks run only while the library works:
what it returns is compared before or afterwards.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import mmap
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

clock = time.perf_counter
MOST_S = 1.0
"""How long a row of many equal reads lasts at the most."""

# This folder has modules with the names of libraries; what is installed comes first.
sys.path[:] = [*sys.path[1:], str(Path(__file__).parents[1])]

from peers.peer import BATCH_SIZE, CROP, Data, Peer, UnsupportedError  # noqa: E402 - found by the line above

module, variant = [*sys.argv[1:], ""][:2]
peer: Peer = importlib.import_module(f"peers.{module}").VARIANTS[variant]()


def described(data: dict[str, Any]) -> Data:
    """Return the dataset of a request."""
    return Data(**{**data, "shards": tuple(data["shards"])})


@lru_cache
def reader(data: Data) -> Callable[[int], Any]:
    """Return the open dataset."""
    return peer.reader(data)


@lru_cache
def batch_reader(data: Data) -> Callable[[list[int]], list[Any]]:
    """Return the open dataset."""
    return peer.batch_reader(data)


def versions() -> dict[str, str]:
    """Return the versions of the interpreter and of the libraries that matter."""
    found = {"python": sys.version.split()[0]}
    names = [*peer.modules, "torch", "torchdata", "numpy", "pillow", "simplejpeg", "pyarrow"]
    for name in names:
        try:
            found[name] = version(PACKAGES.get(name, name))
        except PackageNotFoundError:
            continue
    return found


PACKAGES = {"streaming": "mosaicml-streaming", "array_record": "array-record", "PIL": "pillow"}


def import_library() -> float:
    """Import the library, in a process that has imported little."""
    if not peer.modules:
        raise UnsupportedError("it is not a library")
    start = clock()
    _import_modules()
    return clock() - start


def _import_modules() -> None:
    peer.before_import()
    for module in peer.modules:
        importlib.import_module(module)


def convert(data: dict[str, Any]) -> dict[str, float]:
    """Convert or index; return seconds and the bytes of the files that this wrote."""
    made = described(data)
    Path(made.folder).mkdir(parents=True)
    _import_modules()
    start = clock()
    peer.convert(made)
    seconds = clock() - start
    written = sum(path.lstat().st_size for path in Path(made.folder).rglob("*") if path.is_file())
    return {"seconds": seconds, "nbytes": written}


def single(data: dict[str, Any], indices: list[int]) -> float:
    """Return the seconds for a sample, read one by one, for a second at the most."""
    read = reader(described(data))
    count, start = 0, clock()
    while count < len(indices) and clock() < start + MOST_S:
        for index in indices[count : count + 100]:
            read(index)
        count += 100
    return (clock() - start) / min(count, len(indices))


def batched(data: dict[str, Any], batches: list[list[int]]) -> float:
    """Return the seconds for a sample, read in batches, for a second at the most."""
    read = batch_reader(described(data))
    count, start = 0, clock()
    for batch in batches:
        read(batch)
        count += len(batch)
        if clock() > start + MOST_S:
            break
    return (clock() - start) / count


def cold(data: dict[str, Any], batches: list[list[int]], paths: list[str]) -> float:
    """Return the seconds for a sample from the disk; the first batch opens files."""
    read = batch_reader(described(data))
    read(batches[0])
    forget(paths)
    start = clock()
    for batch in batches[1:]:
        read(batch)
    return (clock() - start) / sum(map(len, batches[1:]))


def forget(paths: list[str]) -> None:
    """Have the system forget what it holds of files: pages that this process maps first."""
    wanted = set(paths)
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5] in wanted:
            start, stop = (int(number, 16) for number in fields[0].split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_DONTNEED)
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def epoch(data: dict[str, Any], num_workers: int) -> dict[str, float]:
    """Return the seconds for a sample in an epoch, after the first batch."""
    made = described(data)
    return _timed(lambda: peer.epoch(made, num_workers), made)


def pictures(data: dict[str, Any], num_workers: int) -> dict[str, float]:
    """Return the seconds for a picture in an epoch, after the first batch."""
    made = described(data)
    return _timed(lambda: peer.pictures(made, num_workers), made)


def crops(data: dict[str, Any], num_workers: int) -> dict[str, float]:
    """Return the seconds for a random crop in an epoch, after the first batch."""
    made = described(data)
    return _timed(lambda: map(_crops, peer.crops(made, num_workers)), made)


def _crops(batch: Any) -> Any:
    if tuple(batch.shape)[1:] != (*CROP, 3) or len(batch) > BATCH_SIZE:
        raise AssertionError(f"a batch of crops has the shape {tuple(batch.shape)}")
    return batch


def _timed(begin: Callable[[], Any], data: Data) -> dict[str, float]:
    """Return the seconds after the first batch, and all of the processor, with the workers'.

    The start of workers would be a large part of an epoch as short as this; `resume` shows it.
    """
    used_s = _processor_s()
    batches = begin()
    num_first = len(next(batches))
    start = clock()
    count = sum(len(batch) for batch in batches)
    seconds = clock() - start
    del batches
    gc.collect()  # workers count once they have ended
    total = num_first + count
    if total != data.num_samples:
        raise AssertionError(f"an epoch had {total} samples, not {data.num_samples}")
    return {"seconds": seconds / count, "processor_s": (_processor_s() - used_s) / total}


def _processor_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def opening(data: dict[str, Any]) -> dict[str, float]:
    """Return the seconds to a first sample, those of another opening, and the memory."""
    made = described(data)
    start = clock()
    _import_modules()
    _import_torch()
    peer.first(made)
    start_s = clock() - start
    peer.close()
    before = private_nbytes()  # after all imports
    start = clock()
    peer.first(made)
    open_s = clock() - start
    peer.close()
    kept = peer.some(made, 1000)
    nbytes = private_nbytes() - before
    del kept
    return {"start_s": start_s, "open_s": open_s, "nbytes": nbytes}


def pause(data: dict[str, Any], path: str, num_batches: int) -> list[int]:
    """Save a state in an epoch; return the numbers of the samples of the next batch."""
    made = described(data)
    return [peer.plain(sample, made.payload)[1] for sample in peer.pause(made, path, num_batches)]


def resume(data: dict[str, Any], path: str, started_s: float) -> dict[str, Any]:
    """Return the seconds since the process was started, and the numbers of the first batch."""
    made = described(data)
    batch = peer.resume(made, path)
    seconds = time.monotonic() - started_s
    return {
        "seconds": seconds,
        "numbers": [peer.plain(sample, made.payload)[1] for sample in batch],
    }


def publish(data: dict[str, Any], folder: str) -> None:
    """Write what a server has to serve."""
    peer.publish(described(data), folder)


def remote_epoch(data: dict[str, Any], url: str, cache: str) -> dict[str, float]:
    """Return the seconds of a whole epoch over a network, and those to its first batch."""
    made = described(data)
    _import_modules()
    _import_torch()
    start = clock()
    batches = peer.remote_epoch(made, url, cache)
    count = len(next(batches))
    first_s = clock() - start
    count += sum(map(len, batches))
    if count != made.num_samples:
        raise AssertionError(f"an epoch had {count} samples, not {made.num_samples}")
    return {"seconds": clock() - start, "first_s": first_s}


def remote_first(data: dict[str, Any], url: str, cache: str) -> float:
    """Return the seconds to a first sample over a network, in a program that has imported torch.

    The import of the library counts, whether it comes at once or when a part is first needed.
    """
    made = described(data)
    _import_torch()
    # The imports of torch leave a full collection of 0.1 s due, which the next few thousand objects
    # of any library would pay for.
    gc.collect()
    start = clock()
    _import_modules()
    sample = peer.remote_first(made, url, cache)
    seconds = clock() - start
    peer.plain(sample, made.payload)
    return seconds


def remote_random(
    data: dict[str, Any], url: str, cache: str, batches: list[list[int]]
) -> dict[str, float]:
    """Return what a random sample over a network takes, from the opening of the dataset on."""
    made = described(data)
    _import_modules()
    _import_torch()
    used_s, start = _processor_s(), clock()
    read = peer.remote_reader(made, url, cache)
    samples = [sample for batch in batches for sample in read(batch)]
    seconds, used_s = clock() - start, _processor_s() - used_s
    asked = [index for batch in batches for index in batch]
    if [peer.plain(sample, made.payload)[1] for sample in samples] != asked:
        raise AssertionError("samples are not those that were asked for")
    return {"seconds": seconds / len(samples), "processor_s": used_s / len(samples)}


def order(num_samples: int, count: int) -> dict[str, float]:
    """Return the seconds to the first index of an order, and those of each one after it.

    What has to list all indices first gets as many as fit, and the seconds in proportion.
    """
    _import_torch()
    next(peer.order(1000))  # imports
    fitting = min(num_samples, peer.most_indices)
    start = clock()
    indices = peer.order(fitting)
    next(indices)
    first_s = (clock() - start) * num_samples / fitting
    start = clock()
    for _ in islice(indices, count):
        pass
    return {"seconds": first_s, "each_s": (clock() - start) / count}


def check_samples(data: dict[str, Any], indices: list[int]) -> list[tuple[str, int]]:
    """Return the payload, as hexadecimal digits, and the class of samples, one by one."""
    made = described(data)
    read = reader(made)
    one_by_one = [peer.plain(read(index), made.payload) for index in indices]
    together = [peer.plain(sample, made.payload) for sample in batch_reader(made)(indices)]
    if one_by_one != together:
        raise AssertionError("a batch has other samples than the same samples one by one")
    return [(payload.hex(), number) for payload, number in one_by_one]


def check_epoch(data: dict[str, Any], num_workers: int) -> list[int]:
    """Return the classes of all samples of an epoch."""
    made = described(data)
    return [
        peer.plain(sample, made.payload)[1]
        for batch in peer.epoch(made, num_workers)
        for sample in batch
    ]


def check_pictures(data: dict[str, Any]) -> list[float]:
    """Return the mean of the pixels of every picture, in ascending order."""
    import numpy as np

    means = []
    for batch in map(np.asarray, peer.pictures(described(data), 0)):
        if batch.dtype != np.uint8 or max(batch.shape) < 100:
            raise AssertionError(f"pictures are {batch.dtype} of shape {batch.shape}")
        means += [float(picture.mean()) for picture in batch]
    return sorted(means)


def _import_torch() -> None:
    """Import torch, where it is installed: a program that trains has it."""
    try:
        importlib.import_module("torch.utils.data")
    except ImportError:
        return


def private_nbytes() -> int:
    """Return the memory of this process that no file backs, after free memory went back."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


WORKS: dict[str, Callable[..., Any]] = {
    work.__name__: work
    for work in (
        *(
            versions,
            import_library,
            convert,
            single,
            batched,
            cold,
            epoch,
            pictures,
            crops,
            opening,
        ),
        *(pause, resume, publish, remote_epoch, remote_first, remote_random, order),
        *(check_samples, check_epoch, check_pictures),
    )
}

FORKING = ("epoch", "pictures", "crops", "pause", "resume", "check_epoch", "check_pictures")
"""Works that may start workers."""


def main() -> None:
    """Answer until standard input ends."""
    # Libraries print; the answers go out by a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        work = request.pop("work")
        try:
            if work not in ("versions", "import_library"):
                peer.before_import()
            if work in FORKING:
                reader.cache_clear()
                batch_reader.cache_clear()
                peer.close()
            answer = {"value": WORKS[work](**request)}
        except UnsupportedError as reason:
            answer = {"unsupported": str(reason)}
        except Exception:  # noqa: BLE001 - shown by the report
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
