"""Sizes of pictures are columns, which are read from their first bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import raises, write_tar
from loopback import Mirrors, Server
from PIL import Image

import wids
from wids.cli.main import main
from wids.errors import DecodeError

PARTS = {"h": ".jpg/height", "w": ".jpg/width", "o": ".jpg/orientation"}


def picture(number: int, kind: str = "JPEG", **saved: Any) -> bytes:
    """Return a picture of 150 kB, whose size shows its number."""
    noise = np.random.default_rng(number).integers(0, 255, (200 + number, 1200, 3), np.uint8)
    exif = Image.Exif()
    exif[0x112] = number % 8 + 1
    Image.fromarray(noise).save(file := io.BytesIO(), kind, exif=exif, **saved)
    return file.getvalue()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """12 pictures in two shards, one of them with a long profile, one of PNG, one of TIFF."""
    made = [picture(n) for n in range(12)]
    made[3] = picture(3, icc_profile=b"x" * 20_000)
    made[7], made[9] = picture(7, "PNG"), picture(9, "TIFF")
    paths = [
        write_tar(
            tmp_path / f"p-{shard}.tar",
            [(f"{n:02d}.jpg", made[n]) for n in range(6 * shard, 6 * shard + 6)],
        )
        for shard in range(2)
    ]
    spec = wids.build_spec([str(path) for path in paths], dataset_index=tmp_path / "p.index")
    spec.save(tmp_path / "p.json")
    return tmp_path / "p.json"


def check(dataset: Any) -> None:
    table = dataset.table(PARTS)
    assert table["h"].to_pylist() == list(range(200, 212))
    assert table["w"].to_pylist() == [1200] * 12
    assert table["o"].to_pylist() == [n % 8 + 1 for n in range(12)]


def test_sizes_of_local_pictures(pictures: Path) -> None:
    """They are columns of tables, conditions and joined datasets."""
    with wids.ShardListDataset(pictures) as dataset:
        check(dataset)
        assert dataset[[4, 2]].table([".jpg/height"])[".jpg/height"].to_pylist() == [204, 202]
        assert [*dataset.search(where="jpg/height >= 209").positions] == [9, 10, 11]
        check(dataset.join({f"{n:02d}": {".n": n} for n in range(12)}))


def test_by_range_a_size_costs_the_first_bytes(pictures: Path, server: Server) -> None:
    """Of pictures of 150 kB with usual headers 4 kB and what precedes them in the tar."""
    for path in pictures.parent.iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    with wids.ShardListDataset(f"{server.url}/p.json", access="range") as dataset:
        assert dataset[:3].table(PARTS)["h"].to_pylist() == [200, 201, 202]
        assert [*dataset[:3].search(where=".jpg/height == 201").positions] == [1]
        sent = [request.num_sent for request in server.log if request.path.endswith(".tar")]
        assert sum(sent) < 6 * 5000
        check(dataset)


def test_mirrors_with_tags_of_their_own(pictures: Path, server: Server) -> None:
    """No checksum covers the start of a picture, so whole ones are read and compared (CACHE-30)."""
    for path in pictures.parent.iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    for path in pictures.parent.glob("*.tar"):
        server.pages[f"/{path.name}"] = Mirrors(path.read_bytes())
    with wids.ShardListDataset(f"{server.url}/p.json", access="range") as dataset:
        check(dataset)


def test_a_damaged_header_names_its_sample(tmp_path: Path) -> None:
    """Or is null, and counted as such."""
    members = [("a.jpg", picture(0)), ("b.jpg", b"\xff\xd8\xff\xe0nothing"), ("c.txt", b"none")]
    with wids.ShardListDataset(write_tar(tmp_path / "a.tar", members)) as dataset:
        with raises(DecodeError, 'a.tar: sample "b" (index 1): field ".jpg": expected jpg data'):
            dataset.table(PARTS)
        table = dataset.table(PARTS, errors="null")
        assert table["h"].to_pylist() == [200, None, None]
        assert table["h"].null_count == 2


@pytest.mark.parametrize("path", [".jpg", ".jpg/depth", ".jpg/height/0", ".jpg.gz/height"])
def test_other_parts_of_pictures_are_refused(path: str, pictures: Path) -> None:
    """The message says which parts there are, if there are any."""
    parts = "" if ".gz" in path else " or one of .jpg/{height,width,orientation}"
    with (
        wids.ShardListDataset(pictures) as dataset,
        raises(ValueError, f"structures,{parts} found {path}, whose values are pictures"),
    ):
        dataset.table([path])


def test_the_command_saves_sizes(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`wids table` takes the same paths."""
    out = pictures.parent / "sizes.parquet"
    assert main(["table", str(pictures), "-c", "h=jpg/height,w=jpg/width", "-o", str(out)]) == 0
    assert wids.load_table(pictures).column("w").to_pylist() == [1200] * 12
    assert "12 rows" in capsys.readouterr().out
