"""Damaged bytes are shown with a remark, on the page and in notebooks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from looks import browsing, peeking, write

import wids


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """The spec of 60 samples, in which a bit of the captions 12 and 14 was flipped."""
    spec = write(tmp_path, 60)
    tar = tmp_path / "looks-000000.tar"
    data = tar.read_bytes()
    for number in (b"12", b"14"):
        assert data.count(b"caption " + number) == 1
        data = data.replace(b"caption " + number, b"captiom " + number)
    tar.write_bytes(data)
    return spec


def test_the_page_says_which_samples_are_damaged(damaged: Path) -> None:
    """Cards name the field, the page states the reason once, and a sample its own."""
    with browsing(damaged) as client:
        page = client.json("samples?start=11&count=4")
        html = [card["html"] for card in page["cards"]]
        assert ["damaged: .txt" in text for text in html] == [False, True, False, True]
        assert "captiom 12" in html[1]
        ((problem, count),) = page["problems"].items()
        assert "bytes of .txt are not those that the index describes" in problem
        assert count == 2
        assert "not those that the index describes" in client.json("sample/12")["html"]
        assert "captiom 12" in client.json("sample/12")["html"]
        assert "index describes" not in client.json("sample/13")["html"]


def test_a_notebook_says_which_samples_are_damaged(damaged: Path) -> None:
    """A gallery shows damaged samples, with the reason above them."""
    with wids.ShardListDataset(damaged) as dataset:
        html = dataset[11:15].show()._repr_html_()
    assert html.count("damaged: .txt") == 2
    assert "2 samples: the bytes of .txt are not those that the index describes" in html


def test_an_index_without_checksums_knows_of_no_damage(damaged: Path) -> None:
    """Shards that were indexed here are shown as they are, whole or by a look at one."""
    spec = json.loads(damaged.read_text())
    damaged.write_text(json.dumps({**spec, "index": None}))
    with browsing(damaged) as client, peeking(damaged) as glimpse:
        assert client.json("samples?start=11&count=4")["problems"] == {}
        assert glimpse.json("shard/0/samples?start=11&count=4")["problems"] == {}
