"""Find the samples of a dataset that satisfy conditions, in passes that can be watched and stopped.

A condition is a text in key or captions, a field, or the value of a column. Those on columns of the
saved table are applied first: a scan reads only what they leave.

A pass runs block by block, because each block may have to be read from far away. It ends by itself
when no page requests its progress any more.
"""

from __future__ import annotations

import json
import re
import threading
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from wids.errors import message_of, printable
from wids.look.field_facts import MAX_TEXT_NBYTES, is_text
from wids.look.page.page_columns import PageColumns, Rows, ShardRows, opened_rows, path_of
from wids.shards.sample_access import ReadableDataset
from wids.tables.column_values import INDEX, KEY, ColumnPath
from wids.tables.conditions import Comparison, mask, parsed

MAX_HITS: Final = 1_000_000
"""Found samples after which a search stops."""
_WORD: Final = re.compile(r'"([^"]+)"|(\S+)')
_MAX_WORDS: Final = 20
_MAX_FILTERS: Final = 20


@dataclass(frozen=True)
class Conditions:
    """What a sample must have, all of it.

    Attributes:
        words: Texts that its key or its captions contain, without regard to case.
        field: A field; ``""`` for none.
        filters: Values of columns.
    """

    words: tuple[str, ...] = ()
    field: str = ""
    filters: tuple[Comparison, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.words or self.field or self.filters)


def parse_conditions(query: dict[str, str], classes: Sequence[str] = ()) -> Conditions:
    """Return the conditions in the query of a page, which may name classes.

    Raises:
        ValueError: The filters are malformed.
    """
    words = tuple(quoted or word for quoted, word in _WORD.findall(query.get("q", "").casefold()))
    filters = parsed(query.get("where") or "[]", classes)
    if len(words) > _MAX_WORDS or len(filters) > _MAX_FILTERS:
        raise ValueError(
            f"expected at most {_MAX_WORDS} words and {_MAX_FILTERS} filters, found {len(words)} "
            f"and {len(filters)}"
        )
    return Conditions(words, query.get("field", ""), filters)


class Hits:
    """The samples that satisfy conditions.

    Args:
        conditions: What they must have.
        columns: The columns of the dataset.
        within: Which samples of the dataset to look at; None for all.
        max_hits: How many to find.

    Attributes:
        fields: The fields whose values are decoded.
        found: Their indices so far, ascending.
        needs_scan: Whether samples have to be read to answer.

    Raises:
        ValueError: A filter names no column.
    """

    def __init__(
        self,
        conditions: Conditions,
        columns: PageColumns,
        within: npt.NDArray[np.bool_] | None = None,
        max_hits: int = MAX_HITS,
    ) -> None:
        self._max_hits = max_hits
        saved = [each for each in conditions.filters if columns.is_saved(each.column)]
        found = {each.column: columns.column(each.column) for each in saved}
        self._mask = within
        if saved:
            met = mask(found, saved)
            self._mask = met if within is None else met & within
        rest = tuple(each for each in conditions.filters if each not in saved)
        names = dict.fromkeys(each.column for each in rest)
        self._paths = [path_of(name) for name in names if name not in (INDEX, KEY)]
        self.fields = tuple(dict.fromkeys(path.field for path in self._paths))
        self._conditions = replace(conditions, filters=rest)
        self.needs_scan = bool(self._conditions)
        self.found = array("q")
        if not self.needs_scan and self._mask is not None:
            self.found.extend(np.flatnonzero(self._mask)[:max_hits].tolist())

    def wanted(self, start: int, rows: Rows) -> Rows:
        """Return the samples that have to be read to answer."""
        return self.possible(start, rows) if self.needs_scan else rows[:0]

    def possible(self, start: int, rows: Rows) -> Rows:
        """Return the samples that neither the saved table nor their indices rule out."""
        rows = rows if self._mask is None else rows[self._mask[start + rows]]
        return _accepted(self._conditions, INDEX, rows, (start + rows).tolist())

    def visit(self, start: int, shard: ShardRows, rows: Rows) -> bool:
        """Add the samples that satisfy the conditions; return whether there are too many."""
        self.found.extend((self.matching(shard, rows) + start).tolist())
        return len(self.found) >= self._max_hits

    def matching(self, shard: ShardRows, rows: Rows) -> Rows:
        """Return which of some possible samples satisfy the conditions."""
        return _matching(self._conditions, self._paths, shard, rows)


def _matching(
    conditions: Conditions, paths: Sequence[ColumnPath], shard: ShardRows, rows: Rows
) -> Rows:
    """Return which samples of a shard satisfy the conditions.

    Args:
        conditions: What they must have.
        paths: The columns of filters that are to be read, each once.
        shard: The shard.
        rows: The samples to consider.
    """
    if conditions.field:
        rows = rows[shard.members(conditions.field, rows)[0]]
    rows = _accepted(conditions, KEY, rows, map(shard.key, rows.tolist()))
    for path in paths:
        # A few values are in memory at a time.
        values = chain.from_iterable(shard.values(path, rows))
        rows = _accepted(conditions, path.name, rows, values)
    return _with_words(conditions.words, shard, rows) if conditions.words else rows


def _accepted(conditions: Conditions, column: str, rows: Rows, values: Iterable[Any]) -> Rows:
    """Return the samples whose values in a column satisfy the conditions."""
    filters = [each for each in conditions.filters if each.column == column]
    if not filters:
        return rows
    is_wanted = [all(each.accepts(value) for each in filters) for value in values]
    chosen: Rows = rows[np.array(is_wanted, bool)]
    return chosen


def _with_words(words: Sequence[str], shard: ShardRows, rows: Rows) -> Rows:
    missing = {row: _missing(words, shard.key(row).casefold()) for row in rows.tolist()}
    rest = np.array([row for row, lacks in missing.items() if lacks], np.int64)
    fields = [field for field in shard.fields if is_text(field)]
    for row, field, data in shard.read(fields, rest, MAX_TEXT_NBYTES):
        missing[row] = _missing(missing[row], _text_of(field, data).casefold())
    return np.array([row for row, lacks in missing.items() if not lacks], np.int64)


def _missing(words: Sequence[str], text: str) -> list[str]:
    return [word for word in words if word not in text]


def _text_of(field: str, data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    if "\\u" in text and field.lower().endswith("json"):
        try:
            return json.dumps(json.loads(text), ensure_ascii=False)
        except (ValueError, RecursionError):
            return text
    return text


_BLOCK: Final = 512
"""Samples after which progress is updated, and a pass can be stopped; fewer if large."""
_PATIENCE_S: Final = 120.0
"""Browsers request the progress of a hidden page once a minute."""
_MAX_KEPT: Final = 8
_STOP_S: Final = 5.0
"""How long to wait for the end of a block that is being read."""


class Visitor(Protocol):
    """What a pass looks for."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields whose values are decoded."""

    def wanted(self, start: int, rows: Rows) -> Rows:
        """Return those samples of a shard that are to be read; the shard begins at ``start``."""

    def visit(self, start: int, shard: ShardRows, rows: Rows) -> bool:
        """Visit samples of a shard that begins at ``start``; return whether that is enough."""


AnyVisitor = TypeVar("AnyVisitor", bound=Visitor)


@dataclass(frozen=True)
class Progress:
    """How complete an answer about all samples is, as the page shows it.

    Attributes:
        state: ``"new"``, ``"running"``, ``"stopped"`` or ``"done"``.
        total: Samples of the dataset.
        searched: Samples that were looked at.
        unreadable, too_long: Fields that were left out.
        problem: The error that ended it; ``""`` if there was none.
    """

    state: str
    total: int
    searched: int = 0
    unreadable: int = 0
    too_long: int = 0
    problem: str = ""


class Scan(Generic[AnyVisitor]):
    """One pass through a dataset, which `Scans` runs.

    Args:
        dataset: The dataset, of which no shard is downloaded.
        visitor: What it looks for.

    Attributes:
        visitor: As passed.
        problem: The error that ended the pass; ``""`` if there was none.
    """

    def __init__(self, dataset: ReadableDataset, visitor: AnyVisitor) -> None:
        self._dataset = dataset
        self.visitor = visitor
        self.problem = ""
        self._next = 0
        self._left_out: Counter[str] = Counter()
        self._is_enough = False
        self._asked_s = 0.0

    def progress(self, *, is_running: bool) -> Progress:
        """Return how far the pass is; the caller says whether it runs."""
        self._asked_s = time.monotonic()
        total = len(self._dataset)
        searched = min(self._next, total)
        is_done = (self._is_enough or searched == total) and not self.problem
        return Progress(
            "running" if is_running else "done" if is_done else "stopped",
            total,
            searched,
            self._left_out["unreadable"],
            self._left_out["too_long"],
            self.problem,
        )

    def run(self, stopped: threading.Event) -> None:
        """Begin the pass, or continue it where it stopped, until the event is set."""
        self.problem = ""
        self._asked_s = time.monotonic()

        def is_wanted() -> bool:
            return time.monotonic() - self._asked_s <= _PATIENCE_S and not stopped.is_set()

        try:
            self._run_shards(is_wanted)
        except Exception as error:  # noqa: BLE001 - whatever it is, the page shows it
            self.problem = printable(message_of(error))

    def complete(self) -> Counter[str]:
        """Run the pass to its end, for a caller who waits; return which fields were left out."""
        self._run_shards(lambda: True)
        return self._left_out

    def _run_shards(self, is_wanted: Callable[[], bool]) -> None:
        starts = [0, *accumulate(self._dataset.lengths)]
        while self._next < starts[-1] and not self._is_enough and is_wanted():
            number = bisect_right(starts, self._next) - 1
            self._run_shard(number, starts[number], starts[number + 1], is_wanted)

    def _run_shard(self, number: int, start: int, end: int, is_wanted: Callable[[], bool]) -> None:
        """Visit the samples of a shard from the next one on, block by block."""
        with ExitStack() as stack:
            opened: ShardRows | None = None
            while self._next < end and not self._is_enough and is_wanted():
                stop = min(self._next + _BLOCK, end)
                rows = self.visitor.wanted(start, np.arange(self._next - start, stop - start))
                if len(rows):  # or the shard is not even opened
                    opened = opened or stack.enter_context(opened_rows(self._dataset, number))
                    shard, some = opened.of(rows)
                    few = shard.affordable(some, self.visitor.fields)
                    stop = stop if len(few) == len(rows) else start + int(rows[len(few)])
                    self._is_enough = self.visitor.visit(start, shard, few)
                    # Not those of a block that failed, which is visited again.
                    self._left_out, shard.left_out = self._left_out + shard.left_out, Counter()
                self._next = stop


@dataclass(frozen=True, eq=False)
class _Run:
    """A scan from its start to its end, or until it is stopped."""

    scan: Scan[Any]
    stopped: threading.Event


class Scans(Generic[AnyVisitor]):
    """The scans of one kind that a page has started. Safe to use from any thread.

    One thread runs them one at a time: always the latest that was started.
    """

    def __init__(self) -> None:
        self._scans: dict[Hashable, Scan[AnyVisitor]] = {}
        self._changed = threading.Condition()
        self._wanted: _Run | None = None
        self._current: _Run | None = None
        self._thread: threading.Thread | None = None

    def get(self, what: Hashable) -> Scan[AnyVisitor] | None:
        """Return a scan that was started, or None."""
        with self._changed:
            return self._scans.get(what)

    def progress(self, scan: Scan[AnyVisitor]) -> Progress:
        """Return how far a scan is, as the page shows it."""
        return scan.progress(is_running=self._is_running(scan))

    def start(self, what: Hashable, make: Callable[[], Scan[AnyVisitor]]) -> Scan[AnyVisitor]:
        """Start a scan, or continue it; the previous one is stopped."""
        new = self.get(what) or make()  # without the lock, since it may read a table
        with self._changed:
            scan = self._scans.pop(what, new)
            self._scans[what] = scan  # as the latest
            while len(self._scans) > _MAX_KEPT:
                del self._scans[next(iter(self._scans))]
            if self._wanted is None or self._wanted.scan is not scan:
                self._want(_Run(scan, threading.Event()))
        return scan

    def wait(self, scan: Scan[AnyVisitor], seconds: float) -> None:
        """Wait until a scan has ended, or for at most this time."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_running(scan), seconds)

    def stop(self) -> None:
        """End the scan that runs, after the block that is being read."""
        with self._changed:
            self._want(None)
            current, thread = self._current, self._thread
            if current is not None:
                self._changed.wait_for(lambda: self._current is not current, _STOP_S)
            is_idle = self._thread is None
        if thread is not None and is_idle:
            thread.join()  # it has nothing left to do

    def _is_running(self, scan: Scan[AnyVisitor]) -> bool:
        """Whether a scan runs, if only to the end of its block, or is next."""
        runs = (self._wanted, self._current)
        return any(run is not None and run.scan is scan for run in runs)

    def _want(self, run: _Run | None) -> None:
        """Make this the only run that is wanted; the caller holds the lock."""
        if run is not None and self._thread is None:
            # A daemon: a read from a server that does not answer must not keep the program alive.
            thread = threading.Thread(target=self._work, name="wids-scan", daemon=True)
            thread.start()  # it waits for the lock
            self._thread = thread
        if self._wanted is not None:
            self._wanted.stopped.set()
        self._wanted = run
        self._changed.notify_all()

    def _work(self) -> None:
        while (run := self._take()) is not None:
            run.scan.run(run.stopped)

    def _take(self) -> _Run | None:
        """Return the next run; None if there is none, and the thread ends."""
        with self._changed:
            if self._wanted is self._current:
                self._wanted = None  # it has ended by itself
            self._current = self._wanted
            if self._current is None:
                self._thread = None
            self._changed.notify_all()
            return self._current
