"""Fork in the middle of each import of a thread, while that thread reads a dataset in some way.

    python fork_amid_imports.py WAY SPEC

Each child imports the same module, as a worker of a DataLoader may, and has to end. Prints how
often it forked, and the modules at which a child hung. With "loaders", another thread forks the
workers of loaders meanwhile.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

import wids

_SLOW_S = 0.005
_LONG_S = 60


class SlowImports:
    """Holds each import of a thread, with the lock of its module, until this process forks."""

    def __init__(self) -> None:
        self.begun: SimpleQueue[str] = SimpleQueue()
        self.is_forking = threading.Event()
        self.num_forks = 0

    def find_spec(self, name: str, *_: object) -> None:
        """Find nothing."""
        if threading.current_thread() is not threading.main_thread():
            num_forks = self.num_forks
            self.begun.put(name)
            # It may have forked before this thread waits.
            while self.num_forks == num_forks and not self.is_forking.wait(_SLOW_S):
                pass
            time.sleep(_SLOW_S)


def _samples_in_turn(dataset: wids.ShardListDataset[Any]) -> None:
    list(dataset)


def _prefetch(dataset: wids.ShardListDataset[Any]) -> None:
    from torch.utils.data import DataLoader

    sampler = wids.Prefetcher(wids.ChunkedSampler(dataset, chunksize=20), dataset)
    list(DataLoader(dataset, batch_size=5, sampler=sampler))


def _numpy(_: object) -> None:
    import numpy.ma  # noqa: F401 - as numpy itself does, in a function


def _table(dataset: wids.ShardListDataset[Any]) -> None:
    dataset.table([".txt", ".cls"])


def _timings(dataset: wids.ShardListDataset[Any]) -> None:
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, batch_size=5, collate_fn=wids.collate)
    with wids.timings(loader) as times:
        list(loader)
    repr(times.times())


def _loader(dataset: wids.ShardListDataset[Any]) -> None:
    from torch.utils.data import DataLoader

    list(DataLoader(dataset, batch_size=5, num_workers=2, collate_fn=wids.collate))


def _ranges(dataset: wids.ShardListDataset[Any]) -> None:
    dataset.__getitems__([0, 30, 60, 90])


WAYS = {
    "downloads": _samples_in_turn,
    "prefetcher": _prefetch,
    "ranges": _ranges,
    "table": _table,
    "timings": _timings,
    "numpy.ma": _numpy,
    "loaders": _prefetch,
}


def _end_of_child(name: str) -> NoReturn:
    signal.alarm(_LONG_S)
    try:
        importlib.import_module(name)
    except ImportError:
        pass  # an optional package, which this machine does not have
    finally:
        os._exit(0)


def main(way: str, spec: str) -> None:
    """Read in a thread; fork in this one."""
    errors: list[BaseException] = []

    def read(dataset: wids.ShardListDataset[Any]) -> None:
        try:
            WAYS[way](dataset)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    if way in ("prefetcher", "timings", "loaders"):
        import torch.utils.data  # noqa: F401 - which such a program has imported
    access: Any = "range" if way in ("ranges", "table") else "download"
    with wids.ShardListDataset(spec, access=access) as dataset:
        slow = SlowImports()
        sys.meta_path.insert(0, slow)  # type: ignore[arg-type]
        reader = threading.Thread(target=read, args=[dataset])
        reader.start()
        if way == "loaders":
            slow.is_forking.set()
            with wids.ShardListDataset(spec) as other:
                while reader.is_alive():
                    beside = threading.Thread(target=_loader, args=[other])
                    beside.start()
                    beside.join()
        children = []
        while reader.is_alive():
            with suppress(Empty):
                name = slow.begun.get(timeout=_SLOW_S)
                if slow.begun.empty():  # otherwise this one has ended
                    slow.is_forking.set()
                    if not (child := os.fork()):
                        _end_of_child(name)
                    slow.num_forks += 1
                    slow.is_forking.clear()
                    children.append((name, child))
        hung = [name for name, child in children if os.waitpid(child, 0)[1]]
    if errors:
        raise errors[0]
    sys.stdout.write(" ".join([str(len(children)), *hung]))


if __name__ == "__main__":
    main(*sys.argv[1:])
