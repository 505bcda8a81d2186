"""Decide whether folders stand for classes, as in torchvision's ImageFolder, and number them.

A class is a folder directly in the packed one, with all that is in it; its number is its place
among the sorted names. Reads no file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from wids.errors import PackError
from wids.publish.packing.file_samples import IMAGE_ROLE, Generated, SampleTable, roles_of
from wids.shards.fields.values import encode_integer

FIELD: Final = ".cls"

_SPLITS: Final = frozenset(
    ("train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval")
)


def class_of(stem: str) -> str:
    """Return the folder that a stem is in, directly below the packed one; ``""`` for none."""
    return stem.partition("/")[0] if "/" in stem else ""


def reason_against(table: SampleTable) -> str | None:
    """Return why the folders of samples do not look like classes; None if they do.

    ``""`` if there are fewer than two. They do if there are two or more, all mainly with files of
    the same role, with neither files of that role beside them nor labels in them. Where files have
    rows of metadata, folders of splits are no classes.

    Raises:
        PackError: They are the folders of splits, such as ``train`` and ``test``.
    """
    counts: dict[str, Counter[str]] = {}
    for stem, fields in table.fields.items():
        counts.setdefault(class_of(stem), Counter()).update(roles_of(fields))
    beside = counts.pop("", Counter())
    main_roles = {main_role(counter) for counter in counts.values()}
    splits = _SPLITS.intersection(map(str.lower, counts))
    reasons = {
        "": len(counts) < 2,
        "files have rows of metadata, and folders have names of splits": bool(
            table.with_row and splits
        ),
        f"most of their files are not of one kind ({', '.join(sorted(main_roles))})": (
            len(main_roles) > 1
        ),
        "files of the same kind are beside them": bool(main_roles & beside.keys()),
        f"samples have a field {FIELD}": any(FIELD in counter for counter in counts.values()),
    }
    for reason, applies in reasons.items():
        if applies:
            return reason
    if _SPLITS.issuperset(map(str.lower, counts)):
        names = ", ".join(sorted(counts))
        raise PackError(
            f"expected class folders, found those of splits: {names}; pack each of them alone, so "
            "that samples for testing stay apart, or all together without classes (classes=False, "
            "--no-classes)"
        )
    return None


def main_role(counter: Counter[str]) -> str:
    """Return the role that most samples have; in a tie that of images, or the first by name."""
    return min(counter, key=lambda role: (-counter[role], role != IMAGE_ROLE, role))


def add_classes(table: SampleTable, folders: Iterable[str]) -> tuple[str, ...]:
    """Add the number of its class to each sample; return the names of the classes.

    Samples beside the class folders are taken out of the table first, by the caller.
    """
    names = tuple(sorted(folders))
    members = {
        name: Generated(encode_integer(number), f"the class folder {name}")
        for number, name in enumerate(names)
    }
    for stem in table.fields:
        table.add(stem, FIELD, members[class_of(stem)])
    return names
