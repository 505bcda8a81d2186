"""Tables of remote shards: the bytes that are read, and damage on the way."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import raises, write_tar
from events import LONG_S
from loopback import Fault, Server, flipped

import wids
from wids import FetchError, ShardFormatError
from wids.cli.main import main

pytestmark = pytest.mark.usefixtures("quick_retries")

LABELS = [n % 7 for n in range(12)]


class Site:
    """Two shards of six samples with pictures of 200 kB, spec and dataset index, on a server."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.server = server
        self.bodies: dict[str, bytes] = {}
        names = []
        for shard in range(2):
            members = []
            for n in range(6 * shard, 6 * shard + 6):
                picture = bytes([n]) * 200_000
                members += [(f"{n:03d}.bin", picture), (f"{n:03d}.cls", b"%d" % LABELS[n])]
            path = write_tar(folder / f"p-{shard}.tar", members)
            self.bodies[f"/{path.name}"] = path.read_bytes()
            names.append(path)
        spec = wids.build_spec([str(name) for name in names], dataset_index=folder / "p.index")
        self.document = spec.document(str(folder))
        for name, body in self.bodies.items():
            server.page(name, body)
        server.page("/p.index", (folder / "p.index").read_bytes())
        self.url = server.page("/p.json", self.document)

    def num_sent(self) -> int:
        """Return how many bytes of shards were sent."""
        return sum(r.num_sent for r in self.server.log if r.path in self.bodies)

    def num_whole(self) -> int:
        """Return how many requests there were for whole shards."""
        return sum(r.path in self.bodies and r.range is None for r in self.server.log)

    def without_dataset_index(self) -> str:
        """Publish a spec that names no dataset index."""
        document = {k: v for k, v in self.document.items() if k != "index"}
        return self.server.page("/q.json", document)


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Site:
    return Site(tmp_path, server)


def test_small_fields_are_read_by_range(site: Site) -> None:
    """Where that reads less than fetching, which a dataset index tells."""
    with wids.ShardListDataset(site.url) as dataset:
        assert dataset.table([".cls"])[".cls"].to_pylist() == LABELS
        assert site.num_whole() == 0
        assert site.num_sent() < 20_000
        assert dataset[[3, 11]].table([".cls"])[".cls"].to_pylist() == [LABELS[3], LABELS[11]]


@pytest.mark.parametrize("access", ["auto", "range"])
def test_shards_are_read_at_the_same_time(
    site: Site, monkeypatch: pytest.MonkeyPatch, access: Any
) -> None:
    """The ranges of all shards are in flight together."""
    answer, together, begun = site.server._answer, threading.Barrier(len(site.bodies)), set[str]()

    def answer_together(handler: Any, request: Any) -> None:
        if request.path in site.bodies and request.path not in begun:
            begun.add(request.path)
            together.wait(LONG_S)
        answer(handler, request)

    monkeypatch.setattr(site.server, "_answer", answer_together)
    with wids.ShardListDataset(site.url, access=access) as dataset:
        assert dataset.table([".cls"])[".cls"].to_pylist() == LABELS
    assert not together.broken
    assert begun == set(site.bodies)


def test_large_fields_are_fetched(site: Site) -> None:
    """Once for each shard, and then they are read from the copies."""
    with wids.ShardListDataset(site.url) as dataset:
        assert dataset.table([".bin"])[".bin"][11].as_py() == bytes([11]) * 200_000
        assert (site.num_whole(), site.num_sent()) == (2, sum(map(len, site.bodies.values())))
        site.server.log.clear()
        assert dataset.table([".cls"])[".cls"].to_pylist() == LABELS
        assert site.num_sent() == 0


def test_access_decides_where_it_is_stated(site: Site) -> None:
    """``"range"`` never fetches a shard, and ``"download"`` always does."""
    with wids.ShardListDataset(site.url, access="range") as dataset:
        assert len(dataset.table([".bin"])) == 12
        assert site.num_whole() == 0
    with wids.ShardListDataset(site.url, access="download") as dataset:
        assert dataset.table([".cls"])[".cls"].to_pylist() == LABELS
        assert site.num_whole() == 2


def test_shards_without_an_index_are_fetched(site: Site) -> None:
    """Or refused, where nothing may be fetched."""
    url = site.without_dataset_index()
    with wids.ShardListDataset(url, access="range") as dataset:
        with raises(FetchError, "expected an index to read it by range"):
            dataset.table([".cls"])
    with wids.ShardListDataset(url) as dataset:
        assert dataset.table([".cls"])[".cls"].to_pylist() == LABELS
        assert site.num_whole() == 2


def test_a_server_without_ranges_is_fetched_from(site: Site, tmp_path: Path) -> None:
    """It is noticed at the first range."""
    for name in site.bodies:
        site.server.pages[name].has_ranges = False
    with wids.ShardListDataset(site.url) as dataset:
        assert dataset.table([".cls"])[".cls"].to_pylist() == LABELS
    with wids.ShardListDataset(site.url, access="range", cache_dir=tmp_path / "other") as dataset:
        with raises(FetchError, "a server that sends whole files only"):
            dataset.table([".cls"])
    for thread in threading.enumerate():  # other requests of the batch end by themselves
        if thread.name.startswith("ThreadPoolExecutor"):
            thread.join(10)


def test_damage_on_the_way_is_repaired_or_named(site: Site) -> None:
    """A flipped bit is read again; a member that stays damaged is named, or null."""
    body = site.bodies["/p-0.tar"]
    at = body.index(b"003.cls") + 512
    site.server.pages["/p-0.tar"].faults = [Fault(how="flip", after_nbytes=at)]
    with wids.ShardListDataset(site.url) as dataset:
        assert dataset.table([".cls"])[".cls"].to_pylist() == LABELS
    site.server.pages["/p-0.tar"].body = flipped(body, at)
    with wids.ShardListDataset(site.url, access="range") as dataset:
        with raises(ShardFormatError, 'sample "003" (index 3)', 'member "003.cls"', "checksum"):
            dataset.table([".cls"])
        labels = dataset.table([".cls"], errors="null")[".cls"].to_pylist()
    assert labels == [None if n == 3 else label for n, label in enumerate(LABELS)]


def test_a_damaged_copy_is_fetched_again(site: Site, own_cache: Path) -> None:
    """As for samples."""
    with wids.ShardListDataset(site.url, access="download") as dataset:
        assert len(dataset.table([".cls"])) == 12
    (copy,) = [p for p in own_cache.rglob("*") if p.is_file() and b"003.cls" in p.read_bytes()][:1]
    data, times = copy.read_bytes(), copy.stat().st_mtime_ns
    copy.chmod(0o644)
    with copy.open("r+b") as file:
        file.seek(data.index(b"003.cls") + 512)
        file.write(b"9")
    os.utime(copy, ns=(times, times))  # as a bit that flips on the disk leaves it
    with wids.ShardListDataset(site.url, access="download") as dataset:
        assert dataset.table([".cls"])[".cls"].to_pylist() == LABELS
    assert site.num_whole() == 3


def test_a_damaged_local_shard_is_an_error(tmp_path: Path) -> None:
    """If its index was published, and has checksums."""
    path = write_tar(tmp_path / "a.tar", [("a.cls", b"1"), ("b.cls", b"2")])
    spec = wids.build_spec([str(path)], dataset_index=tmp_path / "a.index")
    spec.save(tmp_path / "a.json")
    data = path.read_bytes()
    path.write_bytes(flipped(data, data.index(b"b.cls") + 512))
    for errors, expected in (("null", [1, None]), ("raise", None)):
        with wids.ShardListDataset(tmp_path / "a.json") as dataset:
            if expected:
                assert dataset.table([".cls"], errors=errors)[".cls"].to_pylist() == expected
                continue
            with raises(ShardFormatError, 'member "b.cls"', "checksum"):
                dataset.table([".cls"])
    path.write_bytes(flipped(data, data.index(b"b.cls") + 3))
    with wids.ShardListDataset(tmp_path / "a.json") as dataset:
        with raises(ShardFormatError, "expected the header of a .cls as in the published index"):
            dataset.table([".cls"])
    assert json.loads((tmp_path / "a.json").read_text())["index"] == "a.index"


def test_a_part_of_a_damaged_member_is_an_error(tmp_path: Path) -> None:
    """As the member itself is, and never a null that nobody asked for."""
    path = write_tar(tmp_path / "a.tar", [(f"{n}.json", b'{"n": %d}' % n) for n in range(3)])
    wids.build_spec([path], dataset_index=tmp_path / "a.index").save(tmp_path / "a.json")
    data = path.read_bytes()
    path.write_bytes(flipped(data, data.index(b'{"n": 1}') + 2))
    with wids.ShardListDataset(tmp_path / "a.json") as dataset:
        with raises(ShardFormatError, 'sample "1" (index 1)', 'member "1.json"', "checksum"):
            dataset.table([".json/n"])
        assert dataset.table([".json/n"], errors="null")[".json/n"].to_pylist() == [0, None, 2]


def test_commands_say_what_they_fetch(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing where there is an index; more than a gigabyte takes consent."""
    output = ["-c", "n=.cls", "-o", str(tmp_path / "n.parquet"), "-j", "1"]
    assert main(["table", site.url, *output]) == 0
    assert "reading columns" not in capsys.readouterr().err
    url = site.without_dataset_index()
    monkeypatch.setattr("wids.shards.costs.LIMIT_NBYTES", 1000)
    for command in (["table", url, *output], ["info", url, "-c", "n=.cls"]):
        with pytest.raises(SystemExit):
            main(command)
        assert "without an index: 2.4 MB in 2 shards; pass --yes" in capsys.readouterr().err
    assert site.num_whole() == 0
    assert main(["table", url, *output, "--yes"]) == 0
    assert site.num_whole() == 2


def test_the_first_of_several_errors_is_raised(site: Site, tmp_path: Path) -> None:
    """Shards are read together, but an error does not depend on which of them is faster."""
    paths = [
        write_tar(tmp_path / f"bad-{n}.tar", [(f"{n}{k}.json", b"{" * n) for k in range(3)])
        for n in range(4)
    ]
    spec = wids.build_spec(paths, dataset_index=tmp_path / "bad.index")
    for path in [*paths, tmp_path / "bad.index"]:
        site.server.page(f"/{path.name}", path.read_bytes())
    url = site.server.page("/bad.json", spec.document(str(tmp_path)))
    for _ in range(5):
        with wids.ShardListDataset(url, access="range") as dataset:
            with raises(wids.DecodeError, "bad-0.tar"):
                dataset.table([".json/a"])
