"""Progress bars, for people only.

A bar goes to stderr where somebody looks: at a terminal or in a notebook, in the first process of a
job, and not in a DataLoader's workers. This room knows nothing of what is in progress.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import Any

DELAY_S = 2.0
"""What is over sooner shows no bar."""


class Bar:
    """A bar that shows itself after two seconds, to people; for use in a ``with`` block.

    Not before, because tqdm starts a thread for the first bar of a process, shown or not, and a
    process that is forked while that thread holds a lock would wait for it for ever.

    Args:
        description: What is being done.
        total: How many units there are, or None where that is not known.
        unit: ``"B"`` for bytes, shown with prefixes; else the name of what is counted.
        wanted: True to show it wherever stderr goes, False to show nothing, None to find out.
    """

    def __init__(
        self, description: str, total: int | None, unit: str, *, wanted: bool | None = None
    ) -> None:
        self.description = description
        self.total = total
        self.unit = unit
        self._is_wanted = is_wanted(wanted)
        self._show_at_s = time.monotonic() + DELAY_S
        self._bar: Any = None

    def reach(self, number: int, total: int | None = None) -> None:
        """Take note that so many units are done, of so many if that is known by now."""
        if not self._is_wanted or time.monotonic() < self._show_at_s:
            return
        total = self.total if total is None else total
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(
                desc=self.description,
                total=total,
                initial=number,
                unit=self.unit,
                unit_scale=self.unit == "B",
                leave=False,
            )
        self._bar.total = total
        self._bar.update(number - self._bar.n)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def is_wanted(wanted: bool | None) -> bool:
    """Tell whether to show a bar: by the argument, else by ``WIDS_PROGRESS``, else by who looks."""
    if wanted is not None:
        return wanted
    stated = os.environ.get("WIDS_PROGRESS")
    if stated:
        return stated.lower() not in ("0", "false", "no", "off")
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    is_worker = multiprocessing.parent_process() is not None
    return is_first and not is_worker and (_is_terminal() or _is_notebook())


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _is_notebook() -> bool:
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    return "IPKernelApp" in (getattr(shell, "config", None) or ())
