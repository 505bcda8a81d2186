"""A field is a file of which only the requested parts are read, from local and remote shards."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import optional, raises
from loopback import Server
from recordings import film
from torch.utils.data import DataLoader

import wids
from wids.cli.main import main
from wids.errors import MismatchError
from wids.shards.fields.video import VideoReader
from wids.storage.cache.cache_names import is_own_name

LARGE = random.Random(0).randbytes(3_000_000)


def written(folder: Path, films: list[bytes]) -> Path:
    """Write films into a shard with a spec and a dataset index; return the spec."""
    folder.mkdir()
    with wids.TarWriter(folder / "films-0.tar") as writer:
        for number, data in enumerate(films):
            writer.write({"__key__": f"{number}", "mp4": data, "json": {"number": number}})
    spec = folder / "films.json"
    assert main(["create", str(folder / "films-0.tar"), "-o", str(spec)]) == 0
    return spec


def served(folder: Path, server: Server) -> str:
    """Serve a folder; return the URL of its spec."""
    for path in folder.iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    return f"{server.url}/films.json"


def test_it_reads_as_a_file_does(tmp_path: Path) -> None:
    """Seeking and reading return what they return for a file with the same bytes."""
    spec = written(tmp_path / "site", [b"", LARGE])
    choose = random.Random(1)
    with wids.ShardListDataset(spec) as dataset, dataset.open_field(1, ".mp4") as file:
        same = io.BytesIO(LARGE)
        for _ in range(200):
            whence = choose.choice((io.SEEK_SET, io.SEEK_CUR, io.SEEK_END))
            offset = choose.randrange(len(LARGE)) - (whence and len(LARGE) // 2)
            if whence == io.SEEK_CUR and same.tell() + offset < 0:
                offset = 0
            assert file.seek(offset, whence) == same.seek(offset, whence)
            size = choose.choice((0, 1, 1000, 400_000))
            assert file.read(size) == same.read(size)
            assert file.tell() == same.tell()
        with raises(ValueError, "position of 0 or more"):
            file.raw.seek(-1)
        with dataset.open_field(0, ".mp4") as empty:
            assert empty.read() == b""


def test_parts_of_a_remote_field(tmp_path: Path, server: Server) -> None:
    """A part of a remote field costs that part, although the shard is larger."""
    written(tmp_path / "site", [LARGE, LARGE])
    with wids.ShardListDataset(served(tmp_path / "site", server)) as dataset:
        with dataset.open_field(1, ".mp4") as file:
            file.seek(2_000_000)
            assert file.read(10) == LARGE[2_000_000:2_000_010]
    sent = sum(request.num_sent for request in server.log if request.path.endswith(".tar"))
    assert sent < 300_000


@pytest.mark.parametrize("has_tag", [True, False])
def test_one_request_for_each_part(tmp_path: Path, server: Server, has_tag: bool) -> None:
    """The headers are requested once where the server states versions, else with each part."""
    written(tmp_path / "site", [LARGE])
    url = served(tmp_path / "site", server)
    server.pages["/films-0.tar"].has_tag = has_tag
    with wids.ShardListDataset(url) as dataset, dataset.open_field(0, ".mp4") as file:
        for start in (1_000_000, 2_000_000, 500_000):
            file.seek(start)
            assert file.read(10) == LARGE[start : start + 10]
    ranges = [request.range for request in server.log if request.path == "/films-0.tar"]
    assert len(ranges) == (3 + 1 if has_tag else 3 * 2)


def test_a_version_that_is_stated_later_vouches_for_nothing(tmp_path: Path, server: Server) -> None:
    """Headers that were compared without a version are compared again with one (SEC-8)."""
    first, second = (random.Random(n).randbytes(300_000) for n in (1, 2))
    written(tmp_path / "site", [first + second[:512], second[512:]])
    url = served(tmp_path / "site", server)
    page = server.pages["/films-0.tar"]
    page.has_tag = False
    with wids.ShardListDataset(url, access="range") as dataset:
        with dataset.open_field(1, ".mp4") as file:
            assert file.read(10) == second[512:522]
            other = written(tmp_path / "other", [first, second]).with_name("films-0.tar")
            assert len(other.read_bytes()) == len(page.body)
            page.body, page.has_tag = other.read_bytes(), True
            for start in (1_000, 100_000, 200_000):
                with raises((MismatchError, wids.ShardFormatError), "films-0.tar"):
                    file.seek(start)
                    file.raw.read(10)


def test_a_missing_field(tmp_path: Path) -> None:
    """A field that the sample lacks is a KeyError that names it."""
    spec = written(tmp_path / "site", [b"x"])
    with wids.ShardListDataset(spec) as dataset, raises(KeyError, "no field .wav"):
        dataset.open_field(0, ".wav")


def test_another_tar_is_noticed(tmp_path: Path, server: Server) -> None:
    """A shard that was replaced is an error, as for whole samples."""
    written(tmp_path / "site", [LARGE])
    url = served(tmp_path / "site", server)
    with wids.ShardListDataset(url) as dataset, dataset.open_field(0, ".mp4") as file:
        server.page("/films-0.tar", b"\0" * 3_010_560)
        with raises((MismatchError, wids.ShardFormatError), "films-0.tar"):
            file.read(10)


def test_frames_are_counted_once(tmp_path: Path, server: Server) -> None:
    """The numbers of an mkv cost all of it once, also for later processes; then its own bytes."""
    optional("av")
    data = film(400, size=(160, 120), distance=10, format_name="matroska", bit_rate=2_000_000)
    expected = VideoReader(data).frames([333])
    written(tmp_path / "site", [data])
    url, sent = served(tmp_path / "site", server), []
    for _ in range(2):
        server.log.clear()
        with wids.ShardListDataset(url, access="range", cache_dir=tmp_path / "cache") as dataset:
            with dataset.open_field(0, ".mp4") as file:
                assert torch.equal(VideoReader(file).frames([333]), expected)
        sent.append(sum(each.num_sent for each in server.log if each.path.endswith(".tar")))
    assert sent[0] > len(data)
    assert sent[1] < len(data) / 2
    (kept,) = (tmp_path / "cache" / "indexes").glob("*.frames")
    assert is_own_name(kept.name)  # it counts, and may be evicted (CACHE-9)
    kept.write_bytes(kept.read_bytes()[:-1])  # damaged: counted again
    with wids.ShardListDataset(url, access="range", cache_dir=tmp_path / "cache") as dataset:
        with dataset.open_field(0, ".mp4") as file:
            assert torch.equal(VideoReader(file).frames([333]), expected)


@pytest.mark.long
def test_a_clip_of_a_remote_film(tmp_path: Path, server: Server) -> None:
    """A clip reads the index of the film and the bytes near the clip, in workers too."""
    optional("av")
    long = film(600, size=(320, 240), distance=12, bit_rate=4_000_000)
    assert len(long) > 10_000_000
    written(tmp_path / "site", [long, long])
    clips = wids.Clips(num_frames=4, stride=2, at=12.0)
    url = served(tmp_path / "site", server)
    with wids.ShardListDataset(url, fields=[".json"], access="range") as dataset:

        def with_clip(sample: dict[str, object]) -> dict[str, object]:
            with dataset.open_field(int(str(sample["__index__"])), ".mp4") as file:
                return {**sample, ".mp4": clips(file)}

        batch = next(iter(DataLoader(dataset.map(with_clip), batch_size=2, num_workers=1)))
    assert np.array_equal(batch[".mp4"][1], clips(long))
    sent = sum(request.num_sent for request in server.log if request.path.endswith(".tar"))
    assert sent < len(long) / 5


@pytest.mark.long
def test_two_seconds_of_a_hundred_megabytes(tmp_path: Path, server: Server) -> None:
    """A clip of two seconds of a film of 100 MB costs at most 5 MB."""
    optional("av")
    long = film(2500, size=(640, 480), distance=25, bit_rate=16_000_000)
    assert len(long) >= 100_000_000
    written(tmp_path / "site", [long])
    clips = wids.Clips(num_frames=50, at=50.0)
    with wids.ShardListDataset(served(tmp_path / "site", server), fields=[".json"]) as dataset:
        with dataset.open_field(0, ".mp4") as file:
            assert clips(file).shape == (50, 3, 480, 640)
    sent = sum(request.num_sent for request in server.log if request.path.endswith(".tar"))
    assert sent <= 5_000_000
