"""Write the golden files of this version into a new folder.

    PYTHONPATH=tests python tests/golden/make.py tests/golden/VERSION

A folder that exists is never written again: what it promises is that every later version reads it.
CONTRIBUTING.md says when a new one is due. The input is fixed, and so is the output, except for the
cache, which has times and inodes of this machine, and Parquet's own bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import kept
import order_cases
from loopback import Server

import wids


def write_tar(
    path: Path, members: list[tuple[str, bytes]], kind: int = tarfile.USTAR_FORMAT
) -> None:
    """Write members with the standard library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        nbytes = archive.offset + 2 * tarfile.BLOCKSIZE
    os.truncate(path, nbytes)  # without the zeros that tapes want: they are half of these files


def sample(number: int) -> list[tuple[str, bytes]]:
    """Return the members of a small sample."""
    facts = {"n": number, "size": [number, 2 * number], "tag": None if number % 3 else "x"}
    return [
        (f"s{number:03d}.txt", f"text {number}, \u00fc\n".encode()),
        (f"s{number:03d}.cls", str(number % 4).encode()),
        (f"s{number:03d}.json", json.dumps(facts).encode("ascii")),
    ]


def document(path: Path, **entries: Any) -> None:
    """Write a spec as people and other programs do."""
    path.write_text(json.dumps({"wids_version": 1, **entries}, indent=1) + "\n")


def published(folder: Path) -> None:
    """Three shards as ``wids create`` publishes them, and other specs of the same."""
    target = folder / "published"
    numbers = iter(range(9))
    for number, count in enumerate((4, 2, 3)):
        members = [member for _ in range(count) for member in sample(next(numbers))]
        write_tar(target / f"train-{number:06d}.tar", members)
    shards = sorted(target.glob("train-*.tar"))
    assert kept.run("create", *shards, "-o", target / "train.json", "-n", "train") == 0
    listed = json.loads((target / "train.json").read_text())["shardlist"]
    document(target / "bare.json", name="bare", shardlist=listed, classes=["a", "b", "c", "d"])
    own = []
    for number, shard in enumerate(shards[:2]):
        name = f"own-{number:06d}.index"
        wids.build_spec([shard], dataset_index=target / name, progress=False)
        own.append({"url": shard.name, "index": name})
    document(target / "own.json", shardlist=own, author={"name": "nobody"})
    parts = [
        {"source_url": "train.json", "weight": 2.5},
        {"name": "more", "weight": 1, "shardlist": [own[1]]},
    ]
    document(target / "mixed.json", name="mixed", datasets=parts)
    wids.load_spec(target / "mixed.json").save(target / "saved.json")


def odd(folder: Path) -> None:
    """Shards with all kinds of names and headers that are read."""
    target = folder / "odd"
    long = "long/" * 40 + "name"
    members = [
        (f"{long}.a.txt", b"long"),
        ("\u4f60\u597d.a.txt", b"not ASCII"),
        ("twice.txt", b"first"),
        ("twice.txt", b"last"),
        ("d.e/f.G", b""),
        ("README", b"in no sample"),
    ]
    write_tar(target / "pax.tar", members, tarfile.PAX_FORMAT)
    gnu = [*((f"gnu-{name}", data) for name, data in members), ("b\udcff.txt", b"no UTF-8")]
    write_tar(target / "gnu.tar", gnu, tarfile.GNU_FORMAT)
    with tarfile.open(target / "links.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        for name, kind, link in (
            ("one.txt", tarfile.REGTYPE, ""),
            ("two.txt", tarfile.LNKTYPE, "one.txt"),
            ("three.txt", tarfile.SYMTYPE, "one.txt"),
            ("folder", tarfile.DIRTYPE, ""),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            info.size = 4 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"same"))
        nbytes = archive.offset + 2 * tarfile.BLOCKSIZE
    os.truncate(target / "links.tar", nbytes)
    shards = [target / f"{name}.tar" for name in ("pax", "gnu", "links")]
    for name, options in (("odd", ()), ("last", ("--key-split", "last"))):
        output = target / f"{name}.json"
        how = (*options, "--repeated", "last")
        assert kept.run("create", *shards, "-o", output, "-n", name, *how) == 0


def headers(folder: Path) -> None:
    """A shard with a large member, whose index is made of its headers alone, without checksums."""
    target = folder / "headers"
    path = target / "large.tar"
    write_tar(path, [("a.bin", bytes(6 << 20)), ("a.txt", b"small"), ("b.txt", b"last")])
    server = Server()
    try:
        url = server.page(f"/{path.name}", path.read_bytes())
        spec = wids.build_spec([url], dataset_index=target / "headers.index", progress=False)
    finally:
        server.close()
    (shard,) = spec.shards
    entry = {"url": path.name, "nsamples": shard.num_samples, "filesize": shard.nbytes}
    document(target / "headers.json", index="headers.index", shardlist=[entry])
    with (
        (target / "large.tar.gz").open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, 0) as packed,
    ):
        packed.write(path.read_bytes())
    path.unlink()


def packed(folder: Path) -> None:
    """A folder of files, and what ``wids pack`` makes of it."""
    target = folder / "packed"
    for number in range(6):
        path = target / "in" / "cd"[number % 2] / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"packed {number}\n")
    in_folder(kept.pack, folder, target, "out*")


def written(folder: Path) -> None:
    """What a `ShardWriter` writes, and appends; captions of the samples of `published`."""
    pattern = folder / "written" / "captions-%06d.tar"
    pattern.parent.mkdir()
    with wids.ShardWriter(pattern, maxcount=10) as writer:
        for number in range(7):
            writer.write({"__key__": f"s{number:03d}", "caption.txt": f"caption {number}"})
    with wids.ShardWriter(pattern, if_exists="append") as writer:
        for number in range(7, 9):
            writer.write({"__key__": f"s{number:03d}", "caption.txt": "later"})
    for lock in pattern.parent.glob("*.lock"):
        lock.unlink()


def rewritten(folder: Path) -> None:
    """One field of `published`, backwards."""
    (folder / "rewritten").mkdir()
    in_folder(kept.rewrite, folder, folder / "rewritten", "new*")


def shuffled(folder: Path) -> None:
    """One field of `published`, in a random order."""
    (folder / "shuffled").mkdir()
    in_folder(kept.shuffle, folder, folder / "shuffled", "random*")


def table(folder: Path) -> None:
    """A dataset with a saved table of columns."""
    target = folder / "table"
    for number in range(2):
        write_tar(target / f"small-{number}.tar", sample(number))
    spec = target / "small.json"
    assert kept.run("create", *sorted(target.glob("*.tar")), "-o", spec, "-n", "small") == 0
    paths = ["txt", "cls", "json", "json/n", "json/size/-1", "json/tag"]
    assert (
        kept.run("table", spec, "-o", target / "small.parquet", "--columns", ",".join(paths)) == 0
    )
    for backup in target.glob("*.bak"):
        backup.unlink()


def in_folder(work: Any, source: Path, target: Path, pattern: str) -> None:
    """Work in a temporary folder, and keep the files of a pattern."""
    with tempfile.TemporaryDirectory() as temporary, kept.inside(Path(temporary)):
        work(source)
        for path in Path().glob(pattern):
            shutil.copy(path, target)


def cache(folder: Path) -> None:
    """A cache folder: a copy, its index, one without its copy, and two dataset indexes."""
    with tempfile.TemporaryDirectory() as temporary:
        used = Path(temporary) / "cache"
        read: list[str] = []
        options = {"handlers": {"golden": kept.opener(folder, read)}, "cache_dir": used}
        with (
            wids.ShardListDataset("golden://data/published/train.json", **options) as train,
            wids.ShardListDataset("golden://data/written/captions.json", **options) as captions,
        ):
            _ = train.find_key("s000"), captions.find_key("s000")
            for number in (0, 1):
                train.fetch_shard(number)
        assert read
        (evicted,) = (used / "shards").glob("*train-000001.tar")
        evicted.unlink()
        shutil.copytree(used, folder / "cache", ignore=shutil.ignore_patterns("*.lock", "locks"))
        for path in (folder / "cache").rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
    times = {
        path.relative_to(folder / "cache").as_posix(): path.stat().st_mtime_ns
        for path in sorted((folder / "cache").rglob("*"))
        if path.is_file()
    }
    (folder / "cache_times.json").write_text(json.dumps(times, indent=1) + "\n")


def record(folder: Path) -> None:
    """Write the values that all of it has."""
    with tempfile.TemporaryDirectory() as temporary:
        whole = kept.unpack(folder, Path(temporary) / "whole")
        values = {
            "facts": {name: kept.facts(whole / name) for name in kept.SPECS},
            "several": {"list": kept.facts([whole / name for name in kept.SEVERAL])},
            "problems": {name: kept.problems(whole / name) for name in kept.SPECS},
            "columns": kept.columns(whole / "table" / "small.json"),
            "decoded": kept.decoded(whole / "published" / "train.json"),
        }
    (folder / "values.json").write_text(lines(values))


def lines(value: dict[str, Any]) -> str:
    """Return JSON with a line for each entry, so that differences are seen."""
    parts = [
        f" {json.dumps(name)}: {json.dumps(part)}"
        if not isinstance(part, dict)
        else f" {json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(inner)}: {json.dumps(item)}" for inner, item in part.items())
        + "\n }"
        for name, part in value.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def make_datasets(folder: Path) -> None:
    """Write what has the same bytes in every run."""
    folder.mkdir(parents=True)
    for part in (published, odd, headers, packed, written, rewritten, shuffled):
        part(folder)


def make_states(folder: Path) -> None:
    """Write the states of samplers and loaders, one case in each line."""
    for name, cases in (
        ("states.json", order_cases.recorded_cases()),
        ("loaders.json", order_cases.recorded_loaders()),
    ):
        text = ",\n".join(json.dumps(case) for case in cases)
        (folder / name).write_text(f"[\n{text}\n]\n")


def main(target: str) -> None:
    """Write the folder; refuse one that exists."""
    folder = Path(target).resolve()
    os.environ.pop("WIDS_CACHE", None)
    with tempfile.TemporaryDirectory() as own:
        os.environ["WIDS_CACHE"] = own
        make_datasets(folder)
        for part in (table, cache, make_states, record):
            part(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
