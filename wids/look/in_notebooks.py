"""Show a dict that is a sample as HTML, wherever IPython displays one.

IPython is never imported here; it is used only if the process already runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def show_samples_in_notebooks() -> None:
    """Register a formatter with IPython that shows dicts that are samples as HTML.

    Other dicts look as before. Each dataset calls this when it is made; outside IPython it does
    nothing.
    """
    # Not imported: a program without a notebook should not pay for IPython.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        formatter = shell.display_formatter.formatters["text/html"]
        previous = formatter.lookup_by_type(dict) if dict in formatter else None
        # Each dataset calls this; formatters must not wrap each other repeatedly.
        if not isinstance(previous, _SampleFormatter):
            formatter.for_type(dict, _SampleFormatter(previous))


class _SampleFormatter:
    """Formats dicts that are samples, and leaves others to the previous formatter."""

    def __init__(self, previous: Callable[[Any], str | None] | None) -> None:
        self._previous = previous

    def __call__(self, value: dict[Any, Any]) -> str | None:
        if "__key__" in value and "__shardindex__" in value:
            # Each dataset imports this module, and `html` with what it needs takes 9 ms.
            from wids.look.html import sample_html

            return sample_html(value)
        if self._previous is not None:
            return self._previous(value)
        # IPython no longer asks a subclass of dict for its own HTML, so this formatter does.
        own_html = getattr(value, "_repr_html_", None)
        return own_html() if callable(own_html) else None
