"""Group files and metadata rows into samples: a key, and the source of each field.

Files of one stem in one folder are a sample. Two sources of one member, or two samples with one
key, are collected as collisions. Reads no file.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final, NamedTuple

from wids.errors import PackError
from wids.publish.packing.folder_listing import ListedFile
from wids.publish.packing.metadata import Row
from wids.shards.fields.codecs import IMAGE_EXTENSIONS, extension
from wids.shards.fields.values import encode_json
from wids.shards.tars.member_names import KeySplit
from wids.storage.sizes import first_of

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

    def add_files(self, files: list[ListedFile], rows: list[Row]) -> None:
        """Add all files, and what the rows say of them."""
        by_path = {file.path: file for file in files} if rows else {}
        by_role: set[str] = set()  # files that are fields of another file's sample
        own: set[str] = set()
        for row in rows:
            found = [(f.role, by_path[f.path]) for f in row.files if f.path in by_path]
            lost = [f.path for f in row.files if f.path not in by_path]
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

    def _add_row(self, row: Row, found: list[tuple[str, ListedFile]]) -> None:
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
    return _roles_of(tuple(fields))


@cache  # nearly all samples have the same fields
def _roles_of(fields: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(role, fields))
