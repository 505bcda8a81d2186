"""Count what reading costs this program, by stages, in this process and those that it starts.

Numbers of samples, requests and bytes are always counted. Seconds are counted while a program asks
for them, `start`: a thread that reads is in one stage at a time, so nested stages do not count
twice, and the seconds of a thread add up to its time (decision 0105). Threads that read for another
one count nothing: the other one waits for them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, ParamSpec, TypeVar

from wids.storage.shared_number import SharedRows, passes_to_process, writing
from wids.storage.transport import counters

_P = ParamSpec("_P")
_T = TypeVar("_T")

SECONDS: Final = ("fetch", "open", "read", "check", "decode", "transform", "collate", "between")
"""The stages: waiting for a server or for another process that asks it; opening a shard, with its
index; reading members from the disk or from memory; comparing large members with their checksums
(the others count as read); decoding; other transformations; collating; and in a thread that reads
batch after batch, what it does between them: sending a batch, and waiting for the next."""

FETCH, OPEN, READ, CHECK, DECODE, TRANSFORM, COLLATE, BETWEEN = range(len(SECONDS))

COUNTS: Final = (
    "samples",
    "requests",
    "nbytes",
    "retries",
    "hits",
    "fetches",
    "evictions",
    "openings",
    "reopenings",
)
"""Samples that were read; requests to servers, bytes received and attempts that followed a failed
one; remote files that were opened from a copy that was there, copies that were fetched, and copies
that were evicted; shards that had to be opened; and those among them that the
process had open before."""

SAMPLES, REQUESTS, _NBYTES, _RETRIES, HITS, FETCHES, EVICTIONS, OPENINGS, REOPENINGS = range(
    len(SECONDS), len(SECONDS) + len(COUNTS)
)

NAMES: Final = (*(f"{name}_s" for name in SECONDS), *COUNTS)

_IS_TIMED, _GENERATION = 0, 1

_PROCESS, _PARENT = len(NAMES), len(NAMES) + 1
"""Whose row it is, and which process has started that one, by their ids; 0 where none is known."""

_BLOCKS: Final = len(NAMES) + 2
"""How often the process has called `start`, but not `stop`."""

here: Final = SharedRows(*[0.0] * len(NAMES), os.getpid(), 0.0, 0.0)
"""The numbers. Hooks on the way of a sample use them directly: a call costs more."""


@dataclass
class _Split:
    """Which share of the time of transformations is decoding, for how many samples more."""

    steps: object
    share: float
    num_left: int


_SPLIT_EVERY: Final = 500


class _Clock(threading.local):
    """What this thread does, or -1; since when; and the generation of that. A list is quickest."""

    def __init__(self) -> None:
        self.state: list[Any] = [-1, 0.0, 0.0]
        self.split = _Split(None, 0.0, 0)


_clock: Final = _Clock()

of_type: Final[dict[type, int]] = {}
"""The stage of a transformation by its type; of others it is `TRANSFORM`."""

_published: Final = [0, 0, 0]


def start() -> None:
    """Count seconds until `stop` is called as often, in processes that run already too."""
    here.reserve()
    with writing:
        here.common[_GENERATION] += 1
        here.row[_BLOCKS] += 1
        _sum_blocks()


def stop() -> None:
    """End what `start` began."""
    with writing:
        # A forked child may leave a block that its parent has entered.
        here.row[_BLOCKS] = max(0.0, here.row[_BLOCKS] - 1)
        _sum_blocks()


def _sum_blocks() -> None:
    # Again until it is right: another process may write its sum meanwhile, without a lock.
    while here.common[_IS_TIMED] != (number := sum(row[_BLOCKS] for row in here.rows())):
        here.common[_IS_TIMED] = number


def are_timed() -> bool:
    """Return whether seconds are counted now."""
    return here.common[_IS_TIMED] > 0


def counted() -> dict[str, float]:
    """Return the numbers, by `NAMES`, over this process and all that it has started.

    Other ranks may have the same parent, as after ``torch.multiprocessing.spawn``, and count in the
    same memory.
    """
    publish()
    sums = map(sum, zip(*_family(), strict=True))
    return dict(zip(NAMES, sums, strict=False))


def _family() -> list[list[float]]:
    """Return the rows of this process and of those that it has started, directly or not."""
    others = here.rows()
    found, processes = [], [float(os.getpid())]
    while processes:
        found += [row for row in others if row[_PROCESS] in processes]
        others, children = [row for row in others if row[_PROCESS] not in processes], processes
        processes = [row[_PROCESS] for row in others if row[_PARENT] in children]
    return found


def counted_here() -> dict[str, float]:
    """Return the numbers of this process alone, and of others that ended before it had its id."""
    publish()
    return dict(zip(NAMES, here.row, strict=False))


def count(which: int, number: int = 1) -> None:
    """Add to a count."""
    here.row[which] += number


def publish() -> None:
    """Add to the counts what requests of this process have cost since the last call."""
    with writing:
        for at, total in enumerate(counters.totals()):
            here.row[REQUESTS + at] += total - _published[at]
            _published[at] = total


# Seconds.


def timed(stage: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function, and count this thread's time meanwhile for a stage, or for nested ones."""
    if not here.common[_IS_TIMED]:
        return function(*args, **kwargs)
    state = _current()
    previous = state[0]
    _switch(state, stage)
    try:
        return function(*args, **kwargs)
    finally:
        _switch(state, BETWEEN if previous < 0 else previous)


@contextmanager
def nested(stage: int) -> Iterator[None]:
    """Count the time of the block for another stage than the one that this thread is in, if any."""
    state = _current() if here.common[_IS_TIMED] else None
    if state is None or state[0] < 0:
        yield
        return
    previous = state[0]
    _switch(state, stage)
    try:
        yield
    finally:
        _switch(state, previous)


def enter(stage: int) -> None:
    """Count this thread's time for a stage from now on, if it counts any."""
    if here.common[_IS_TIMED]:
        state = _current()
        if state[0] >= 0 and state[0] != stage:
            _switch(state, stage)


def _switch(state: list[Any], stage: int) -> None:
    """End the stage of a thread, and begin another."""
    now_s = perf_counter()
    if state[0] >= 0:
        here.row[state[0]] += now_s - state[1]
    state[0], state[1] = stage, now_s


def _current() -> list[Any]:
    """Return the state of this thread."""
    state, generation = _clock.state, here.common[_GENERATION]
    if state[2] != generation:  # nothing was counted for a while
        state[0], state[2] = -1, generation
    return state


@contextmanager
def fetching() -> Iterator[None]:
    """Count the time of the block as waiting for a server, and what the requests have cost."""
    try:
        with nested(FETCH):
            yield
    finally:
        publish()


def step(stage: int, transform: Callable[[Any], Any], sample: Any) -> Any:
    """Call a transformation; its stage lasts until another one is entered."""
    enter(stage)
    return transform(sample)


def timed_as_first(
    steps: object,
    by_step: Callable[[], Callable[[Any], Any]],
    transform: Callable[[Any], Any],
    samples: list[Any],
) -> list[Any]:
    """Transform samples; now and then the first of them shows which part of the time is decoding.

    Args:
        steps: Stands for the transformations.
        by_step: Returns a callable that transforms a sample, and enters the stage of each step.
        transform: Does the same without timing the steps.
        samples: The samples.
    """
    state, row, made = _current(), here.row, list[Any]()
    if not here.common[_IS_TIMED] or state[0] < 0:
        return list(map(transform, samples))
    split = _clock.split
    if split.steps is not steps or split.num_left <= 0:
        decoded_s, transformed_s = row[DECODE], row[TRANSFORM]
        made += map(by_step(), samples[:1])
        _switch(state, TRANSFORM)
        decode_s, transform_s = row[DECODE] - decoded_s, row[TRANSFORM] - transformed_s
        share = decode_s / ((decode_s + transform_s) or 1)
        split = _clock.split = _Split(steps, share, _SPLIT_EVERY)
    split.num_left -= len(samples)
    _switch(state, TRANSFORM)
    start_s = row[TRANSFORM]
    made += map(transform, samples[len(made) :])
    _switch(state, TRANSFORM)
    moved_s = (row[TRANSFORM] - start_s) * split.share
    row[DECODE] += moved_s
    row[TRANSFORM] -= moved_s
    return made


def stage_of(transform: Any) -> int:
    """Return the stage of a transformation."""
    return of_type.get(type(transform), TRANSFORM)


def checked(crc32: Callable[[Any], int], value: Any) -> int:
    """Return the checksum of a value that is not small; its time counts as checking."""
    with nested(CHECK):
        return crc32(value)


# Other processes.


def passed() -> tuple[SharedRows, int] | None:
    """Return what a process that is being started needs for `join`; None in any other pickle."""
    return (here, os.getpid()) if passes_to_process() else None


def join(passed_on: tuple[SharedRows, int] | None) -> None:
    """Count together with the process that has started this one."""
    if passed_on is not None and passed_on[0].is_shared:
        here.adopt(passed_on[0])
        _claim_row(passed_on[1])


def _claim_row(parent: int) -> None:
    """Take a row for this process; what an ended one has left in it goes to its parent's row."""
    rows, number, process = here.rows(), os.getpid(), os.getpid()

    def is_taken(row: list[float]) -> bool:
        # By the process that has started this one, or all; their rows must stay.
        is_ancestor = row[_PROCESS] == parent or not row[_PARENT]
        return row[_PROCESS] not in (0, process) and is_ancestor

    while len(rows) > 1 and is_taken(rows[number % len(rows)]):
        number += 1
    here.row = row = here.row_at(number)
    ended, heir = row[_PROCESS], row[_PARENT]
    at = next((n for n, other in enumerate(rows) if other[_PROCESS] == heir), None)
    if ended not in (0, process) and at is not None:
        to = here.row_at(at)
        for column in range(len(NAMES)):
            left, row[column] = row[column], 0.0
            to[column] += left
        for n, other in enumerate(rows):
            if other[_PARENT] == ended:
                here.row_at(n)[_PARENT] = heir
    row[_PROCESS], row[_PARENT], row[_BLOCKS] = process, parent, 0.0


def _begin_in_child() -> None:
    _published[:] = [0, 0, 0]
    _clock.state[0] = -1
    _claim_row(os.getppid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
