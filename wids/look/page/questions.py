"""Answer what a page asks about all samples: which it selects, in what order, and their values.

What has to be read for that is read by scans (`wids.tables.search`), which a person starts and can
stop. The saved table of a dataset, and a small dataset on this machine, answer at once.

With a seed the order is that of all samples, without those that were not found: a further search
condition does not change it.
"""

from __future__ import annotations

import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final, Generic, NamedTuple

import numpy as np
import numpy.typing as npt

from wids.errors import DecodeError, WidsError, message_of, printable
from wids.look.field_facts import is_small
from wids.look.page.answers import Query, parsed_number
from wids.look.page.tally import Tally
from wids.look.preview import sample_sizes
from wids.look.text import class_names
from wids.order.random_order import RandomOrder
from wids.shards.fields.codecs import CAPTION_EXTENSIONS, TEXT_EXTENSIONS, extension
from wids.shards.sample_access import ReadableDataset
from wids.shards.specs.model import class_name, is_of_classes
from wids.tables.column_values import decoder_of, parse_columns, path_text
from wids.tables.conditions import as_typed, parsed
from wids.tables.search import (
    MAX_VALUE_NBYTES,
    AnyVisitor,
    Conditions,
    Hits,
    SavedColumns,
    Scan,
    parse_conditions,
)


def conditions_in(query: Query, classes: Sequence[str] = ()) -> Conditions:
    """Return the conditions in a query, which may name classes."""
    words, where, field = (query.get(name, "") for name in ("q", "where", "field"))
    return parse_conditions(words, where, field, classes)


class Neighbours(NamedTuple):
    """Where a sample is in a selection, and what is beside it.

    Attributes:
        position: Its position; None if it is not in the selection.
        previous, next: The samples before and after it, or None.
    """

    position: int | None
    previous: int | None
    next: int | None


@dataclass(frozen=True)
class Selection:
    """Some samples in some order.

    Attributes:
        found: Their indices, ascending; a range for all samples.
        num_samples: The number of all samples.
        seed: None for ascending order.
    """

    found: Sequence[int]
    num_samples: int
    seed: int | None = None

    def __len__(self) -> int:
        return len(self.found)

    def page(self, start: int, count: int) -> list[int]:
        """Return the samples from a position on."""
        if self._shuffle is None:
            return list(self.found[start : start + count])
        if isinstance(self.found, range):
            return self._shuffle.indices(self.found[start : start + count])
        return [self.found[at] for at in self._order[start : start + count].tolist()]

    def place(self, index: int) -> Neighbours:
        """Return where a sample is, and its neighbours."""
        position = self._position(index)
        if position is None or self.page(position, 1) != [index]:
            return Neighbours(None, None, None)
        before = self.page(position - 1, 1) if position else []
        after = self.page(position + 1, 1)
        return Neighbours(position, before[0] if before else None, after[0] if after else None)

    def _position(self, index: int) -> int | None:
        if self._shuffle is not None and isinstance(self.found, range):
            return int(self._shuffle.positions([index])[0])
        at = bisect_left(self.found, index)
        if at == len(self.found) or self._shuffle is None:
            return None if at == len(self.found) else at
        return int(np.flatnonzero(self._order == at)[0])

    @cached_property
    def _shuffle(self) -> RandomOrder | None:
        return None if self.seed is None else RandomOrder(self.num_samples, self.seed)

    @cached_property
    def _order(self) -> npt.NDArray[np.intp]:
        """Positions in ``found``, in the order of the page."""
        assert self._shuffle is not None  # noqa: S101 - for the type checker
        return self._shuffle.order_of(np.asarray(self.found, np.int64))


_PATIENCE_S: Final = 120.0
"""Browsers request the progress of a hidden page once a minute."""
_MAX_KEPT: Final = 8
_STOP_S: Final = 5.0
"""How long to wait for the end of a block that is being read."""


def _progress(
    state: str,
    total: int,
    searched: int = 0,
    left_out: Mapping[str, int] = Counter(),
    problem: str = "",
) -> dict[str, Any]:
    """Return how complete an answer about all samples is, as the page shows it.

    Args:
        state: ``"new"``, ``"running"``, ``"stopped"`` or ``"done"``.
        total: Samples of the dataset.
        searched: Samples that were looked at.
        left_out: How many fields were left out, as in `ShardRows`.
        problem: The error that ended it; ``""`` if there was none.
    """
    left = {name: left_out.get(name, 0) for name in ("unreadable", "too_long")}
    return {"state": state, "total": total, "searched": searched, **left, "problem": problem}


class PageScan(Scan[AnyVisitor]):
    """A scan in a thread of its own. It ends when no page asks for its progress any more."""

    def __init__(self, dataset: ReadableDataset, visitor: AnyVisitor) -> None:
        super().__init__(dataset, visitor)
        self._problem = ""
        self._asked_s = 0.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether it runs, or is next, and was not stopped."""
        return self._is_running and not self._stopped.is_set()

    @property
    def _is_running(self) -> bool:
        """Whether it runs, if only to the end of its block, or is next."""
        return self._thread is not None and self._thread.is_alive()

    def progress(self) -> dict[str, Any]:
        """Return how far it is."""
        self._asked_s = time.monotonic()
        state = "running" if self._is_running else "stopped"
        if state == "stopped" and self.is_done and not self._problem:
            state = "done"
        total = len(self.dataset)
        searched = min(self.num_searched, total)
        return _progress(state, total, searched, self.left_out, self._problem)

    def start(self, before: threading.Thread | None) -> None:
        """Begin, or continue where it stopped, once the thread of the previous scan has ended."""
        self._stopped = threading.Event()
        # A daemon: a read from a server that does not answer must not keep the program alive.
        thread = threading.Thread(
            target=self._run, args=(before, self._stopped), name="wids-scan", daemon=True
        )
        thread.start()
        self._thread = thread

    def stop(self) -> threading.Thread | None:
        """Have it end after the block that is being read; return its thread."""
        self._stopped.set()
        return self._thread

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, or for at most this time."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self, before: threading.Thread | None, stopped: threading.Event) -> None:
        if before is not None:
            before.join()
        self._problem = ""
        self._asked_s = time.monotonic()
        try:
            self.run(
                lambda: not stopped.is_set() and time.monotonic() - self._asked_s <= _PATIENCE_S
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the page shows it
            self._problem = printable(message_of(error))


class Scans(Generic[AnyVisitor]):
    """The scans of one kind that a page has started. Safe to use from any thread.

    They run one at a time: always the latest that was started.
    """

    def __init__(self) -> None:
        self._scans: dict[Hashable, PageScan[AnyVisitor]] = {}
        self._lock = threading.Lock()
        self._latest: PageScan[AnyVisitor] | None = None

    def get(self, what: Hashable) -> PageScan[AnyVisitor] | None:
        """Return a scan that was started, or None."""
        with self._lock:
            return self._scans.get(what)

    def start(
        self, what: Hashable, make: Callable[[], PageScan[AnyVisitor]]
    ) -> PageScan[AnyVisitor]:
        """Start a scan, or continue it; the previous one is stopped."""
        new = self.get(what) or make()  # without the lock, since it may read a table
        with self._lock:
            scan = self._scans.pop(what, new)
            if not (self._latest is scan and scan.is_wanted):
                scan.start(None if self._latest is None else self._latest.stop())
                self._latest = scan
            self._scans[what] = scan  # as the latest
            while len(self._scans) > _MAX_KEPT:
                del self._scans[next(iter(self._scans))]
        return scan

    def stop(self) -> None:
        """End the scan that runs, after the block that is being read."""
        if self._latest is not None:
            self._latest.stop()
            self._latest.wait(_STOP_S)


_NUM_SEEN: Final = 8
"""Samples that are searched for columns; they are on the first page."""
_MAX_SEEN: Final = 40
_MAX_DEPTH: Final = 3


_MAX_UNASKED: Final = 10_000
"""Samples of a dataset on this machine whose values are counted without a request."""
_MAX_CLASSES: Final = 1_000
"""Classes with names that are listed."""
_WAIT_S: Final = 2.0
"""How long an answer waits for that count; then it states how far the count is."""


@dataclass(frozen=True)
class PageScans:
    """The scans that a page has started. One search and one count run at a time.

    Attributes:
        searches: Of samples.
        counts: Of the values of columns.
        unasked: Lock, held while values are counted without a request.
    """

    searches: Scans[Hits] = field(default_factory=Scans)
    counts: Scans[Tally] = field(default_factory=Scans)
    unasked: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        """Stop the scans that run."""
        self.searches.stop()
        self.counts.stop()


class Questions:
    """What a page asks about all samples of a dataset. Safe to use from any thread.

    Args:
        dataset: The dataset, which may grow.
        scans: Its scans, which others may share; None for new ones.
        steps: The samples of steps of training, ascending, by the numbers of the steps.
    """

    def __init__(
        self,
        dataset: ReadableDataset,
        scans: PageScans | None = None,
        steps: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        self._dataset = dataset
        self._steps = steps or {}
        self._scans = scans or PageScans()
        self._columns = SavedColumns(dataset)

    def close(self) -> None:
        """Stop the scans that run."""
        self._scans.close()

    # Samples.

    def selection(self, query: Query) -> Selection:
        """Return the samples found so far that a query asks for, in its order."""
        conditions, seed = self._conditions(query), query.get("seed", "")
        indices: Sequence[int] = range(len(self._dataset))
        if conditions:
            scan = self._scans.searches.get((self, conditions))
            indices = [] if scan is None else scan.visitor.found
            indices = indices[: len(indices)]  # there may be more: a scan may go on meanwhile
        if step := query.get("step", ""):
            batch = self._steps.get(parsed_number(step, "step"))
            if batch is None:
                raise ValueError(
                    f"step: expected the one that the page was started with, found {step}; start "
                    f"`wids browse` with --step {step}"
                )
            indices = sorted({*batch}.intersection(indices)) if conditions else batch
        return Selection(indices, len(self._dataset), parsed_number(seed, "seed") if seed else None)

    def search(self, query: Query) -> dict[str, Any]:
        """Look for samples, or continue to; return what `hits` does."""
        conditions = self._conditions(query)
        if conditions:
            self._scans.searches.start(
                (self, conditions), lambda: PageScan(self._dataset, Hits(conditions, self._columns))
            )
        return self.hits(query)

    def hits(self, query: Query) -> dict[str, Any]:
        """Return how many samples were found, and how far the search for them is."""
        conditions, total = self._conditions(query), len(self._dataset)
        if not conditions:
            return {**_progress("done", total, total), "found": total}
        scan = self._scans.searches.get((self, conditions))
        if scan is None:
            return {**_progress("new", total), "found": 0}
        return {**scan.progress(), "found": len(scan.visitor.found)}

    def _conditions(self, query: Query) -> Conditions:
        return conditions_in(query, self._dataset.spec.classes)

    def names(self, query: Query) -> list[str]:
        """Return the name of the class that each filter of a query is for; ``""`` for none."""
        names = class_names(self._dataset.spec)
        filters = self._conditions(query).filters
        return [class_name(each.column, str(each.value), names) for each in filters]

    def code(self, query: Query) -> str:
        """Return the Python expression for the samples that a query asks for, in its order."""
        if query.get("step"):
            selection = self.selection(query)
            return f"dataset[{selection.page(0, len(selection))}]"
        where, classes = query.get("where", ""), self._dataset.spec.classes
        arguments = {
            "": query.get("q", "").strip(),
            "where=": as_typed(where, classes) if parsed(where or "[]", classes) else "",
            "field=": query.get("field", ""),
        }
        texts = [f"{name}{value!r}" for name, value in arguments.items() if value]
        texts += [f"seed={query['seed']}"] if query.get("seed") else []
        return f"dataset.search({', '.join(texts)})" if texts else ""

    def stop(self, kind: str) -> dict[str, Any]:
        """Stop the scans of a kind: ``"hits"`` or ``"column"``."""
        if kind not in ("hits", "column"):
            raise ValueError(f"expected hits or column to stop, found {kind!r:.40}")
        (self._scans.searches if kind == "hits" else self._scans.counts).stop()
        return {}

    # Values.

    def column_names(self) -> dict[str, Any]:
        """Return the columns to filter by: of the saved table, and those seen in samples."""
        saved, problem = self._columns.names, self._columns.problem
        seen: tuple[str, ...] = ()
        try:
            seen = self._seen
        except (WidsError, ValueError) as error:
            problem = problem or str(error)
        names = dict.fromkeys((*saved, *seen))
        first = next(filter(is_of_classes, names), None)
        return {
            "columns": [
                {"name": name, "label": printable(name), "saved": name in saved} for name in names
            ],
            "first": first or next(iter(names), ""),
            "problem": printable(problem),
        }

    @cached_property
    def _seen(self) -> tuple[str, ...]:
        """Paths of columns in the first samples, which are read once."""
        return tuple(dict.fromkeys(_paths_in_samples(self._dataset)))[:_MAX_SEEN]

    def column(self, query: Query, *, starts: bool = False) -> dict[str, Any]:
        """Return how the values of a column that were counted so far are distributed.

        Those of the samples that satisfy the conditions of the query on everything else. With
        ``starts`` they are counted from now on, or the count continues.
        """
        name, conditions = query.get("name", ""), self._conditions(query)
        filters = tuple(each for each in conditions.filters if each.column != name)
        conditions = replace(conditions, filters=filters)
        total = len(self._dataset)
        if self._is_known(name, conditions):
            tally, hits = Tally(), self._all_hits(conditions)
            column = self._columns.column(name)
            tally.add_column(column if hits is None else column.take(np.asarray(hits.found)))
            return self._distribution(name, tally, _progress("done", total, total))
        counts, what = self._scans.counts, (self, name, conditions)
        scan = counts.get(what)
        if starts:
            scan = counts.start(what, partial(self._new_count, name, conditions))
        elif scan is None and self._is_free():
            with self._scans.unasked:  # pages that open together must not stop each other's counts
                scan = counts.get(what)
                if scan is None:
                    scan = counts.start(what, partial(self._new_count, name, conditions))
                    scan.wait(_WAIT_S)
        if scan is None:
            return self._distribution(name, Tally(), _progress("new", total))
        # Stated before the tally is summed: a count that has ended is complete.
        progress = scan.progress()
        return self._distribution(name, scan.visitor, progress)

    def _is_known(self, name: str, conditions: Conditions) -> bool:
        """Return whether the saved table has the column, and says which samples count."""
        names = {name, *(each.column for each in conditions.filters)}
        is_scanned = conditions.words or conditions.field
        return not is_scanned and names <= set(self._columns.names)

    def _all_hits(self, conditions: Conditions) -> Hits | None:
        return Hits(conditions, self._columns, max_hits=sys.maxsize) if conditions else None

    def _new_count(self, name: str, conditions: Conditions) -> PageScan[Tally]:
        is_saved = name in self._columns.names
        path = None if is_saved else parse_columns([name])[0]
        column = self._columns.column(name) if is_saved else None
        return PageScan(self._dataset, Tally(path, column, self._all_hits(conditions)))

    def _is_free(self) -> bool:
        """Return whether all samples are local, and few."""
        is_local: Callable[[int], bool] = self._dataset.reader.is_local
        lengths = self._dataset.lengths
        return sum(lengths) <= _MAX_UNASKED and all(map(is_local, range(len(lengths))))

    def _distribution(self, name: str, tally: Tally, progress: dict[str, Any]) -> dict[str, Any]:
        names = class_names(self._dataset.spec) if is_of_classes(name) else []
        num_listed = min(len(names), _MAX_CLASSES)
        summary = tally.summary(num_listed)
        if progress["searched"] < progress["total"]:  # a class can be chosen before it is counted
            counts = {value["label"]: value["count"] for value in summary["values"]}
            labels = dict.fromkeys((*map(str, range(num_listed)), *counts))
            summary["values"] = [{"label": each, "count": counts.get(each)} for each in labels]
        for value in summary["values"] if is_of_classes(name) else ():
            value["name"] = class_name(name, value["label"], names)
        return {"name": name, **progress, **summary}


def _paths_in_samples(dataset: ReadableDataset) -> Iterator[str]:
    first = range(min(len(dataset), _NUM_SEEN))
    groups: dict[tuple[str, ...], list[int]] = {}
    for index in first:
        sizes = sample_sizes(dataset, index) or {}
        # Captions are searched, and hardly ever equal.
        kinds = set(TEXT_EXTENSIONS).difference(CAPTION_EXTENSIONS)
        fields = tuple(f for f, n in sizes.items() if extension(f) in kinds and is_small(f, n))
        groups.setdefault(fields, []).append(index)
    for fields, indices in groups.items():
        if not fields:
            continue
        with dataset.only(fields) as selection:
            for sample in selection.__getitems__(indices):
                for field in fields:
                    (value,) = decoder_of(field, MAX_VALUE_NBYTES)([bytes(sample[field])])
                    yield from _paths(field, value, ())


def _paths(field: str, value: Any, steps: Sequence[str]) -> Iterator[str]:
    """Yield the paths to plain values in a value."""
    if isinstance(value, dict) and len(steps) < _MAX_DEPTH:
        for name, item in value.items():
            if isinstance(name, str) and name:
                yield from _paths(field, item, (*steps, name))
    elif not isinstance(value, dict | list | DecodeError | None):
        yield path_text(field, steps)
