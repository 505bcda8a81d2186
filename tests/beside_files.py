"""Files as other programs write them beside shards, made with the standard library.

DALI's ``wds2idx`` and open_lm's manifest are not on PyPI in a form that installs small, so their
files are written here by their documented form.
"""

from __future__ import annotations

import json
import struct
import tarfile
from collections.abc import Iterable
from pathlib import Path

from conftest import sample_members, write_tar
from loopback import Server


def shards(folder: Path, lengths: Iterable[int] = (10, 7), names: str = "{:05d}.tar") -> list[Path]:
    """Write shards of small samples under names as img2dataset chooses them."""
    folder.mkdir(parents=True, exist_ok=True)
    found, start = [], 0
    for number, length in enumerate(lengths):
        found.append(
            write_tar(folder / names.format(number), sample_members(start, start + length))
        )
        start += length
    return found


def members(tar: Path) -> list[tarfile.TarInfo]:
    """Return the files of a tar, as tarfile finds them."""
    with tarfile.open(tar) as archive:
        return [member for member in archive if member.isreg()]


def samples(tar: Path) -> dict[str, list[tarfile.TarInfo]]:
    """Return the files of each sample."""
    found: dict[str, list[tarfile.TarInfo]] = {}
    for member in members(tar):
        found.setdefault(member.name.partition(".")[0], []).append(member)
    return found


def write_dali(tar: Path, version: str = "v1.2") -> Path:
    """Write the index that ``wds2idx train-0.tar`` makes: ``train-0.idx``."""
    lines = [f"{version} {len(samples(tar))}"]
    for parts in samples(tar).values():
        words = []
        for part in parts:
            name = [part.name] if version == "v1.2" else []
            words += [part.name.partition(".")[2], str(part.offset_data), str(part.size), *name]
        lines.append(" ".join(words))
    path = tar.with_suffix(".idx")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_stats(tar: Path, successes: int) -> Path:
    """Write ``00000_stats.json`` as img2dataset does."""
    path = tar.with_name(f"{tar.stem}_stats.json")
    stats = {"count": successes + 3, "successes": successes, "failed_to_download": 2}
    path.write_text(json.dumps({**stats, "failed_to_resize": 1, "status_dict": {"success": 1}}))
    return path


def write_energon(root: Path, tars: list[Path], **splits: list[str]) -> Path:
    """Write the folder ``.nv-meta`` of a dataset, and the ``.tar.idx`` of its shards."""
    meta = root / ".nv-meta"
    meta.mkdir()
    names = [tar.relative_to(root).as_posix() for tar in tars]
    counts = {name: len(samples(tar)) for name, tar in zip(names, tars, strict=True)}
    (meta / ".info.json").write_text(json.dumps({"energon_version": "7", "shard_counts": counts}))
    lines = ["split_parts:"]
    for split, parts in splits.items():
        lines += [f"  {split}:", *(f"  - {part}" for part in parts)]
    (meta / "split.yaml").write_text("\n".join([*lines, "exclude: []", ""]))
    for tar in tars:
        last = members(tar)[-1]
        starts = [parts[0].offset for parts in samples(tar).values()]
        stop = last.offset_data + -(-last.size // 512) * 512
        (tar.parent / f"{tar.name}.idx").write_bytes(
            struct.pack(f"{len(starts) + 1}Q", *starts, stop)
        )
    (meta / "index.sqlite").write_bytes(b"SQLite format 3\0")
    return meta


def serve(server: Server, folder: Path) -> None:
    """Serve all files of a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            server.page(f"/{path.relative_to(folder).as_posix()}", path.read_bytes())


def bytes_of(server: Server, suffix: str) -> int:
    """Return the bytes that were sent of files with a suffix."""
    return sum(request.num_sent for request in server.log if request.path.endswith(suffix))
