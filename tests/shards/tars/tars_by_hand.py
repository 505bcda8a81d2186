"""Tars that are built by the standard library or by hand, and the members found in them."""

from __future__ import annotations

import io
import tarfile
from typing import Any

from wids.shards.tars.scan import scan

FORMATS = {
    "ustar": tarfile.USTAR_FORMAT,
    "gnu": tarfile.GNU_FORMAT,
    "pax": tarfile.PAX_FORMAT,
}


AWKWARD = [
    ("plain.txt", b"one"),
    ("empty.txt", b""),
    ("exact.bin", b"x" * 512),
    ("./dotted/a.txt", b"two"),
    ("/absolute/a.txt", b"three"),
    ("d" * 60 + "/" + "e" * 60 + "/prefix.txt", b"four"),
    ("猫/犬.txt", b"five"),
    ("with blank.tar.gz", b"six"),
]


LONG = [("k" * 180 + ".jpg", b"seven"), ("f" * 140 + "/" + "鳥" * 30 + ".png", b"eight" * 300)]


def build(members: list[tuple[str, bytes]], tar_format: int, **attributes: Any) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tar_format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for attribute, value in attributes.items():
                setattr(info, attribute, value)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def members_of(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return the members that wids finds."""
    index = scan(data)
    return [
        (name, data[offset : offset + size])
        for name, offset, size in zip(index.names, index.offsets, index.sizes, strict=True)
    ]


def oracle(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return the members that ``tarfile`` finds."""
    found = []
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for info in archive:
            if info.isfile() or info.islnk():
                content = archive.extractfile(info)
                assert content is not None
                found.append((info.name.encode("utf-8", "surrogateescape"), content.read()))
    return found


def restamp(data: bytearray, start: int) -> None:
    """Write the correct checksum into a header that was changed."""
    data[start + 148 : start + 156] = b" " * 8
    data[start + 148 : start + 155] = b"%06o\0" % sum(data[start : start + 512])


def header(name: bytes, size: int, kind: bytes = b"0", **fields: bytes) -> bytearray:
    """Build a ustar header by hand."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108] = b"0000644\0"
    block[124:136] = b"%011o\0" % size
    block[156:157] = kind
    block[257:265] = b"ustar\00000"
    for field, value in fields.items():
        start = {"stated": 124, "link": 157, "prefix": 345}[field]
        block[start : start + len(value)] = value
    restamp(block, 0)
    return block


def extended(body: bytes, kind: bytes = b"x") -> bytes:
    return bytes(header(b"PaxHeader", len(body), kind)) + body + bytes(-len(body) % 512)


def record(key: str, value: str) -> bytes:
    rest = f" {key}={value}\n".encode()
    length = len(rest) + len(str(len(rest)))
    length = len(rest) + len(str(length))
    return str(length).encode() + rest


END = bytes(1024)


FILE = bytes(header(b"a.txt", 3)) + b"abc" + bytes(509)
