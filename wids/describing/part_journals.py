"""A part of the work, such as 3/16 → a journal of its own; the journals of all parts → one journal.

Parts are done by processes that do not know of each other, on any machines. The journal of all
parts is the one that an undivided run has when all shards are described, so that publishing is the
same for both. Does not know what is described, or how.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from wids.describing.describe import ShardRecord
from wids.describing.journal import Journal, Task
from wids.transport import urls

Item = TypeVar("Item")

_UNFINISHED: Final = ".unfinished"


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


def plan_of(url: str, source: str) -> ShardRecord:
    """Return the record that the journals of all parts have, to compare what they are parts of.

    Args:
        url: A name for all of the work that no shard has.
        source: Digest of what is described.
    """
    return ShardRecord(url, "first", None, 0, 0, "", b"", source)


def path_of_part(path: str, part: Part) -> str:
    """Return the path of the journal of a part as it is: complete, or unfinished if at all.

    A part that is complete is opened again, since shards may have changed.
    """
    complete = part.path(path)
    return complete if os.path.exists(complete) else complete + _UNFINISHED


@contextmanager
def part_journal(path: str, part: Part, plan: ShardRecord, mode: int = 0o666) -> Iterator[Journal]:
    """Open the journal of a part; when the block ends, it is complete under its name.

    Args:
        path: Path of the journal of all parts.
        part: The part.
        plan: As `plan_of` returns it.
        mode: The permissions of a new journal, without what the umask removes.

    Raises:
        FileExistsError: There is a journal of this part with another plan, or another file.
        OSError: Another process works on this part.
    """
    opened, log = _opened(path, part, mode)
    with log:
        if not _is_planned(log, plan, opened):
            log.add(plan)
        yield log
        # Under its lock, or another process of this part would write to it by its old name.
        os.replace(opened, part.path(path))


def _opened(path: str, part: Part, mode: int) -> tuple[str, Journal]:
    """Return the path of the journal of a part, and the journal."""
    while True:
        opened = path_of_part(path, part)
        log = Journal(opened, mode=mode)
        if path_of_part(path, part) == opened:
            return opened, log
        log.close()  # another process has completed the part: this one is empty, and is deleted


def has_parts(path: str) -> bool:
    """Whether there is the journal of all parts, or of any complete one."""
    return os.path.exists(path) or bool(_complete_parts(path))


def collect_parts(path: str, plan: ShardRecord, tasks: Sequence[Task], mode: int = 0o666) -> None:
    """Copy what the parts have described into the journal of all parts, and delete theirs.

    Args:
        path: Path of the journal of all parts.
        plan: As `plan_of` returns it.
        tasks: All that is described, in order.
        mode: As for `part_journal`.

    Raises:
        FileNotFoundError: A part is missing.
        FileExistsError: A part, or the journal of all parts, is of another plan.
        ValueError: A shard has changed since a part described it.
    """
    with Journal(path, mode=mode) as log:
        is_planned = _is_planned(log, plan, path)
        # After a kill, all may have been copied, and some parts deleted.
        is_copied = is_planned and all(task in log for task in tasks)
        for part in [] if is_copied else _found_parts(path):
            with Journal(part.path(path)) as found:
                if not _is_planned(found, plan, part.path(path)):
                    raise _other_plan(part.path(path))
                _copy(found, log, part, part.of(tasks))
        if not is_planned:
            log.add(plan)
    for part in _complete_parts(path):
        with Journal(part.path(path)) as found:
            _is_planned(found, plan, part.path(path))
            os.unlink(part.path(path))


def _copy(source: Journal, log: Journal, part: Part, tasks: Sequence[Task]) -> None:
    for task in tasks:
        if task not in source:
            raise ValueError(
                f"{urls.redact(task[0])}: expected it as part {part} found it, but it has changed "
                "since; run that part again"
            )
        if task not in log or log.record(task) != source.record(task):
            log.add(source.with_blob(task))


def _is_planned(log: Journal, plan: ShardRecord, path: str) -> bool:
    """Whether a journal has the plan; raise FileExistsError if it has another one."""
    place: Task = (plan.url, plan.key_split)
    if place in log and log.record(place).source != plan.source:
        raise _other_plan(path)
    return place in log


def _other_plan(path: str) -> FileExistsError:
    return FileExistsError(
        f"{path}: expected a journal of these shards and options, found one of others; move it "
        "away, or choose another output"
    )


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
        listed = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
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
