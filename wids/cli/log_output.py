"""Print what wids logs on standard error, as ``wids --verbose`` and ``$WIDS_LOG`` ask for.

Imported by ``import wids`` only where ``$WIDS_LOG`` is set. A program that configures logging
itself needs none of this: the records go to its handlers.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from wids.errors import printable

VARIABLE: Final = "WIDS_LOG"
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
_LINE: Final = "%(asctime)s %(levelname)s %(name)s[%(process)d]: %(message)s"
"""The process, since the workers of a DataLoader write to the same place."""

_logger = logging.getLogger("wids")


class _Lines(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of the class above
        return printable(super().formatMessage(record))


class _ToStandardError(logging.Handler):
    """Prints records on what is standard error then: notebooks and tests replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # One call for a line: processes write to the same place.
            sys.stderr.write(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001 - as every handler: a program does not fail in its log
            self.handleError(record)


def print_as_asked() -> None:
    """Print what is logged from the level of the environment on, for the life of the process."""
    text = os.environ.get(VARIABLE, "")
    if text.upper() not in _LEVELS:
        _logger.warning(
            "%s: expected %s, found %s; it is not used",
            *(VARIABLE, " or ".join(_LEVELS), printable(repr(text))),
        )
        return
    handler = _ToStandardError()
    handler.setFormatter(_Lines(_LINE))
    handler.addFilter(_is_not_handled)
    _logger.addHandler(handler)
    _logger.setLevel(text.upper())


@contextmanager
def printed(level: int, *, in_full: bool = False) -> Iterator[None]:
    """Print what is logged inside the block, from a level on.

    Args:
        level: The level; a lower one that was asked for before stays.
        in_full: Whether to print time, level, logger and process of each record, and to have
            the processes print theirs that are started in the block.
    """
    before = _logger.level
    handlers = [each for each in _logger.handlers if isinstance(each, _ToStandardError)]
    if not handlers:
        handler = _ToStandardError()
        handler.setFormatter(_Lines(_LINE) if in_full else logging.Formatter())
        _logger.addHandler(handler)
    _logger.setLevel(min(level, before or level))
    variable = os.environ.get(VARIABLE)
    if in_full:
        os.environ[VARIABLE] = logging.getLevelName(_logger.level)
    try:
        yield
    finally:
        _logger.setLevel(before)
        if not handlers:
            _logger.removeHandler(handler)
        if in_full and variable is None:
            del os.environ[VARIABLE]
        elif variable is not None:
            os.environ[VARIABLE] = variable


def _is_not_handled(record: logging.LogRecord) -> bool:
    """Return whether no handler of the program takes a record, which would print it twice."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    others: list[logging.Handler] = []
    while logger is not None:
        others += logger.handlers
        logger = logger.parent if logger.propagate else None
    return not any(
        each.level <= record.levelno
        for each in others
        if not isinstance(each, (_ToStandardError, logging.NullHandler))
    )
