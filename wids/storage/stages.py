"""Count what each stage of reading costs, in all processes of a program.

Samples, requests and bytes are always counted. Seconds are counted between `start` and `stop`. A
thread is in one stage at a time, so nested stages are not counted twice, and the seconds of a
thread add up to its time (decision 0105). Threads that read on behalf of another thread count
nothing, since that one waits for them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Final, ParamSpec, TypeVar

from wids.storage.shared_numbers import NUM_ROWS, SharedRows, passes_to_process, writing

_P = ParamSpec("_P")
_T = TypeVar("_T")

SECONDS: Final = ("fetch", "open", "read", "check", "decode", "transform", "collate", "between")
"""The stages: waiting for a server or for another process that asks it; opening a shard, with its
index; reading members from the disk or from memory; comparing large members with their checksums
(the others count as read, and those that a batch reads by range as fetched); decoding; other
transformations; collating; and in a thread that reads batch after batch, what it does between them:
sending a batch, and waiting for the next."""

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
"""Samples that were read; requests to servers, bytes received, and repeated attempts; remote files
opened from an existing copy, copies fetched, and copies evicted; shards opened, and those of them
that the process had opened before."""

SAMPLES, REQUESTS, NBYTES, RETRIES, HITS, FETCHES, EVICTIONS, OPENINGS, REOPENINGS = range(
    len(SECONDS), len(SECONDS) + len(COUNTS)
)

NAMES: Final = (*(f"{name}_s" for name in SECONDS), *COUNTS)

_IS_TIMED, _GENERATION = 0, 1

OUTAGES: Final = slice(2, 2 + 1021)
"""When servers went away, by a hash of each (`retry.py`); two may have the same place."""

REFUSALS: Final = slice(OUTAGES.stop, OUTAGES.stop + 1021)
"""Until when half of the places of servers are others', by the same hash (`admission.py`)."""

_BLOCKS: Final = len(NAMES)
"""How often the process has called `start`, but not `stop`."""

here: Final = SharedRows(*[0.0] * (len(NAMES) + 1), num_common=REFUSALS.stop)
"""The numbers, of this process and those that it has started, or of its parent and its siblings.
Hooks on the way of a batch use them directly: a call costs more."""


@dataclass(slots=True)
class _Process:
    """What the way of one sample asks: shared memory takes five times as long (decision 0105).

    Attributes:
        num_samples: Samples that were read one by one while nobody watched.
        num_published: How many of them are in the row.
        num_watchers: More than 0 where each sample is counted in the row, and timed if seconds are
            counted: in a process that others have started, within `start` and `stop`, and where
            failures are a share of what was read.
        is_child: Whether another process of the program has started this one.
        before: What its row had when it joined the rows of its parent, of processes that have
            ended; None if the rows are its own.
    """

    num_samples: int = 0
    num_published: int = 0
    num_watchers: int = 0
    is_child: bool = False
    before: list[float] | None = None


this_process: Final = _Process()

_SPLIT_EVERY: Final = 500


class _Clock(threading.local):
    """What a thread does.

    Attributes:
        state: Its stage, or -1; since when; and the generation of that. A list is quickest.
        split: The latest transformations, the share of their time that is decoding, and for how
            many samples more.
    """

    def __init__(self) -> None:
        self.state: list[Any] = [-1, 0.0, 0.0]
        self.split: tuple[Sequence[Any], float, int] = (), 0.0, 0


_clock: Final = _Clock()

of_type: Final[dict[type, int]] = {}
"""The stage of a transformation by its type; of others it is `TRANSFORM`."""


def start() -> None:
    """Count seconds until `stop` is called as often, in processes that run already too."""
    here.reserve()
    with writing:
        here.common[_GENERATION] += 1
        here.row[_BLOCKS] += 1
        this_process.num_watchers += 1
        _sum_blocks()


def stop() -> None:
    """End what `start` began."""
    with writing:
        if here.row[_BLOCKS] > 0:  # a forked child may leave a block that its parent has entered
            here.row[_BLOCKS] -= 1
            this_process.num_watchers -= 1
        _sum_blocks()


def _sum_blocks() -> None:
    # Again until it is right: another process may write its sum meanwhile, without a lock.
    while here.common[_IS_TIMED] != (number := here.sums()[_BLOCKS]):
        here.common[_IS_TIMED] = number


def counted() -> dict[str, float]:
    """Return the numbers, by `NAMES`, over this process and all that it has started.

    Those count apart that have started processes themselves, as ranks do that a launcher has
    started: their numbers are their own from then on.
    """
    own = this_process
    with writing:
        here.row[SAMPLES] += own.num_samples - own.num_published
        own.num_published = own.num_samples
    numbers = here.sums() if own.before is None else _own_row()
    return dict(zip(NAMES, numbers, strict=False))


def own_between_s() -> float:
    """Return what this process itself has spent between batches."""
    return _own_row()[BETWEEN]


def _own_row() -> list[float]:
    """Return what this process itself has counted."""
    before = this_process.before or [0.0] * len(here.row)
    return [now - first for now, first in zip(here.row, before, strict=True)]


def count(which: int, number: int = 1) -> None:
    """Add to a count."""
    with writing:
        here.row[which] += number


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


_untimed: Final = nullcontext()


def nested(stage: int) -> AbstractContextManager[None]:
    """Count the time of the block for another stage than the one that this thread is in, if any."""
    return _nested(stage) if here.common[_IS_TIMED] else _untimed


@contextmanager
def _nested(stage: int) -> Iterator[None]:
    state = _current()
    previous = state[0]
    if previous < 0:
        yield
        return
    _switch(state, stage)
    try:
        yield
    finally:
        _switch(state, previous)


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


def fetching() -> AbstractContextManager[None]:
    """Count the time of the block as waiting for a server."""
    return nested(FETCH)


def timed_steps(
    steps: Sequence[Callable[[Any], Any]],
    transform: Callable[[Any], Any],
    by: Callable[[list[Callable[[Any], Any]]], Callable[[Any], Any]],
    samples: list[Any],
) -> list[Any]:
    """Transform samples, and count their time as decoding and as other transformations.

    Now and then the first of them shows which part of the time is decoding: a clock around each
    step of each sample would take a third of the time of small ones.

    Args:
        steps: The transformations.
        transform: Takes a sample through them.
        by: Returns such a callable for other steps.
        samples: The samples.
    """
    state = _current()
    previous = state[0] if here.common[_IS_TIMED] else -1
    if previous < 0:
        return list(map(transform, samples))
    results: list[Any] = []
    try:
        last_steps, share, num_left = _clock.split
        if last_steps is not steps or num_left <= 0:
            kinds = [of_type.get(type(step), TRANSFORM) for step in steps]
            share = float(kinds[0] == DECODE)
            if len(set(kinds)) > 1:
                by_step = by([partial(_step, *each) for each in zip(kinds, steps, strict=True)])
                before = list(here.row)
                results.append(by_step(samples[0]))
                _switch(state, TRANSFORM)
                decode_s, other_s = (here.row[at] - before[at] for at in (DECODE, TRANSFORM))
                share = decode_s / ((decode_s + other_s) or 1)
            # The very first sample may import modules, so the others are not judged by it.
            num_left = _SPLIT_EVERY if last_steps is steps else 0
        _clock.split = steps, share, num_left - len(samples)
        _switch(state, DECODE if share == 1 else TRANSFORM)
        results += map(transform, samples[len(results) :])
        if 0 < share < 1:
            moved_s = (perf_counter() - state[1]) * share
            here.row[DECODE] += moved_s
            here.row[TRANSFORM] -= moved_s  # to which the switch below adds all
    finally:
        _switch(state, previous)
    return results


def _step(stage: int, transform: Callable[[Any], Any], sample: Any) -> Any:
    """Call a transformation; its stage lasts until another one begins."""
    _switch(_current(), stage)
    return transform(sample)


def checked(crc32: Callable[[Any], int], value: Any) -> int:
    """Return the checksum of a value that is not small; its time counts as checking."""
    if not here.common[_IS_TIMED]:
        return crc32(value)
    with nested(CHECK):
        return crc32(value)


# Other processes.


def passed_stages() -> tuple[SharedRows, int] | None:
    """Return what a started process needs for `join_stages`; None in any other pickle."""
    if not passes_to_process():
        return None
    with writing:
        _count_apart()
    return here, os.getpid()


def join_stages(passed_on: tuple[SharedRows, int] | None) -> None:
    """Count together with the process that has started this one."""
    if passed_on is not None and passed_on[0].is_shared:
        here.attach(passed_on[0]._table)  # noqa: SLF001 - of this module
        _begin_as_child(passed_on[1])


def _count_apart() -> None:
    """Leave the rows of the parent, before this process starts others, which share its own."""
    if this_process.before is not None:
        row = _own_row()
        here.row[_BLOCKS] = 0.0
        _sum_blocks()
        here.leave(row)
        here.common[_IS_TIMED] = row[_BLOCKS]
        this_process.before = None


def _begin_as_child(parent: int) -> None:
    """Count in a row of the parent's; what an ended process has left in it stays."""
    number = os.getpid()
    if (number - parent) % NUM_ROWS == 0:  # the parent's own
        number += 1
    here.row = here.row_at(number)
    here.row[_BLOCKS] = 0.0
    this_process.before = list(here.row)
    this_process.is_child = True
    this_process.num_watchers += 1


def _begin_before_fork() -> None:
    with writing:
        _count_apart()


def _begin_in_child() -> None:
    this_process.num_samples = this_process.num_published = 0
    _clock.state[0] = -1
    _begin_as_child(os.getppid())


if hasattr(os, "register_at_fork"):  # before and after the hooks of `shared_numbers`
    os.register_at_fork(before=_begin_before_fork, after_in_child=_begin_in_child)
