"""Something to find out about all samples → a pass through them that can be watched and stopped.

A pass runs in a thread of its own, block by block, because each block may have to be read from far
away. It ends by itself when nobody asks for its progress any more. What a block is searched for is
not known here.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable
from itertools import accumulate
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np

from wids.browsing.rows import OpenRows, Rows, ShardRows
from wids.errors import message_of, printable
from wids.looking.preview import Browsable

_BLOCK: Final = 512
"""Samples after which progress is stated, and a pass can be stopped."""
_PATIENCE_S: Final = 120.0
"""Browsers ask for the progress of a hidden page once in a minute."""
_MAX_KEPT: Final = 8
_JOIN_S: Final = 5.0


class Visitor(Protocol):
    """What is to be found out."""

    def wanted(self, start: int, rows: Rows) -> Rows:
        """Return those samples of a shard that are to be read; the shard begins at ``start``."""

    def visit(self, start: int, shard: ShardRows, rows: Rows) -> bool:
        """Look at samples of a shard that begins at ``start``; return whether that is enough."""


AnyVisitor = TypeVar("AnyVisitor", bound=Visitor)


class Scan(Generic[AnyVisitor]):
    """One pass through a dataset.

    Args:
        dataset: The dataset, of which no shard is downloaded.
        visitor: What is to be found out.

    Attributes:
        visitor: As passed.
        problem: The error that ended the pass; ``""`` if there was none.
    """

    def __init__(self, dataset: Browsable, visitor: AnyVisitor) -> None:
        self._dataset = dataset
        self.visitor = visitor
        self.problem = ""
        self._next = 0
        self._left_out: Counter[str] = Counter()
        self._is_enough = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._asked_s = time.monotonic()
        self._lock = threading.Lock()

    @property
    def is_running(self) -> bool:
        """Whether the pass continues."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begin the pass, or continue it where it stopped."""
        with self._lock:
            if self.is_running:
                return
            self.problem = ""
            self._asked_s = time.monotonic()
            self._stopped.clear()
            # A daemon: a read from a server that does not answer must not keep the program alive.
            self._thread = threading.Thread(target=self.run, name="wids-scan", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the pass after the block that is being read."""
        self._stopped.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)

    def progress(self) -> dict[str, Any]:
        """Return how far the pass is, as the page shows it."""
        self._asked_s = time.monotonic()
        total = len(self._dataset)
        is_running = self.is_running  # before the position: a pass that ended is at its end
        searched = min(self._next, total)
        is_done = self._is_enough or searched == total
        state = "running" if is_running else "done" if is_done and not self.problem else "stopped"
        return {
            "state": state,
            "searched": searched,
            "total": total,
            "unreadable": self._left_out["unreadable"],
            "too_long": self._left_out["too_long"],
            "problem": self.problem,
        }

    def run(self) -> None:
        """Run the pass in this thread."""
        rows = OpenRows(self._dataset)
        try:
            self._run(rows)
        except Exception as error:  # noqa: BLE001 - whatever it is, the page shows it
            self.problem = printable(message_of(error))
        finally:
            rows.close()

    def _run(self, open_rows: OpenRows) -> None:
        starts = [0, *accumulate(self._dataset.lengths)]
        before = self._left_out  # of the part before it was stopped
        while self._next < starts[-1] and not self._is_enough and not self._stopped.is_set():
            if time.monotonic() - self._asked_s > _PATIENCE_S:
                return
            number = bisect_right(starts, self._next) - 1
            start, stop = starts[number], min(self._next + _BLOCK, starts[number + 1])
            rows = self.visitor.wanted(start, np.arange(self._next - start, stop - start))
            if len(rows):  # or the shard is not even opened
                self._is_enough = self.visitor.visit(start, open_rows.of(number), rows)
                self._left_out = before + open_rows.left_out
            self._next = stop


class Scans:
    """The passes that a page has started. Safe to use from any thread.

    One of each kind runs at a time: a new one stops the one before.
    """

    def __init__(self) -> None:
        self._scans: dict[tuple[str, Hashable], Scan[Any]] = {}
        self._lock = threading.Lock()

    def get(self, kind: str, what: Hashable) -> Scan[Any] | None:
        """Return a pass that was started, or None."""
        with self._lock:
            return self._scans.get((kind, what))

    def start(self, kind: str, what: Hashable, make: Callable[[], Scan[Any]]) -> Scan[Any]:
        """Start a pass, or continue it; others of its kind are stopped."""
        with self._lock:
            others = [scan for key, scan in self._scans.items() if key[0] == kind]
            scan = self._keep((kind, what), self._scans.get((kind, what)) or make())
        for other in others:
            if other is not scan:
                other.stop()
        scan.start()
        return scan

    def run(self, kind: str, what: Hashable, make: Callable[[], Scan[Any]]) -> Scan[Any]:
        """Run a short pass, in this thread, and return it."""
        scan = make()
        scan.run()
        with self._lock:
            return self._keep((kind, what), scan)

    def stop(self, kind: str = "") -> None:
        """Stop all passes of a kind, or of all kinds."""
        with self._lock:
            scans = [scan for key, scan in self._scans.items() if kind in ("", key[0])]
        for scan in scans:
            scan.stop()

    def _keep(self, key: tuple[str, Hashable], scan: Scan[Any]) -> Scan[Any]:
        self._scans.pop(key, None)  # to become the latest
        self._scans[key] = scan
        while len(self._scans) > _MAX_KEPT:
            del self._scans[next(iter(self._scans))]
        return scan
