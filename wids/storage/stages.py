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

here: Final = SharedRows(*[0.0] * len(NAMES))
"""The numbers. Hooks on the way of a sample use them directly: a call costs more."""


class _Clock(threading.local):
    """What this thread does, since when; -1 for nothing that is counted."""

    stage = -1
    since_s = 0.0
    generation = 0.0


_clock: Final = _Clock()

of_type: Final[dict[type, int]] = {}
"""The stage of a transformation by its type; of others it is `TRANSFORM`."""

_published: Final = [0, 0, 0]


def start() -> None:
    """Count seconds until `stop` is called as often, in processes that run already too."""
    common = here.common
    common[_GENERATION] += 1
    common[_IS_TIMED] += 1


def stop() -> None:
    """End what `start` began."""
    here.common[_IS_TIMED] -= 1


def are_timed() -> bool:
    """Return whether seconds are counted now."""
    return here.common[_IS_TIMED] > 0


def counted() -> dict[str, float]:
    """Return the numbers, by `NAMES`, over all processes; those of this one are complete."""
    publish()
    return dict(zip(NAMES, here.sums(), strict=True))


def counted_here() -> dict[str, float]:
    """Return the numbers of this process alone, and of others that ended before it had its id."""
    publish()
    return dict(zip(NAMES, here.row, strict=True))


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
    previous = _current()
    switch(stage)
    try:
        return function(*args, **kwargs)
    finally:
        switch(BETWEEN if previous < 0 else previous)


@contextmanager
def nested(stage: int) -> Iterator[None]:
    """Count the time of the block for another stage than the one that this thread is in, if any."""
    previous = _current() if here.common[_IS_TIMED] else -1
    if previous < 0:
        yield
        return
    switch(stage)
    try:
        yield
    finally:
        switch(previous)


def _current() -> int:
    """Return the stage of this thread."""
    generation = here.common[_GENERATION]
    if _clock.generation != generation:  # nothing was counted for a while
        _clock.generation, _clock.stage = generation, -1
    return _clock.stage


@contextmanager
def fetching() -> Iterator[None]:
    """Count the time of the block as waiting for a server, and what the requests have cost."""
    try:
        with nested(FETCH):
            yield
    finally:
        publish()


def enter(stage: int) -> None:
    """Count this thread's time for a stage from now on, if it counts any."""
    if here.common[_IS_TIMED] and _current() not in (stage, -1):
        switch(stage)


def step(stage: int, transform: Callable[[Any], Any], sample: Any) -> Any:
    """Call a transformation; its stage lasts until another one is entered."""
    if _clock.stage != stage:
        enter(stage)
    return transform(sample)


def timed_as_first(
    by_step: Callable[[Any], Any], transform: Callable[[Any], Any], samples: list[Any]
) -> list[Any]:
    """Transform samples, of which the first shows which part of the time is decoding.

    Args:
        by_step: Transforms a sample, and enters the stage of each step.
        transform: Does the same without timing the steps.
        samples: The samples.
    """
    if not (here.common[_IS_TIMED] and _current() >= 0):
        return list(map(transform, samples))
    decoded_s, transformed_s = here.row[DECODE], here.row[TRANSFORM]
    made = list(map(by_step, samples[:1]))
    switch(TRANSFORM)
    decode_s, transform_s = here.row[DECODE] - decoded_s, here.row[TRANSFORM] - transformed_s
    start_s = here.row[TRANSFORM]
    made += map(transform, samples[1:])
    switch(TRANSFORM)
    moved_s = (here.row[TRANSFORM] - start_s) * decode_s / ((decode_s + transform_s) or 1)
    here.row[DECODE] += moved_s
    here.row[TRANSFORM] -= moved_s
    return made


def stage_of(transform: Any) -> int:
    """Return the stage of a transformation."""
    return of_type.get(type(transform), TRANSFORM)


def switch(stage: int) -> None:
    """End the stage of this thread, and begin another."""
    clock, now_s = _clock, perf_counter()
    if clock.stage >= 0:
        here.row[clock.stage] += now_s - clock.since_s
    clock.stage, clock.since_s = stage, now_s


def checked(crc32: Callable[[Any], int], value: Any) -> int:
    """Return the checksum of a value that is not small; its time counts as checking."""
    with nested(CHECK):
        return crc32(value)


# Other processes.


def passed() -> SharedRows | None:
    """Return what a process that is being started needs for `join`; None in any other pickle."""
    return here if passes_to_process() else None


def join(rows: SharedRows | None) -> None:
    """Count together with the process that has started this one."""
    if rows is not None:
        here.adopt(rows)


def _begin_in_child() -> None:
    _published[:] = [0, 0, 0]
    _clock.stage = -1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
