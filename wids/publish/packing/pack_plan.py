"""Plan what to pack of a folder: samples, classes, what is left out, and remarks.

Reads names, and the metadata files; opens no other file and writes nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from wids.errors import PackError
from wids.publish.packing import metadata
from wids.publish.packing.classes import add_classes, class_of, reason_against
from wids.publish.packing.file_samples import Sample, SampleTable, roles_of
from wids.publish.packing.folder_listing import ListedFile, Listing, Skipped, list_folder
from wids.shards.tars.member_names import KEY_SPLITS, KeySplit
from wids.storage.sizes import first_of

_DOCUMENTS: Final = frozenset(
    ("readme", "license", "licence", "copying", "citation", "notice", "changelog")
)
_TEXTS: Final = frozenset((".md", ".txt", ".rst", ".cff", ".html", ".pdf"))


@dataclass(frozen=True)
class Plan:
    """What to pack.

    Attributes:
        root: Absolute path of the folder.
        samples: The samples, sorted by key.
        classes: Names of the classes, in the order of their numbers; empty without classes.
        skipped: What is left out and why.
        remarks: What a person should know before training, one sentence each.
    """

    root: str
    samples: list[Sample]
    classes: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    remarks: tuple[str, ...]


def plan_folder(
    folder: str | os.PathLike[str],
    *,
    classes: bool | None = None,
    key_split: KeySplit = "last",
) -> Plan:
    """Return what to pack of a folder; see `wids.pack_folder`."""
    if key_split not in KEY_SPLITS:
        raise ValueError(f'key_split: expected "first" or "last", found {key_split!r}')
    listing = list_folder(folder)
    try:
        return _plan(listing, classes, key_split)
    except PackError as error:
        raise PackError(f"{os.fspath(folder)}: {error}") from error


def _plan(listing: Listing, classes: bool | None, key_split: KeySplit) -> Plan:
    files, tables = _without_tables(listing.files)
    rows = [row for path in tables for row in metadata.read_rows(listing.root, path)]
    table = SampleTable(key_split)
    table.add_files(files, rows)
    for path in table.without_extension:
        listing.leave_out(path, "without an extension")
    _leave_out_documents(table, listing)
    _check_any(table, listing)
    if rows and not table.with_row:
        raise PackError(
            f"{', '.join(tables)}: expected rows that name files of this folder, found none; the "
            f"first is {table.rows_without_files[0]}"
        )
    remarks = []
    names: tuple[str, ...] = ()
    against = reason_against(table) if classes is None else "" if not classes else None
    if against:
        remarks.append(
            f"folders were not taken for classes, because {against}; if they are classes, pass "
            "classes=True (--classes)"
        )
    if against is None:
        names = _with_classes(table, listing)
        _check_any(table, listing)
        filled = {class_of(stem) for stem in table.fields}
        empty = [folder for folder in names if folder not in filled]
        remarks += _remark(empty, "class has no samples", "classes have no samples")
    remarks += _remarks(table, listing, has_rows=bool(rows))
    return Plan(listing.root, table.samples(), names, listing.skipped(), tuple(remarks))


def _without_tables(files: list[ListedFile]) -> tuple[list[ListedFile], list[str]]:
    """Return the files of samples, and the paths of metadata files.

    Raises:
        PackError: There are shards among the files, or metadata that is not read.
    """
    tars = [file.path for file in files if file.path.endswith(".tar")]
    if tars:
        raise PackError(
            f"expected files of samples, found tars, {len(tars):,} in all: {first_of(tars)}; they "
            "may be shards already: describe them with wids create, or unpack them first"
        )
    data, tables = [], []
    for file in files:
        base = file.path.rpartition("/")[2]
        if base == metadata.PARQUET:
            raise PackError(
                f"{file.path}: expected {' or '.join(metadata.NAMES)}; convert it, in Python: "
                "pandas.read_parquet(…).to_json(…, orient='records', lines=True)"
            )
        if base in metadata.NAMES:
            tables.append(file.path)
        else:
            data.append(file)
    twice = [folder for folder, n in Counter(map(os.path.dirname, tables)).items() if n > 1]
    if twice:
        raise PackError(
            f"{os.path.join(twice[0], '')}: expected one of {' and '.join(metadata.NAMES)}, found "
            "both; remove the one that is out of date"
        )
    return data, tables


def _leave_out_documents(table: SampleTable, listing: Listing) -> None:
    """Take texts such as ``README.md`` out of the samples, unless most samples are such texts."""
    roles = {stem: roles_of(fields) for stem, fields in table.fields.items()}
    documents = {
        stem: own
        for stem, own in roles.items()
        if own <= _TEXTS and stem.rpartition("/")[2].lower() in _DOCUMENTS
    }
    others = Counter(own for stem, own in roles.items() if stem not in documents)
    most = max(others.values(), default=1)
    for stem, own in documents.items():
        if others[own] < most:
            _take_out(table, listing, stem, "of documentation")


def _take_out(table: SampleTable, listing: Listing, stem: str, reason: str) -> None:
    for source in table.fields.pop(stem).values():
        listing.leave_out(source.path, reason)


def _check_any(table: SampleTable, listing: Listing) -> None:
    """Raise PackError if there is no sample."""
    if table.fields:
        return
    skipped = "; ".join(map(str, listing.skipped()))
    if skipped:
        found = f"none that can be packed ({skipped})"
    elif listing.folders:
        found = f"only folders, with nothing in them: {first_of(listing.folders)}"
    else:
        found = "an empty folder"
    raise PackError(f"expected files such as 0001.jpg, found {found}")


def _with_classes(table: SampleTable, listing: Listing) -> tuple[str, ...]:
    """Leave out what is beside the class folders, and add the classes; return their names."""
    if not listing.folders:
        raise PackError("expected class folders, found only files; pass classes=False")
    for stem in [stem for stem in table.fields if not class_of(stem)]:
        _take_out(table, listing, stem, "beside the class folders")
    return add_classes(table, listing.folders)


def _remarks(table: SampleTable, listing: Listing, *, has_rows: bool) -> list[str]:
    remarks = _remark(
        table.rows_without_files,
        "row names a file that is not there",
        "rows name files that are not there",
    )
    if has_rows:
        bare = sorted(table.fields.keys() - table.with_row)
        remarks += _remark(bare, "sample has no row", "samples have no row")
    dotted = [s for s in table.fields if _prefix_before_dot(s) in table.fields]
    remarks += _remark(
        sorted(dotted),
        'stem continues another one after a dot; key_split="first" would make both one sample',
        'stems continue others after a dot; key_split="first" would make each pair one sample',
    )
    foreign = [stem for stem in table.fields if not _is_utf8(stem)]
    remarks += _remark(sorted(foreign), "name is not UTF-8", "names are not UTF-8")
    return remarks + _remark(
        sorted(listing.outside),
        "link leads out of the folder, and its content is packed",
        "links lead out of the folder, and their content is packed",
    )


def _remark(items: Iterable[str], one: str, many: str) -> list[str]:
    """Return a list of one sentence that counts and names items; an empty list without any."""
    found = list(items)
    text = one if len(found) == 1 else many
    return [f"{len(found):,} {text}: {first_of(found)}"] if found else []


def _prefix_before_dot(stem: str) -> str:
    folder, slash, name = stem.rpartition("/")
    prefix, dot, _ = name.partition(".")
    return folder + slash + prefix if dot else ""


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
