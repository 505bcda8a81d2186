"""What commands print in the same form: counts, problems, and notes beside the results.

Imported by every command, so it imports little itself.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, TextIO

from wids.errors import printable
from wids.storage.sizes import count_text
from wids.storage.transport import urls

if TYPE_CHECKING:
    from wids.publish.journal_parts import Part
    from wids.publish.problems import Problem
    from wids.shards.specs.model import ShardSpec


Style = Literal["bold", "red", "yellow"]
_CODES: Final[dict[Style, int]] = {"bold": 1, "red": 31, "yellow": 33}


def styled(text: str, style: Style, stream: TextIO) -> str:
    """Return text with a colour, for a terminal that has colours and a user who wants them."""
    wanted = stream.isatty() and not os.environ.get("NO_COLOR")
    if not wanted or os.environ.get("TERM", "dumb") == "dumb":
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def with_bold_header(table: str) -> str:
    """Return a table for standard output whose first line is bold in a terminal."""
    header, *rows = table.split("\n")
    return "\n".join([styled(header, "bold", sys.stdout), *rows])


def print_error(text: str) -> None:
    """Print an error in one line, on standard error."""
    print(f"{styled('wids:', 'red', sys.stderr)} {printable(text)}", file=sys.stderr)


def output_width() -> int:
    """Return the width of the terminal in columns; output to another program is not cut."""
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 10_000


def print_note(text: object) -> None:
    """Print a line that is no result, on standard error."""
    print(f"{styled('wids:', 'yellow', sys.stderr)} {printable(str(text))}", file=sys.stderr)


def print_problem(problem: Problem) -> None:
    """Print what is wrong with a dataset, or a remark on it, beside the results."""
    print_note(f"note: {problem}" if problem.severity == "remark" else problem)


def print_counts(output: str, shards: Sequence[ShardSpec], part: Part | None = None) -> None:
    """Print how many shards and samples were written or described."""
    samples = count_text(sum(shard.num_samples or 0 for shard in shards), "sample")
    label = "" if part is None else f"part {part}: "
    print(f"{urls.redact(output)}: {label}{count_text(len(shards), 'shard')}, {samples}")
