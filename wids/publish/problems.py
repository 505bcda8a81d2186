"""Problems of shards and datasets, and remarks on them: one line each."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from wids.errors import printable

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Problem:
    """Something that is wrong, or worth knowing. ``str`` has both parts in one line.

    Attributes:
        shard: Path or URL of the shard, or of the pack; the name of the dataset for what is in
            several shards.
        text: What was expected and what was found.
        severity: ``"error"`` for what a reader would notice as wrong; ``"remark"`` for what may be
            as its author wants it, such as a field that only some samples have.

    Examples:
        >>> import wids
        >>> problem = wids.Problem("a.tar", "the spec says 8 samples, the shard has 10")
        >>> print(problem)
        a.tar: the spec says 8 samples, the shard has 10
    """

    shard: str
    text: str
    severity: Literal["error", "remark"] = "error"

    def __str__(self) -> str:
        return f"{self.shard}: {self.text}" if self.shard else self.text


def problem_of(shard: str, error: Exception) -> Problem:
    """Return an error as a problem of a shard, whose name the error need not repeat."""
    return Problem(shard, str(error).removeprefix(shard).removeprefix(": "))


def log_problem(problem: Problem) -> None:
    """Log a problem as a warning."""
    _logger.warning("%s", printable(str(problem)))
