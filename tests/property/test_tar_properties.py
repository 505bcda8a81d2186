"""Properties of `scan`: equal to ``tarfile``, and never wrong on damaged archives."""

from __future__ import annotations

import io
import logging
import re
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from wids.errors import FetchError, ShardFormatError
from wids.shards.indexes import index_file
from wids.shards.tars.header_scan import HeaderScan
from wids.shards.tars.headers import KEY_SPLITS, KeySplit, TarData
from wids.shards.tars.index import ShardIndex, TarIdentity, index_tar
from wids.shards.tars.scan import scan


@pytest.fixture(autouse=True, scope="module")
def silence() -> Iterator[None]:
    """Disable the log, which thousands of odd archives would fill."""
    logger = logging.getLogger("wids")
    logger.disabled = True
    yield
    logger.disabled = False


IDENTITY = TarIdentity(0)
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
LETTERS = "ab.-_ /éß猫鳥дя👾"

names = (
    st.text(st.sampled_from(LETTERS), min_size=1, max_size=120)
    .filter(lambda name: name.strip("/") == name and "//" not in name)
    .filter(lambda name: len(name.encode()) <= 300)
)
sizes = st.one_of(st.integers(0, 3), st.integers(505, 520), st.integers(0, 3000))
kinds = st.sampled_from("ffffffhsd")
members = st.lists(
    st.tuples(names, kinds, sizes, st.sampled_from([0, 1, 1.25])), min_size=1, max_size=14
)


def archive(specified: list[tuple[str, str, int, float]], tar_format: int) -> bytes:
    """Write files, hard and symbolic links and folders with the standard library."""
    stream = io.BytesIO()
    files: list[str] = []
    with tarfile.open(fileobj=stream, mode="w", format=tar_format) as writer:
        for number, (name, kind, size, mtime) in enumerate(specified):
            info = tarfile.TarInfo(name)
            info.mtime = mtime  # type: ignore[assignment]  # tarfile takes fractions
            data = bytes([number + 1]) * size
            if kind == "f":
                info.size = size
            elif kind == "d":
                info.type = tarfile.DIRTYPE
            else:
                if not files:
                    continue
                info.type = tarfile.LNKTYPE if kind == "h" else tarfile.SYMTYPE
                info.linkname = files[size % len(files)]
            try:
                writer.addfile(info, io.BytesIO(data))
            except ValueError:  # does not fit into ustar
                continue
            if kind in "fh":
                files.append(name)
    return stream.getvalue()


def found(data: bytes) -> list[tuple[bytes, int, int]]:
    index = scan(data)
    return list(zip(index.names, index.offsets.tolist(), index.sizes.tolist(), strict=True))


def oracle(data: bytes) -> list[tuple[bytes, int, int]]:
    """Return name, offset and size of the files that ``tarfile`` finds."""
    result = []
    last: dict[str, tarfile.TarInfo] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as reader:
        for info in reader:
            target = info
            if info.islnk():
                target = last[info.linkname]
            if target.isfile():
                last[info.name] = target
                result.append((info.name.encode(), target.offset_data, target.size))
    return result


def check_scan(specified: list[Any], tar_format: int) -> None:
    data = archive(specified, tar_format)
    assert found(data) == oracle(data)


def damaged(original: bytes, damages: list[Any]) -> bytes:
    """Return an archive with some of its bytes changed or cut off."""
    data = bytearray(original)
    for kind, where, amount, value in damages:
        at = int(where * len(data))
        if kind == "flip" and at < len(data):
            data[at] ^= value or 1
        elif kind == "zero":
            data[at : at + amount] = bytes(len(data[at : at + amount]))
        elif kind == "blocks":
            at = at // 512 * 512
            data[at : at + amount * 512] = bytes(len(data[at : at + amount * 512]))
        elif kind == "noise":
            data[at : at + amount] = bytes([value]) * len(data[at : at + amount])
        elif kind == "cut":
            del data[at:]
    return bytes(data)


def check_damage(specified: list[Any], tar_format: int, damages: list[Any]) -> None:
    original = archive(specified, tar_format)
    expected = found(original)
    places = {(offset, size) for _, offset, size in expected}
    # No checksum covers a name in the body of an extended header.
    unsure = {
        offset
        for name, offset, _ in expected
        if original[offset - 512 : offset - 512 + len(name[:100])] != name[:100] or len(name) > 100
    }
    links = {name.encode() for name, kind, *_ in specified if kind == "h"}
    unsure_links = links_by_extension(original) if links else set()
    data = damaged(original, damages)
    if has_forged_header(original, data):
        return
    try:
        index = scan(data)
    except ShardFormatError:
        return
    for name, offset, size in zip(index.names, index.offsets, index.sizes, strict=True):
        place = (int(offset), int(size))
        assert place in places, "a member that was never there"
        # A hard link leads to the last earlier member of a name; if that one was lost, and its loss
        # was logged, to the previous one. No checksum covers that name in an extended header.
        is_link = name in (links if index.remarks else unsure_links)
        assert (name, *place) in expected or place[0] in unsure or is_link, "a name from nowhere"
    if len(index.names) < len(expected):
        assert index.remarks or is_complete(data), "members are missing without a word"


def check_parts(data: bytes) -> None:
    """Compare a scan of headers alone with one of all bytes: the same index, or the same error."""
    try:
        members = scan(data)
        expected = [index_file.dump(index(data, key_split), IDENTITY) for key_split in KEY_SPLITS]
    except ShardFormatError as error:
        message = str(error)
        with pytest.raises(ShardFormatError, match=f"^{re.escape(message)}$"):
            in_parts(data)
        return
    for found in (in_parts(data), in_parts(Flaky(data))):
        plain = [found.index(found.members(), key_split, "last") for key_split in KEY_SPLITS]
        assert [index_file.dump(each, IDENTITY) for each in plain] == expected
    assert in_parts(data).members().remarks == members.remarks


def index(data: bytes, key_split: KeySplit) -> ShardIndex:
    return index_tar(data, key_split, checksums=True, repeated="last").without_payload_crcs()


class Flaky:
    """A tar of whose blocks every third cannot be read at first."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.failed: set[int] = set()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, span: slice, /) -> bytes:
        if span.start % 1536 == 0 and span.start not in self.failed:
            self.failed.add(span.start)
            raise FetchError("busy")
        return self.data[span]


def in_parts(data: TarData) -> HeaderScan:
    """Scan headers; repeat the steps that fail."""
    found = HeaderScan(data)
    while not found.is_complete:
        position = found.position
        try:
            found.step()
        except FetchError:
            continue
        assert found.position > position
    return found


def has_forged_header(original: bytes, data: bytes) -> bool:
    """Whether several changes to a header cancel out in its sum, which cannot be detected."""
    for start in range(0, len(data) - 511, 512):
        before, after = original[start : start + 512], data[start : start + 512]
        if before != after and sum(a != b for a, b in zip(before, after, strict=True)) > 1:
            try:
                tarfile.TarInfo.frombuf(after, "utf-8", "surrogateescape")
            except tarfile.TarError:
                continue
            return True
    return False


def links_by_extension(data: bytes) -> set[bytes]:
    """Return the hard links whose targets may be named in extended headers."""
    with tarfile.open(fileobj=io.BytesIO(data)) as reader:
        links = [(info.name, info.linkname) for info in reader if info.islnk()]
    return {name.encode() for name, target in links if len(target) > 100 or not target.isascii()}


def is_complete(data: bytes) -> bool:
    """Whether only zeros follow the last member, so that it is a valid, shorter archive."""
    with tarfile.open(fileobj=io.BytesIO(data)) as reader:
        reader.getmembers()
        return not data[reader.offset :].strip(b"\0")


damages = st.lists(
    st.tuples(
        st.sampled_from(["flip", "flip", "zero", "blocks", "noise", "cut"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(1, 6),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=3,
)
quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=60, deadline=None, suppress_health_check=quiet)
@given(members, st.sampled_from(FORMATS))
def test_scan_equals_tarfile(specified: list[Any], tar_format: int) -> None:
    """Names, offsets and sizes equal tarfile's, for links, duplicates and names in any script."""
    check_scan(specified, tar_format)


@settings(max_examples=80, deadline=None, suppress_health_check=quiet)
@given(members, st.sampled_from(FORMATS), damages)
@example(
    # The link leads from the second file to the first.
    [("aa", "f", 3, 0), ("é", "f", 3, 0), ("x", "h", 1, 0)],
    tarfile.PAX_FORMAT,
    [("noise", 3596.5 / 10240, 2, ord("a"))],
)
def test_damage_is_never_a_wrong_member(
    specified: list[Any], tar_format: int, damage: list[Any]
) -> None:
    """A damaged archive gives members of the undamaged one, or an error; losses are logged."""
    check_damage(specified, tar_format, damage)


@settings(max_examples=60, deadline=None, suppress_health_check=quiet)
@given(members, st.sampled_from(FORMATS), st.one_of(st.just([]), damages))
def test_headers_alone_make_the_same_index(
    specified: list[Any], tar_format: int, damage: list[Any]
) -> None:
    """A tar that is read in parts has index, remarks and errors of a local one (INDEX-20)."""
    check_parts(damaged(archive(specified, tar_format), damage))


@pytest.mark.seeds
@settings(max_examples=5_000, deadline=None, suppress_health_check=quiet)
@given(members, st.sampled_from(FORMATS), st.one_of(st.just([]), damages))
def test_headers_alone_make_the_same_index_at_length(
    specified: list[Any], tar_format: int, damage: list[Any]
) -> None:
    """The same, many times over."""
    check_parts(damaged(archive(specified, tar_format), damage))


@pytest.mark.seeds
@settings(max_examples=8_000, deadline=None, suppress_health_check=quiet)
@given(members, st.sampled_from(FORMATS))
def test_scan_equals_tarfile_at_length(specified: list[Any], tar_format: int) -> None:
    """The same, many times over."""
    check_scan(specified, tar_format)


@pytest.mark.seeds
@settings(max_examples=10_000, deadline=None, suppress_health_check=quiet)
@given(members, st.sampled_from(FORMATS), damages)
def test_damage_is_never_a_wrong_member_at_length(
    specified: list[Any], tar_format: int, damage: list[Any]
) -> None:
    """The same, many times over."""
    check_damage(specified, tar_format, damage)


@settings(max_examples=120, deadline=None)
@given(st.binary(max_size=4096))
def test_random_bytes_are_not_a_tar(data: bytes) -> None:
    """Noise is an error, and zeros are an empty archive; there is no hang and no member."""
    try:
        index = scan(data)
    except ShardFormatError:
        return
    assert index.names == []
    assert not data.strip(b"\0")
