"""Read a remote dataset, as one of many processes; see test_downloads.py.

Prints what it read as JSON. With a number as last argument the process kills itself at that audit
event (file opened, lock taken, folder made, file renamed, ...); with 0 it prints their number.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from typing import Any

import wids

EVENTS = ("open", "os.rename", "os.mkdir", "os.utime", "os.remove", "os.truncate", "fcntl.flock",
          "mmap.__new__", "socket.connect")  # fmt: skip


def main(spec: str, seed: int, kill_at: int | None = None) -> None:
    """Read all samples in a shuffled order, or in file order if it is to be killed."""
    count = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        cache = os.environ["WIDS_CACHE"]
        if event in EVENTS and (event[:4] != "open" or cache in str(args[0])):
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    with wids.ShardListDataset(spec, access="download", transformations=None, raw="bytes") as data:
        numbers = list(range(len(data)))
        random.Random(seed).shuffle(numbers)
        if kill_at is not None:
            numbers.sort()
            data[0:1].spec  # noqa: B018 - what is imported late is imported before it counts
            sys.addaudithook(hook)
        texts = {i: data[i][".txt"].decode() for i in numbers}
    print(json.dumps({"texts": [texts[i] for i in range(len(texts))], "events": count}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3:]))
