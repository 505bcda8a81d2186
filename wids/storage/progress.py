"""Show progress bars to people.

A bar goes to stderr if a person can see it: at a terminal or in a notebook, in the first process of
a job, and not in a DataLoader's workers.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from wids.errors import printable

if TYPE_CHECKING:
    from typing_extensions import Self

DELAY_S = 2.0
"""Work that takes less time shows no bar."""


class Bar:
    """A bar that appears after two seconds, for people; use it in a ``with`` block.

    The delay also avoids a deadlock: tqdm starts a thread for the first bar of a process, shown or
    not, and a process that is forked while that thread holds a lock waits for the lock forever.

    Args:
        description: What is in progress.
        total: The number of units, or None if it is not known.
        unit: ``"B"`` for bytes, shown with prefixes; else the name of what is counted.
        wanted: True to show the bar wherever stderr goes, False to show nothing, None to decide by
            `is_wanted`.
    """

    def __init__(
        self, description: str, total: int | None, unit: str, *, wanted: bool | None = None
    ) -> None:
        self.description = printable(description)
        self.total = total
        self.unit = unit
        self._is_wanted = is_wanted(wanted)
        self._show_at_s = time.monotonic() + DELAY_S
        self._bar: Any = None

    def reach(self, number: int, total: int | None = None, note: str = "") -> None:
        """Show the number of finished units, and the total if it is known by now.

        Args:
            number: Finished units.
            total: All units, or None for what was known before.
            note: Text shown after the numbers.
        """
        if not self._is_wanted or time.monotonic() < self._show_at_s:
            return
        total = self.total if total is None else total
        if self._bar is None:
            # Only now: most work is over before a bar appears, and never needs the import.
            from tqdm import tqdm

            self._bar = tqdm(
                desc=self.description,
                total=total,
                initial=number,
                unit=self.unit,
                unit_scale=self.unit == "B",
                leave=False,
                postfix=note or None,
            )
        self._bar.total = total
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(number - self._bar.n)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


class PartsBar(Bar):
    """A bar over several shards, in bytes if the length of each is known; in shards otherwise.

    Args:
        description: What is in progress.
        num_parts: How many parts there are.
        nbytes: Length of all of them; None if it is not known.
        wanted: As for `Bar`.
    """

    def __init__(
        self,
        description: str,
        num_parts: int,
        nbytes: int | None,
        *,
        wanted: bool | None = None,
    ) -> None:
        total, unit = (num_parts, "shard") if nbytes is None else (nbytes, "B")
        super().__init__(description, total, unit, wanted=wanted)
        self._num_parts = num_parts
        self._num_done = self._done_nbytes = 0

    def finish(self, nbytes: int | None) -> None:
        """Show that a part of this length is finished."""
        self._num_done += 1
        self._done_nbytes += nbytes or 0
        self.move(0)

    def move(self, nbytes: int, _: int | None = None) -> None:
        """Show how many bytes of the part in progress are finished."""
        if self.unit == "B":
            note = f"{self._num_done:,} of {self._num_parts:,} shards"
            self.reach(self._done_nbytes + nbytes, note=note)
        else:
            self.reach(self._num_done)


def is_wanted(wanted: bool | None) -> bool:
    """Return whether to show a bar: by the argument, else ``WIDS_PROGRESS``, else by who sees it.

    A person sees it in the first process of a job, at a terminal or in a notebook.
    """
    if wanted is not None:
        return wanted
    stated = os.environ.get("WIDS_PROGRESS")
    if stated:
        return stated.lower() not in ("0", "false", "no", "off")
    import multiprocessing  # 7 ms, only for those who may see a bar

    is_first = os.environ.get("LOCAL_RANK", "0") == "0"  # torchrun sets it
    is_worker = multiprocessing.parent_process() is not None
    # Only if it is loaded already: importing IPython takes a second.
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    is_notebook = "IPKernelApp" in (getattr(shell, "config", None) or ())
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    return is_first and not is_worker and (is_terminal or is_notebook)
