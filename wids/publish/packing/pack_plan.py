"""Plan what to pack of a folder: samples, classes, what is left out, and remarks.

Reads names and the metadata files. Opens no other file, and writes nothing.

Files of one stem in one folder are a sample (`SampleTable`). Two sources of one member, and two
samples with one key, are errors. A class is a folder directly in the packed one, with all that is
in it; its number is its place in a given list, or else among the sorted names.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from wids.errors import PackError
from wids.publish.packing import folder_listing
from wids.publish.packing.folder_listing import (
    ListedFile,
    Listing,
    MetadataRow,
    Skipped,
    list_folder,
)
from wids.shards.fields.codecs import IMAGE_EXTENSIONS, extension
from wids.shards.fields.values import encode_integer, encode_json
from wids.shards.specs.model import DatasetSpec
from wids.shards.tars.headers import KEY_SPLITS, KeySplit
from wids.storage.sizes import count_text, first_of, nbytes_text
from wids.storage.transport import urls

IMAGE_ROLE: Final = "image"

_SPELLINGS: Final = {".jpeg": ".jpg", ".tiff": ".tif"}


class Generated(NamedTuple):
    """The bytes of a member that is not a file.

    Attributes:
        data: Its bytes.
        path: What it was made from, as messages name it.
    """

    data: bytes
    path: str


Source = ListedFile | Generated


class Sample(NamedTuple):
    """One sample, as it will be packed.

    Attributes:
        key: Its key.
        members: Its fields with their leading dots, each with its source; sorted.
    """

    key: str
    members: tuple[tuple[str, Source], ...]


def stem_and_field(path: str, key_split: KeySplit = "last") -> tuple[str, str] | None:
    """Split a path into its stem, with folders, and the name of its field.

    The field is in lower case, and in one spelling: ``.jpg`` for ``.JPEG``.

    Returns:
        None for a name without an extension.
    """
    folder, slash, name = path.rpartition("/")
    if key_split == "first":
        stem, _, end = name.partition(".")
    else:
        stem, _, end = name.rpartition(".")
        if end in ("gz", "GZ"):  # says nothing about the content
            inner, dot, inner_end = stem.rpartition(".")
            if inner:
                stem, end = inner, inner_end + dot + end
    if not (stem and end) or not end.isprintable() or " " in end:
        return None
    field = "." + end.lower()
    for spelling, usual in _SPELLINGS.items():
        if field.endswith(spelling):
            field = field.removesuffix(spelling) + usual
    return folder + slash + stem, field


@cache
def role(field: str) -> str:
    """Return what a field is for, whatever its format: all pictures have one role."""
    return IMAGE_ROLE if extension(field) in IMAGE_EXTENSIONS else field


class SampleTable:
    """Collects the fields of samples, by stem.

    Args:
        key_split: Where the names of files are split into stem and field.

    Attributes:
        fields: The source of each field, by stem.
        collisions: Pairs of sources that become one member.
        without_extension: Files that belong to no sample.
        with_row: Stems of samples that have a row.
        rows_without_files: Places of rows, each with a file that is not there.
    """

    def __init__(self, key_split: KeySplit) -> None:
        self._key_split = key_split
        self.fields: dict[str, dict[str, Source]] = {}
        self.collisions: list[tuple[Source, Source, str]] = []
        self.without_extension: list[str] = []
        self.with_row: set[str] = set()
        self.rows_without_files: list[str] = []

    def add(self, stem: str, field: str, source: Source) -> None:
        """Add a field to the sample of a stem."""
        fields = self.fields.setdefault(stem, {})
        if field in fields:
            self.collisions.append((fields[field], source, stem + field))
        else:
            fields[field] = source

    def add_files(self, files: list[ListedFile], rows: list[MetadataRow]) -> None:
        """Add all files, and what the rows say of them."""
        by_path = {file.path: file for file in files} if rows else {}
        by_role: set[str] = set()  # files that are fields of another file's sample
        own: set[str] = set()
        for row in rows:
            found = [(role, by_path[path]) for role, path in row.files if path in by_path]
            lost = [path for _, path in row.files if path not in by_path]
            if lost or not found:
                self.rows_without_files.append(f"{row.place}: {', '.join(lost) or 'no name'}")
            if found:
                self._add_row(row, sorted(found, key=lambda pair: bool(pair[0])))
            by_role.update(file.path for role, file in found if role)
            own.update(file.path for role, file in found if not role)
        for file in files:
            if file.path not in by_role or file.path in own:
                split = stem_and_field(file.path, self._key_split)
                if split is None:
                    self.without_extension.append(file.path)
                else:
                    self.add(*split, file)

    def _add_row(self, row: MetadataRow, found: list[tuple[str, ListedFile]]) -> None:
        """Add the files of a row that have a role, and its values, to the sample of the first."""
        first = stem_and_field(found[0][1].path, self._key_split)
        if first is None:
            return  # it is left out with its file
        stem, _ = first
        self.with_row.add(stem)
        for name, file in found:
            split = stem_and_field(file.path, self._key_split)
            if "/" in name or "\0" in name:
                raise PackError(f"{row.place}: expected a column without a slash, found {name!r}")
            if name and split is not None:
                self.add(stem, f".{name}{split[1]}", file)
        if row.values:
            try:
                data = encode_json(row.values)
            except (ValueError, TypeError) as error:
                raise PackError(f"{row.place}: cannot be stored as JSON: {error}") from error
            self.add(stem, ".json", Generated(data, row.place))

    def samples(self) -> list[Sample]:
        """Return the samples, sorted by key.

        Raises:
            PackError: Two sources become one member, or two stems become one key.
        """
        by_key: dict[str, str] = {}
        for stem in sorted(self.fields):
            folder, slash, name = stem.rpartition("/")
            key = folder + slash + name.replace(".", "_")
            if by_key.setdefault(key, stem) != stem:
                first, second = (next(iter(self.fields[s].values())) for s in (by_key[key], stem))
                self.collisions.append((first, second, key))
        self._check_no_collisions()
        return [
            Sample(key, tuple(sorted(self.fields[stem].items())))
            for key, stem in sorted(by_key.items())
        ]

    def _check_no_collisions(self) -> None:
        if not self.collisions:
            return
        pairs = [f"{a.path} and {b.path} ({name})" for a, b, name in self.collisions]
        is_row = any(
            isinstance(source, Generated) for a, b, _ in self.collisions for source in (a, b)
        )
        raise PackError(
            "expected every file to become a member of its own, found some that become the same "
            f"member or key: {first_of(pairs)}; rename or move one of "
            f"each{', and keep one row for a file' if is_row else ''}"
        )


def roles_of(fields: Iterable[str]) -> frozenset[str]:
    """Return the roles of some fields."""
    return frozenset(map(role, fields))


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
    rows of metadata, folders of splits are not classes.

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
            "that samples for testing stay apart, the others with the --classes of the first, or "
            "all together without classes (classes=False, --no-classes)"
        )
    return None


def main_role(counter: Counter[str]) -> str:
    """Return the role that most samples have; in a tie that of images, or the first by name."""
    return min(counter, key=lambda role: (-counter[role], role != IMAGE_ROLE, role))


_NOT_UTF8: Final = re.compile("[\ud800-\udfff]")  # as Python decodes such names
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
    classes: bool | Sequence[str] | None = None,
    key_split: KeySplit = "last",
) -> Plan:
    """Return what to pack of a folder; see `wids.pack_folder`."""
    if key_split not in KEY_SPLITS:
        raise ValueError(f'key_split: expected "first" or "last", found {key_split!r}')
    if not (classes is None or isinstance(classes, bool)):
        classes = _checked_list(classes)
    listing = list_folder(folder)
    try:
        return _plan(listing, classes, key_split)
    except PackError as error:
        raise PackError(f"{os.fspath(folder)}: {error}") from error


def _checked_list(classes: Any) -> tuple[str, ...]:
    """Return a caller's list of classes."""
    names = () if isinstance(classes, str) else tuple(classes)
    if not (names and all(isinstance(name, str) and name for name in names)):
        raise ValueError(f"classes: expected a list of names, found {classes!r:.80}")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"classes: expected names that differ, found twice: {first_of(repeated)}")
    return names


def _plan(listing: Listing, classes: bool | tuple[str, ...] | None, key_split: KeySplit) -> Plan:
    files, tables = _without_tables(listing.files)
    rows = [row for path in tables for row in folder_listing.read_rows(listing.root, path)]
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
        names = classes if isinstance(classes, tuple) else tuple(listing.folders)
        _add_classes(table, listing, names)
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
        if base == folder_listing.PARQUET:
            raise PackError(
                f"{file.path}: expected {' or '.join(folder_listing.NAMES)}; convert it, "
                "in Python: pandas.read_parquet(…).to_json(…, orient='records', lines=True)"
            )
        if base in folder_listing.NAMES:
            tables.append(file.path)
        else:
            data.append(file)
    twice = [folder for folder, n in Counter(map(os.path.dirname, tables)).items() if n > 1]
    if twice:
        raise PackError(
            f"{os.path.join(twice[0], '')}: expected one of {' and '.join(folder_listing.NAMES)}, "
            "found both; remove the one that is out of date"
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


def _add_classes(table: SampleTable, listing: Listing, names: tuple[str, ...]) -> None:
    """Leave out what is beside the class folders; add the number of its class to each sample."""
    if not listing.folders:
        raise PackError("expected class folders, found only files; pass classes=False")
    others = sorted(set(listing.folders).difference(names))
    if others:
        raise PackError(
            f"expected folders of the classes in the list ({first_of(names)}), found others: "
            f"{first_of(others)}; add them to the end of the list, which keeps the numbers of the "
            "rest, or move them away"
        )
    for stem in [stem for stem in table.fields if not class_of(stem)]:
        _take_out(table, listing, stem, "beside the class folders")
    members = {
        name: Generated(encode_integer(number), f"the class folder {name}")
        for number, name in enumerate(names)
    }
    for stem in table.fields:
        table.add(stem, FIELD, members[class_of(stem)])


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
    foreign = [stem for stem in table.fields if _NOT_UTF8.search(stem)]
    remarks += _remark(sorted(foreign), "name is not UTF-8", "names are not UTF-8")
    sources = [source for fields in table.fields.values() for source in fields.values()]
    empty = [s.path for s in sources if isinstance(s, ListedFile) and not s.nbytes]
    remarks += _remark(sorted(empty), "file has 0 bytes", "files have 0 bytes")
    return remarks + _remark(
        sorted(listing.outside),
        "link leads out of the folder, and its content is packed",
        "links lead out of the folder, and their content is packed",
    )


def _remark(items: Iterable[str], one: str, many: str) -> list[str]:
    """Return a list of one sentence that counts and names items; an empty list without any."""
    all_items = list(items)
    text = one if len(all_items) == 1 else many
    return [f"{len(all_items):,} {text}: {first_of(all_items)}"] if all_items else []


def _prefix_before_dot(stem: str) -> str:
    folder, slash, name = stem.rpartition("/")
    prefix, dot, _ = name.partition(".")
    return folder + slash + prefix if dot else ""


@dataclass(frozen=True)
class PackReport:
    """What was packed, and what was not. ``str`` has the counts in one line.

    Attributes:
        spec_path: Path of the spec, or its URL.
        spec: The spec.
        fields: The number of samples that have each field, the most frequent first.
        skipped: What was left out and why.
        remarks: What a person should know before training, one sentence each.

    Examples:
        >>> import pathlib, wids
        >>> pathlib.Path("words").mkdir()
        >>> nbytes = pathlib.Path("words", "1.txt").write_text("one")
        >>> report = wids.pack_folder("words", "words")
        >>> report.num_samples, report.nbytes, report.skipped
        (1, 10240, ())
        >>> print(report)
        words.json: 1 sample, 1 shard, 10.2 kB
    """

    spec_path: str
    spec: DatasetSpec
    fields: Mapping[str, int]
    skipped: tuple[Skipped, ...]
    remarks: tuple[str, ...]

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return sum(shard.num_samples or 0 for shard in self.spec.shards)

    @property
    def nbytes(self) -> int:
        """Length of all shards in bytes."""
        return sum(shard.nbytes or 0 for shard in self.spec.shards)

    def __str__(self) -> str:
        counts = [(self.num_samples, "sample"), (len(self.spec.shards), "shard")]
        text = ", ".join(count_text(count, noun) for count, noun in counts)
        return f"{urls.redact(self.spec_path)}: {text}, {nbytes_text(self.nbytes)}"
