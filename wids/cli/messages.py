"""What commands print in the same form: counts, problems, and notes beside the results.

Imported by every command, so it imports little itself.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wids.errors import printable
from wids.storage.sizes import count_text
from wids.storage.transport import urls

if TYPE_CHECKING:
    from wids.publish.describe import ShardRecord
    from wids.publish.journal_parts import Part
    from wids.publish.problems import Problem
    from wids.shards.specs.model import ShardSpec


def output_width() -> int:
    """Return the width of the terminal in columns; output to another program is not cut."""
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 10_000


def print_note(text: object) -> None:
    """Print a line that is no result, on standard error."""
    print(f"wids: {printable(str(text))}", file=sys.stderr)


def print_problem(problem: Problem) -> None:
    """Print what is wrong with a dataset, or a remark on it, beside the results."""
    print_note(f"remark: {problem}" if problem.severity == "remark" else problem)


def print_counts(
    output: str, shards: Sequence[ShardSpec | ShardRecord], part: Part | None = None
) -> None:
    """Print how many shards and samples were written or described."""
    samples = count_text(sum(shard.num_samples or 0 for shard in shards), "sample")
    label = "" if part is None else f"part {part}: "
    print(f"{urls.redact(output)}: {label}{count_text(len(shards), 'shard')}, {samples}")
