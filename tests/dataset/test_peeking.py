"""`peek`: the samples at the beginning of a shard, for programs and notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import raises, sample_members, write_tar
from looks import HOSTILE, picture
from loopback import Server

import wids
from wids.storage.arrays import IntArray
from wids.tables.search import Scan, ShardRows

MB = 1_000_000


@pytest.fixture
def pattern(server: Server, tmp_path: Path) -> str:
    """The pattern of two shards of 40 samples of 100 kB."""
    for number in range(2):
        members = [
            member
            for n in range(40)
            for member in [
                (f"s{number}{n:03d}.jpg", picture(n)),
                (f"s{number}{n:03d}.txt", b"caption %d" % n if n else HOSTILE.encode()),
                (f"s{number}{n:03d}.bin", bytes(100_000)),
            ]
        ]
        path = write_tar(tmp_path / f"train-{number}.tar", members)
        server.page(f"/{path.name}", path.read_bytes())
    return f"{server.url}/train-{{0..1}}.tar"


def test_a_peek_is_a_sequence_of_what_was_found(server: Server, pattern: str) -> None:
    """It reads one megabyte, decodes samples, and reads on when it is asked to."""
    samples = wids.peek(pattern)
    assert server.log == []
    assert 5 < len(samples) < 15
    assert samples[1][".jpg"].size == (40, 30)
    assert samples[1][".txt"] == "caption 1"
    found = list(samples)
    assert [sample["__shardindex__"] for sample in found] == list(range(len(samples)))
    assert found[2]["__key__"] == "s0002"
    assert found[2]["__shard__"] == f"{server.url}/train-0.tar"
    assert "__index__" not in found[2]
    assert samples[-1]["__key__"] == found[-1]["__key__"]
    assert (len(server.log), server.num_sent) == (1, 1 << 20)
    with raises(IndexError, "out of range"):
        samples[len(samples)]
    assert samples.read_on(40) == 40
    assert samples.is_complete
    assert samples.find_key("s0039") == 39
    assert server.num_sent <= 4.3 * MB


def test_samples_that_are_found_during_a_scan_are_scanned(pattern: str) -> None:
    """A page that shows more of a shard does not end the search that runs."""
    samples = wids.peek(pattern)
    first = len(samples)
    scan = Scan(samples, Growing(samples))
    scan.run()
    assert first < scan.num_searched == len(samples) == sum(scan.visitor.visited)


class Growing:
    """Reads on during the first visit."""

    fields = ()

    def __init__(self, samples: wids.Peek) -> None:
        self.samples, self.visited = samples, list[int]()

    def wanted(self, _: int, rows: IntArray) -> IntArray:
        return rows

    def visit(self, _: int, __: ShardRows, rows: IntArray) -> bool:
        self.visited.append(len(rows))
        self.samples.read_on(40)
        return False


def test_other_shards(server: Server, pattern: str) -> None:
    """Each shard is looked at by itself, by its number, also from the end."""
    samples = wids.peek(pattern, 1)
    assert samples[0]["__key__"] == "s1000"
    assert samples.shard(0)[0]["__key__"] == "s0000"
    assert samples.shard(-1).number == 1
    assert (samples.num_shards, len(server.log)) == (2, 2)
    for number in (2, -3):
        with raises(IndexError, f"shard: expected a number from -2 to 1, found {number}"):
            samples.shard(number)
        with raises(IndexError, f"shard: expected a number from -2 to 1, found {number}"):
            wids.peek(pattern, number)
    with raises(TypeError, "shard: expected a number from -2 to 1, found 'a'"):
        samples.shard("a")  # type: ignore[arg-type]
    with raises(TypeError, "<Peek 'train'", "expected an index, found str 'a'"):
        samples["a"]  # type: ignore[index]
    assert repr(samples) == "<Peek 'train': the beginning of shard 1 of 2>"


def test_shards_that_were_looked_at_last_are_kept(server: Server, tmp_path: Path) -> None:
    """The beginning of a shard that is looked at again and again is read once."""
    body = write_tar(tmp_path / "a.tar", sample_members(0, 3)).read_bytes()
    first = wids.peek([server.page(f"/{number}.tar", body) for number in range(20)])
    for number in range(1, 20):
        assert len(first.shard(number)) == len(first.shard(0)) == 3
    assert len(server.log) == 20
    len(first.shard(19))
    assert len(server.log) == 20
    len(first.shard(1))
    assert len(server.log) > 20, "only a few are kept"


def test_notebooks(server: Server, pattern: str) -> None:
    """A notebook shows what is known, the command that makes an index, and cards."""
    samples = wids.peek(pattern)
    html = samples._repr_html_()
    assert "samples found so far" in html
    assert "The samples are not counted yet" in html
    assert "wids create" in html
    assert "data:image/png" in html
    assert "caption 5" in html
    assert HOSTILE not in html
    assert "<small>shard</small><span>0 of 2, from 0</span>" in html
    assert server.num_sent == 1 << 20
    gallery = samples.show(3)
    assert gallery.indices == [0, 1, 2]
    assert "caption 2" in gallery._repr_html_()
    assert len(samples.show(39).indices) == 39
    alone = wids.peek([samples.url])._repr_html_()
    assert "<small>shard</small><span>1 of 1</span>" in alone
    assert len(samples.show(1000).indices) == 40


def test_an_indexed_shard_is_complete(server: Server, pattern: str, tmp_path: Path) -> None:
    """`make_index` counts a shard, and other programs need not."""
    samples = wids.peek(pattern, cache_dir=tmp_path)
    samples.make_index()
    assert (samples.is_complete, len(samples)) == (True, 40)
    server.log.clear()
    again = wids.peek(pattern, cache_dir=tmp_path)
    assert (len(again), again.is_complete, server.log) == (40, True, [])
    assert again[39][".txt"] == "caption 39"
    assert not again.has_all_indexes
    again.shard(1).make_index()
    assert again.has_all_indexes


def test_transformations_and_errors(pattern: str) -> None:
    """Transformations are those of a dataset, and their errors name the sample."""
    samples = wids.peek(pattern, transformations=[lambda sample: sample[".txt"][:7]])
    assert samples[3] == b"caption"
    assert wids.peek(pattern, transformations=None)[3][".txt"] == b"caption 3"
    failing = wids.peek(pattern, transformations=[lambda sample: sample["none"]])
    with raises(wids.TransformError, "s0001", "train-0.tar"):
        failing[1]


def test_every_kind_of_source(tmp_path: Path) -> None:
    """Commands and openers of the caller are read from their beginning, as far as needed."""
    path = write_tar(tmp_path / "a.tar", ((f"{n}.bin", bytes(500_000)) for n in range(30)))
    command = wids.peek(f"pipe:cat {path}")
    assert (len(command), command.is_complete) == (6, False)
    assert command[5][".bin"] == bytes(500_000)
    opened: list[Any] = []

    def open_it(_: str) -> Any:
        opened.append(path.open("rb"))
        return opened[-1]

    samples = wids.peek("mem://a.tar", handlers={"mem": open_it})
    assert (len(samples), samples.read_on(10) >= 10) == (2, True)
    assert samples[9][".bin"] == bytes(500_000)
    assert all(file.closed for file in opened)


def test_the_command_shows_no_query(server: Server, tmp_path: Path) -> None:
    """What is shown to make an index names what was named, without the query of a URL."""
    path = write_tar(tmp_path / "my train.tar", sample_members(0, 3))
    url = server.page("/train.tar", path.read_bytes()) + "?token=S3CR3T"
    assert "S3CR3T" not in wids.peek(url).create_command
    assert wids.peek(path).create_command == f"wids create '{path}' -o my-train.json"
    assert wids.peek(path)[2][".txt"] == "text 2"
    document = server.page("/old.json", {"name": "old", "shardlist": [{"url": url}]})
    command = wids.peek(document).create_command
    assert command == f"wids create {document} -o old-indexed.json"


def test_what_is_no_tar_is_an_error(server: Server, tmp_path: Path) -> None:
    """Where nothing can be shown, using the samples raises the reason."""
    url = server.page("/a.tar", b"<html>log in</html>" * 100)
    assert len(wids.peek(url)) == 0
    assert "HTML or XML" in wids.peek(url)._repr_html_()
    with raises(wids.NotFoundError, "nothing.tar"):
        len(wids.peek(server.url + "/nothing.tar"))
    with raises(wids.NotFoundError, "nothing.tar"):
        len(wids.peek(tmp_path / "nothing.tar"))
