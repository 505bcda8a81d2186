"""Pages of a gallery: what `next` and `previous` show."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import write_shards, write_tar

import wids


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """The spec of 20 samples in two shards."""
    return write_shards(tmp_path, [12, 8])


def test_a_view_has_the_fields_of_its_shards(tmp_path: Path) -> None:
    """In its summary and in ``fields``; so does one in another order."""
    shards = [
        write_tar(tmp_path / "a.tar", [("1.txt", b""), ("2.txt", b"")]),
        write_tar(tmp_path / "b.tar", [("3.cls", b"1"), ("4.cls", b"2")]),
    ]
    with wids.ShardListDataset(shards) as dataset:
        assert dataset.fields == [".txt", ".cls"]
        assert dataset[2:].fields == dataset[[3, 2]].fields == [".cls"]
        assert "<code>.txt</code>" not in dataset[2:]._repr_html_()
        assert dataset[1:3].fields == [".txt", ".cls"]


@pytest.mark.parametrize("seed", [None, 3])
def test_pages_have_each_sample_once(spec: Path, seed: int | None) -> None:
    """`next` leads through all samples, and `previous` back."""
    with wids.ShardListDataset(spec) as dataset:
        first = dataset.show(8, seed=seed)
        second, third = first.next(), first.next().next()
        assert [len(page.indices) for page in (first, second, third)] == [8, 8, 4]
        assert sorted(first.indices + second.indices + third.indices) == list(range(20))
        assert third.previous().indices == second.indices
        assert second.previous().previous().indices == first.indices
        assert third.next().indices == []
        assert "no more samples" in third.next()._repr_html_()
        assert third.next().previous().indices == third.indices


def test_a_page_says_which_one_it_is(spec: Path) -> None:
    """The note below a page has its place, and how to turn it."""
    with wids.ShardListDataset(spec) as dataset:
        html = dataset.show(8)._repr_html_()
        assert "8 of 20 samples; next() shows more" in html
        assert "samples 8 to 15 of 20" in dataset.show(8).next()._repr_html_()
        assert "next()" not in dataset.show(20)._repr_html_()


@pytest.mark.parametrize("seed", [None, 1])
def test_pages_of_chosen_samples(
    spec: Path, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A predicate is tried further on, where the page before stopped."""
    monkeypatch.setattr("wids.look.notebook._MAX_TESTED", 9)
    seen: list[str] = []

    def is_even(sample: dict[str, object]) -> bool:
        seen.append(str(sample["__key__"]))
        return int(sample[".cls"]) % 2 == 0  # type: ignore[call-overload]

    with wids.ShardListDataset(spec) as dataset:
        pages = [dataset.show(4, seed=seed, where=is_even)]
        while pages[-1].indices or len(seen) < 20:
            pages.append(pages[-1].next())
        found = [index for page in pages for index in page.indices]
        assert sorted(found) == list(range(0, 20, 2))
        assert len(seen) == len(set(seen)) == 20
        assert pages[2].previous().indices == pages[1].indices


def test_the_order_of_a_seed_is_that_of_the_page(spec: Path) -> None:
    """`wids browse` and a notebook show the same samples for the same seed."""
    from looks import browsing

    with wids.ShardListDataset(spec) as dataset, browsing(spec) as client:
        shown = [card["index"] for card in client.json("samples?seed=5&count=9")["cards"]]
        assert dataset.show(9, seed=5).indices == shown


def test_notes_say_what_is_shown(tmp_path: Path) -> None:
    """A random order has no range of indices; a view no size of its own; local files no cache."""
    shard = write_tar(tmp_path / "a.tar", [(f"{n}.txt", b"x") for n in range(9)])
    with wids.ShardListDataset(
        wids.build_spec([shard], dataset_index=tmp_path / "a.index")
    ) as dataset:
        gallery = dataset.show(4, seed=1)
        assert "4 of 9 samples, in the random order of seed 1; next()" in gallery._repr_html_()
        following = gallery.next()
        assert "5 to 8 of 9 samples, in the random order of seed 1" in following._repr_html_()
        assert sorted({*gallery.indices, *following.indices}) != list(range(8))
        assert "samples 4 to 7 of 9" in dataset.show(4).next()._repr_html_()
        whole, part = dataset._repr_html_(), dataset[0:3]._repr_html_()
        assert "<small>size</small>" in whole
        assert "<small>size</small>" not in part
        assert "<small>size of all shards</small>" in part
        assert "<small>cache</small>" not in whole
