"""Show samples as HTML wherever IPython displays one, and warnings of wids as text in notebooks.

IPython is never imported here; it is used only if the process already runs it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from wids.errors import printable


def show_in_notebooks(reader: Any = None, spec: Any = None) -> None:
    """Register a formatter with IPython that shows dicts that are samples as HTML.

    Other dicts look as before. Each dataset calls this when it is made; outside IPython it does
    nothing.

    Args:
        reader: The shards of a dataset.
        spec: Its spec, which may name the classes of these samples.
    """
    # Not imported: a program without a notebook should not pay for IPython.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        formatter = shell.display_formatter.formatters["text/html"]
        previous = formatter.lookup_by_type(dict) if dict in formatter else None
        # Each dataset calls this; formatters must not wrap each other repeatedly.
        if not isinstance(previous, _SampleFormatter):
            previous = _SampleFormatter(previous)
            formatter.for_type(dict, previous)
        if spec is not None and spec.classes:
            previous.specs[reader] = spec
        # A notebook has a kernel. What takes the place of the function meanwhile, is taken back.
        if hasattr(shell, "kernel") and not isinstance(warnings.showwarning, _WarningText):
            warnings.showwarning = _WarningText(warnings.showwarning)


class _SampleFormatter:
    """Formats dicts that are samples, and leaves others to the previous formatter."""

    def __init__(self, previous: Callable[[Any], str | None] | None) -> None:
        self._previous = previous
        self.specs: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def __call__(self, value: dict[Any, Any]) -> str | None:
        if "__key__" in value and "__shardindex__" in value:
            # Each dataset imports this module, and `html` with what it needs takes 9 ms.
            from wids.look.html import sample_html

            return sample_html(value, self._classes(value))
        if self._previous is not None:
            return self._previous(value)
        # IPython no longer asks a subclass of dict for its own HTML, so this formatter does.
        own_html = getattr(value, "_repr_html_", None)
        return own_html() if callable(own_html) else None

    def _classes(self, sample: dict[Any, Any]) -> list[str]:
        """Return the names of classes that the spec of a sample's dataset states."""
        for reader, spec in reversed(list(self.specs.items())):
            with suppress(LookupError, TypeError):  # the sample of another dataset
                number, position = reader.locate(sample["__index__"])
                place = (spec.shards[number].url, position)
                if place == (sample["__shard__"], sample["__shardindex__"]):
                    return list(map(printable, spec.classes))
        return []


class _WarningText:
    """Shows warnings of wids as text of the cell, and leaves others to the previous function.

    A notebook shows standard error as a red box, with a path and a line of code.
    """

    def __init__(self, previous: Callable[..., None]) -> None:
        self._previous = previous

    def __call__(self, message: Any, category: type[Warning], *rest: Any, **named: Any) -> None:
        frame = sys._getframe(1)  # noqa: SLF001 - of what warns, which may name the line of another
        while frame.f_back is not None and frame.f_globals.get("__name__") == "warnings":
            frame = frame.f_back
        if str(frame.f_globals.get("__name__")).startswith("wids."):
            sys.stdout.write(f"{category.__name__}: {printable(str(message))}\n")
        else:
            self._previous(message, category, *rest, **named)
