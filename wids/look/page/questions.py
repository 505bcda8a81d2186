"""Turn the query of a request into conditions, and the selection of samples that the page shows.

What has to be read for that is read by scans, which a person starts and can stop. The saved table
of a dataset, and a small dataset on this machine, answer at once.

With a seed the order is that of all samples, without those that were not found: a further search
condition does not change it. Nothing is read here.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wids.errors import WidsError, printable
from wids.look.page.answers import parsed_number
from wids.look.page.page_columns import PageColumns, path_of
from wids.look.page.search import Conditions, Hits, Progress, Scan, Scans, parse_conditions
from wids.look.page.tally import Tally
from wids.look.text import class_names
from wids.order.shuffle import Shuffle
from wids.shards.sample_access import ReadableDataset
from wids.shards.specs.model import class_name, is_of_classes
from wids.tables.conditions import as_typed, parsed


class Place(NamedTuple):
    """Where a sample is in a selection.

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
        found: Their indices, ascending; None for all samples.
        num_samples: The number of all samples.
        seed: None for ascending order.
    """

    found: Sequence[int] | None
    num_samples: int
    seed: int | None = None

    def __len__(self) -> int:
        return self.num_samples if self.found is None else len(self.found)

    def page(self, start: int, count: int) -> list[int]:
        """Return the samples from a position on."""
        positions = range(len(self))[start : start + count]
        if self._shuffle is None:
            return (
                list(positions) if self.found is None else list(self.found[start : start + count])
            )
        if self.found is None:
            return self._shuffle.indices(positions)
        return [self.found[at] for at in self._order[start : start + count].tolist()]

    def place(self, index: int) -> Place:
        """Return where a sample is, and its neighbours."""
        position = self._position(index)
        if position is None or self.page(position, 1) != [index]:
            return Place(None, None, None)
        before = self.page(position - 1, 1) if position else []
        after = self.page(position + 1, 1)
        return Place(position, before[0] if before else None, after[0] if after else None)

    def _position(self, index: int) -> int | None:
        if self.found is None:
            return index if self._shuffle is None else int(self._shuffle.positions([index])[0])
        at = bisect_left(self.found, index)
        if at == len(self.found) or self._shuffle is None:
            return None if at == len(self.found) else at
        return int(np.flatnonzero(self._order == at)[0])

    @cached_property
    def _shuffle(self) -> Shuffle | None:
        return None if self.seed is None else Shuffle(self.num_samples, self.seed)

    @cached_property
    def _order(self) -> npt.NDArray[np.intp]:
        """Positions in ``found``, in the order of the page."""
        assert self._shuffle is not None  # noqa: S101 - for the type checker
        found = np.asarray(self.found, np.uint64)
        return np.argsort(self._shuffle.positions(found), kind="stable")


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
    """

    def __init__(self, dataset: ReadableDataset, scans: PageScans | None = None) -> None:
        self._dataset = dataset
        self._scans = scans or PageScans()
        self._columns = PageColumns(dataset)

    def close(self) -> None:
        """Stop the scans that run."""
        self._scans.close()

    # Samples.

    def selection(self, query: dict[str, str]) -> Selection:
        """Return the samples found so far that a query asks for, in its order."""
        conditions, seed = self._conditions(query), query.get("seed", "")
        scan = self._scans.searches.get((self, conditions))
        found = None if not conditions else [] if scan is None else scan.visitor.found
        # As many as there are now: a scan may find more meanwhile.
        found = None if found is None else found[: len(found)]
        return Selection(found, len(self._dataset), parsed_number(seed, "seed") if seed else None)

    def search(self, query: dict[str, str]) -> dict[str, Any]:
        """Look for samples, or continue to; return what `hits` does."""
        conditions = self._conditions(query)
        if conditions:
            self._scans.searches.start(
                (self, conditions), lambda: Scan(self._dataset, Hits(conditions, self._columns))
            )
        return self.hits(query)

    def hits(self, query: dict[str, str]) -> dict[str, Any]:
        """Return how many samples were found, and how far the search for them is."""
        conditions, total = self._conditions(query), len(self._dataset)
        if not conditions:
            return {**asdict(Progress("done", total, total)), "found": total}
        scan = self._scans.searches.get((self, conditions))
        if scan is None:
            return {**asdict(Progress("new", total)), "found": 0}
        progress = self._scans.searches.progress(scan)
        return {**asdict(progress), "found": len(scan.visitor.found)}

    def _conditions(self, query: dict[str, str]) -> Conditions:
        return parse_conditions(query, self._dataset.spec.classes)

    def names(self, query: dict[str, str]) -> list[str]:
        """Return the name of the class that each filter of a query is for; ``""`` for none."""
        names = class_names(self._dataset.spec)
        filters = self._conditions(query).filters
        return [class_name(each.column, str(each.value), names) for each in filters]

    def code(self, query: dict[str, str]) -> str:
        """Return the Python expression for the samples that a query asks for, in its order."""
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
        saved, problem = self._columns.saved, self._columns.saved.problem
        try:
            seen = self._columns.seen
        except (WidsError, ValueError) as error:
            seen, problem = (), problem or str(error)
        names = dict.fromkeys((*saved.columns, *seen))
        first = next(filter(is_of_classes, names), None)
        return {
            "columns": [
                {"name": name, "label": printable(name), "saved": name in saved.columns}
                for name in names
            ],
            "first": first or next(iter(names), ""),
            "problem": printable(problem),
        }

    def column(self, query: dict[str, str]) -> dict[str, Any]:
        """Return how the values of a column that were counted so far are distributed.

        Those of the samples that satisfy the conditions of the query on everything else.
        """
        name, conditions = self._counted(query)
        total = len(self._dataset)
        if self._is_known(name, conditions):
            tally = Tally()
            column = self._columns.column(name)
            hits = self._all_hits(conditions)
            tally.add_column(column if hits is None else column.take(np.asarray(hits.found)))
            return self._distribution(name, tally, Progress("done", total, total))
        scan = self._scans.counts.get((self, name, conditions))
        scan = scan or self._counted_unasked(name, conditions)
        if scan is None:
            return self._distribution(name, Tally(), Progress("new", total))
        # Stated before the tally is summed: a count that has ended is complete.
        progress = self._scans.counts.progress(scan)
        return self._distribution(name, scan.visitor, progress)

    def count(self, query: dict[str, str]) -> dict[str, Any]:
        """Count the values of a column, or continue to; return what `column` does."""
        name, conditions = self._counted(query)
        if not self._is_known(name, conditions):
            self._start_count(name, conditions)
        return self.column(query)

    def _counted(self, query: dict[str, str]) -> tuple[str, Conditions]:
        """Return the column to count, and the conditions on everything else."""
        name, conditions = query.get("name", ""), self._conditions(query)
        filters = tuple(each for each in conditions.filters if each.column != name)
        return name, replace(conditions, filters=filters)

    def _is_known(self, name: str, conditions: Conditions) -> bool:
        """Return whether the saved table has the column, and says which samples count."""
        names = (name, *(each.column for each in conditions.filters))
        is_scanned = conditions.words or conditions.field
        return not is_scanned and all(map(self._columns.is_saved, names))

    def _all_hits(self, conditions: Conditions) -> Hits | None:
        return Hits(conditions, self._columns, max_hits=sys.maxsize) if conditions else None

    def _start_count(self, name: str, conditions: Conditions) -> Scan[Tally]:
        new = partial(self._new_tally, name, conditions)
        return self._scans.counts.start((self, name, conditions), new)

    def _counted_unasked(self, name: str, conditions: Conditions) -> Scan[Tally] | None:
        """Return the count of a column that is counted without a request, or None."""
        if not self._is_free():
            return None
        with self._scans.unasked:  # pages that open together must not stop each other's counts
            scan = self._scans.counts.get((self, name, conditions))
            if scan is None:
                scan = self._start_count(name, conditions)
                self._scans.counts.wait(scan, _WAIT_S)
        return scan

    def _new_tally(self, name: str, conditions: Conditions) -> Scan[Tally]:
        is_saved = self._columns.is_saved(name)
        path = None if is_saved else path_of(name)
        column = self._columns.column(name) if is_saved else None
        return Scan(self._dataset, Tally(path, column, self._all_hits(conditions)))

    def _is_free(self) -> bool:
        """Return whether all samples are local, and few."""
        is_local: Callable[[int], bool] = self._dataset.reader.is_local
        lengths = self._dataset.lengths
        return sum(lengths) <= _MAX_UNASKED and all(map(is_local, range(len(lengths))))

    def _distribution(self, name: str, tally: Tally, progress: Progress) -> dict[str, Any]:
        names = class_names(self._dataset.spec) if is_of_classes(name) else []
        num_listed = min(len(names), _MAX_CLASSES)
        summary = tally.summary(num_listed)
        if progress.searched < progress.total:  # a class can be chosen before it is counted
            counts = {value["label"]: value["count"] for value in summary["values"]}
            labels = dict.fromkeys((*map(str, range(num_listed)), *counts))
            summary["values"] = [{"label": each, "count": counts.get(each)} for each in labels]
        for value in summary["values"] if is_of_classes(name) else ():
            value["name"] = class_name(name, value["label"], names)
        return {"name": name, **asdict(progress), **summary}
