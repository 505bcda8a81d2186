"""Divide work on shards into parts, by independent processes on any machines.

Each part has its own journal. The journal of all parts equals that of an undivided run whose shards
are all described, so publishing is the same for both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from wids.publish.journal import Journal, Task
from wids.storage.sizes import first_of
from wids.storage.transport import urls

_UNFINISHED: Final = ".unfinished"

Item = TypeVar("Item")


@dataclass(frozen=True)
class Part:
    """One part of several.

    Attributes:
        number: Its number, from 1 on.
        count: How many parts there are.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Return the part that ``"3/16"`` names; raise ValueError for other texts."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(
                f"expected K/N with K from 1 to N, such as 1/16 to 16/16, found {text!r}"
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return the items of this part: each item is in one part, and lengths differ by 1."""
        start, stop = (n * len(items) // self.count for n in (self.number - 1, self.number))
        return items[start:stop]

    def path(self, journal: str) -> str:
        """Return the path of its complete journal, by that of the journal of all parts."""
        return f"{journal}-{self.number:0{len(str(self.count))}}-of-{self.count}"


def path_of_part(path: str, part: Part) -> str:
    """Return the path of the journal of a part: the complete one if it exists, else the unfinished.

    A complete part is opened again, since shards may have changed.
    """
    complete = part.path(path)
    return complete if os.path.exists(complete) else complete + _UNFINISHED


@contextmanager
def part_journal(path: str, part: Part, plan: str, mode: int = 0o666) -> Iterator[Journal]:
    """Open the journal of a part; it gets its final name when the block ends.

    Args:
        path: Path of the journal of all parts.
        part: The part.
        plan: Digest of what all parts are made from.
        mode: The permissions of a new journal, without what the umask removes.

    Raises:
        FileExistsError: There is a journal of this part with another plan, or another file.
        OSError: Another process works on this part.
    """
    with _opened_part(path, part, mode) as log:
        if not log.is_of(plan):
            log.begin(plan)
        yield log
        # Under its lock, or another process of this part would write to it under its old name.
        log.rename(part.path(path))


def _opened_part(path: str, part: Part, mode: int) -> Journal:
    while True:
        opened = path_of_part(path, part)
        log = Journal(opened, mode=mode)
        if path_of_part(path, part) == opened:
            return log
        log.close()  # another process has completed the part: this one is empty, and is deleted


def has_parts(path: str) -> bool:
    """Whether the journal of all parts, or of any complete part, exists."""
    return os.path.exists(path) or bool(_complete_parts(path))


def collect_parts(path: str, plan: str, tasks: Sequence[Task], mode: int = 0o666) -> None:
    """Copy the descriptions of all parts into the journal of all parts, and delete theirs.

    Args:
        path: Path of the journal of all parts.
        plan: Digest of what all parts are made from.
        tasks: All that is described, in order.
        mode: As for `part_journal`.

    Raises:
        FileNotFoundError: A part is missing.
        FileExistsError: A part, or the journal of all parts, is of another plan.
        ValueError: A shard has changed since a part described it.
    """
    with Journal(path, mode=mode) as log:
        is_planned = log.is_of(plan)
        # After a kill, all may have been copied, and some parts deleted.
        is_copied = is_planned and all(task in log for task in tasks)
        for part in [] if is_copied else _found_parts(path):
            with Journal(part.path(path)) as found:
                if not found.is_of(plan):
                    raise found.of_other_plan()
                _copy(found, log, part, part.of(tasks))
        if not is_planned:
            log.begin(plan)
    for part in _complete_parts(path):
        with Journal(part.path(path)) as found:
            found.is_of(plan)
            found.delete()


def _copy(source: Journal, log: Journal, part: Part, tasks: Sequence[Task]) -> None:
    for task in tasks:
        if task not in source:
            raise ValueError(
                f"{urls.redact(task[0])}: expected it as part {part} found it, but it has changed "
                "since; run that part again"
            )
        if log.get(task) != source.record(task):
            log.add(source.record(task, has_blob=True))


def _found_parts(path: str) -> list[Part]:
    """Return all parts in order.

    Raises:
        FileNotFoundError: One is missing.
        FileExistsError: There are parts of several divisions.
    """
    found = _complete_parts(path)
    counts = sorted({part.count for part in found})
    if len(counts) > 1:
        raise FileExistsError(
            f"{path}: expected the parts of one division, found parts of {counts[0]} and of "
            f"{counts[1]}; move away those that are not wanted"
        )
    if not found:
        raise FileNotFoundError(
            f"{path}: expected parts to merge, such as {Part(1, 16).path(path)}, found none; run "
            "each part first, --part 1/16 to --part 16/16"
        )
    parts = [Part(number, counts[0]) for number in range(1, counts[0] + 1)]
    missing = [part for part in parts if part not in found]
    if missing:
        listed = first_of(list(map(str, missing)), 8)
        raise FileNotFoundError(
            f"{path}: expected all {counts[0]} parts, found {len(found)}; missing: {listed}: run "
            "these again, and then merge"
        )
    return parts


def _complete_parts(path: str) -> list[Part]:
    folder, name = os.path.split(path)
    pattern = re.compile(re.escape(name) + r"-(\d+)-of-(\d+)")
    matches = filter(None, map(pattern.fullmatch, os.listdir(folder)))
    return [Part(int(match[1]), int(match[2])) for match in matches]
