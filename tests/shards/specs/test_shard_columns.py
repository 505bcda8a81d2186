"""The columns of a spec have the shards of its document, and an object only for what is asked."""

from __future__ import annotations

import json
import math
import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import raises
from hypothesis import given
from hypothesis import strategies as st

import wids
from wids.errors import SpecError
from wids.shards.specs import shard_columns
from wids.shards.specs.entries import shard_of
from wids.shards.specs.shard_columns import ShardColumns, columns_of, joined, listed, named
from wids.storage.transport import urls

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)
NAMES = st.one_of(
    st.builds("train-{:06d}.tar".format, st.integers(0, 10**6)),
    st.builds("https://example.com/a/{}.tar?x=1".format, st.integers(0, 9)),
    st.builds("é/ü {}.tar".format, TEXTS),
    st.just("\udcff.tar"),
)
DIGESTS = st.one_of(
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    st.just("0" * 64),
    st.text("0123456789ABCDEF ", max_size=64),
    st.just(" " * 64),
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
USUAL = {
    "nsamples": st.none() | st.integers(0, 1 << 40),
    "filesize": st.integers(0, (1 << 63) - 1),
    "sha256": st.none() | DIGESTS,
}
ENTRIES = st.one_of(
    NAMES,
    st.fixed_dictionaries({"url": NAMES}, optional=USUAL),
    st.fixed_dictionaries(
        {"url": NAMES},
        optional={
            **USUAL,
            "num_samples": st.integers(0, 5),
            "size": st.integers(0, 5),
            "md5sum": st.none() | DIGESTS,
            "dataset": TEXTS,
            "key_split": st.sampled_from(["first", "last"]),
            "index": st.builds("{}.index".format, st.integers(0, 9)),
            "note": JSON_VALUES,
            "é": JSON_VALUES,
        },
    ),
)
BASES = st.sampled_from(["/data", "https://example.com/sub?sig=1", "s3://bucket"])


def plain(num_shards: int) -> list[dict[str, Any]]:
    """Return the entries of a usual document."""
    return [
        {"url": f"train-{n:06d}.tar", "nsamples": n % 7, "filesize": n, "sha256": f"{n + 1:064x}"}
        for n in range(num_shards)
    ]


def columns(entries: list[Any], base: str = "/data") -> ShardColumns:
    """Return the shards of a shardlist."""
    return listed(entries, "a.json", urls.joiner(base), None)


@given(st.lists(ENTRIES, max_size=12), BASES, st.sampled_from([None, "last"]), st.integers(1, 5))
def test_columns_have_the_shards_of_their_entries(
    entries: list[Any], base: str, key_split: Any, length: int
) -> None:
    """Each shard has every value of its entry, however entries are divided into blocks."""
    join = urls.joiner(base)
    wanted = tuple(shard_of(entry, "", join, key_split) for entry in entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_columns, "_BLOCK_LENGTH", length)
        made = listed(entries, "", join, key_split)
    assert made == wanted == tuple(made[n] for n in range(len(made)))
    assert made == columns_of(wanted) == joined([made[:2], wanted[2:]])
    assert pickle.loads(pickle.dumps(made)) == wanted  # noqa: S301 - made here
    for part in (slice(1, 4), slice(None, None, -1), slice(2, 2), slice(-3, None)):
        assert made[part] == wanted[part]
    names, numbers = made.dataset_names(None)
    assert [names[number] for number in numbers] == [shard.dataset or None for shard in wanted]
    assert names == [*dict.fromkeys(shard.dataset or None for shard in wanted)]
    stated = [math.nan if shard.nbytes is None else shard.nbytes for shard in wanted]
    remote = [0 if urls.is_local(s.url) else n for s, n in zip(wanted, stated, strict=True)]
    assert np.array_equal(made.nbytes, np.array(stated, float), equal_nan=True)
    assert np.array_equal(made.remote_nbytes, np.array(remote, float), equal_nan=True)
    assert made.has_remote == any(not urls.is_local(shard.url) for shard in wanted)
    later = made.with_defaults("other", "first")
    assert later == tuple(
        replace(s, dataset=s.dataset or "other", key_split=s.key_split or "first") for s in wanted
    )


def test_usual_entries_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """No object is made for a shard until it is asked for, and then once."""
    monkeypatch.setattr(shard_columns, "shard_of", None)
    made = columns(plain(10_000))
    first = made[7]
    assert first is made[7]
    assert (first.url, first.num_samples, first.nbytes) == ("/data/train-000007.tar", 0, 7)
    assert first.sha256 == f"{8:064x}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nsamples": -1}, ".nsamples: expected a whole number from 0 to 2**63 - 1, found -1"),
        ({"filesize": 1 << 63}, ".filesize: expected a whole number from 0 to 2**63 - 1"),
        ({"nsamples": True}, ".nsamples: expected a whole number from 0 to 2**63 - 1, found True"),
        ({"filesize": 1.0}, ".filesize: expected a whole number from 0 to 2**63 - 1, found 1.0"),
        ({"sha256": 5}, ".sha256: expected text, found int 5"),
        ({"url": ""}, ".url: expected a path or URL"),
        ({"url": "a\0b"}, ".url: expected a path or URL"),
        ({"url": None}, ".url: expected a path or URL, found nothing"),
        ({"key_split": "middle"}, '.key_split: expected "first" or "last"'),
    ],
)
def test_a_bad_entry_of_many_is_named(change: dict[str, Any], message: str) -> None:
    """The error has the number of the entry and its key, in any block."""
    entries: list[Any] = plain(9_000)
    entries[8_500] |= change
    with raises(SpecError, f"a.json: shardlist[8500]{message}"):
        columns(entries)
    entries[8_500] = [1]
    with raises(SpecError, "a.json: shardlist[8500]: expected an object with a url, found list"):
        columns(entries)


def test_references_of_many_shards_are_checked() -> None:
    """What a document must not name is refused among thousands of others (SPEC-12, SPEC-13)."""
    for name, text in (("pipe:echo", "the command pipe:echo"), ("file:///a.tar", "a local file")):
        entries = plain(5_000)
        entries[4_999]["url"] = name
        document = json.dumps({"shardlist": entries}).encode()
        with raises(SpecError, text):
            wids.load_spec("https://host/a.json", read=lambda *_, data=document: data)


def test_a_shard_takes_few_bytes() -> None:
    """Columns of usual entries, and their pickle, are small, and those of a slice are a part."""
    made = columns(plain(50_000))
    assert len(pickle.dumps(made)) < 60 * len(made)
    assert len(pickle.dumps(made[100:200])) < 10_000
    asked = [made[number] for number in range(5_000)]
    assert len(pickle.dumps(made)) < 60 * len(made), len(asked)


def test_counts_of_columns() -> None:
    """Edges are sums of counts, unless one is missing or they do not fit."""
    entries = plain(5_000)
    edges = columns(entries).edges
    assert edges is not None
    assert edges.tolist() == [0, *np.cumsum([n % 7 for n in range(5_000)])]
    most = (1 << 63) - 1
    for counts, last in (((most,), most), ((most, 0), most), ((most, 1), None), ((1, None), None)):
        edges = columns([{"url": "a", "nsamples": count} for count in counts]).edges
        assert (None if edges is None else edges[-1]) == last


def test_specs_of_many_shards_are_joined(tmp_path: Path) -> None:
    """Several specs give one sequence, with the name of each, and a slice of it is one too."""
    for name in "ab":
        spec = wids.load_spec({"name": name, "shardlist": plain(1500)}, base=tmp_path / name)
        spec.save(tmp_path / f"{name}.json")
    with wids.ShardListDataset([tmp_path / "a.json", tmp_path / "b.json"]) as dataset:
        shards = dataset.spec.shards
        assert len(shards) == 3000
        assert shards[1501].dataset == "b"
        assert shards[1501].url == str(tmp_path / "b" / "train-000001.tar")
        assert shards[1490:1510] == tuple(shards[n] for n in range(1490, 1510))
        assert list(dataset.sources) == ["a", "b"]
        assert np.array_equal(dataset.lengths, [n % 7 for n in range(1500)] * 2)
        again = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - made here
        assert (again.spec, again.locate(4500)) == (dataset.spec, dataset.locate(4500))


def test_interleaved_datasets_are_few() -> None:
    """Shards whose datasets alternate share what they have in common."""
    shards = [wids.ShardSpec(f"/{n}.tar", dataset=random.Random(n).choice("ab")) for n in range(99)]
    made = columns_of(shards)
    assert made == tuple(shards)
    assert len(made.commons) == 2


@given(st.lists(NAMES, max_size=12), st.integers(1, 5))
def test_names_alone_are_shards(names: list[str], length: int) -> None:
    """They are those of a list of shards that state nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_columns, "_BLOCK_LENGTH", length)
        assert named(names) == columns_of(map(wids.ShardSpec, names))
        with raises(SpecError, "expected a path or URL, found a NUL"):
            named([*names, "/a\0.tar"])


def test_values_that_no_document_has_are_refused() -> None:
    """Shards that a program makes have values of JSON, and counts that fit."""
    for shard, words in (
        (wids.ShardSpec("/a.tar", extras={"note": object()}), "/a.tar: expected extras that JSON"),
        (wids.ShardSpec("/a.tar", -1), "expected numbers of samples and bytes from 0 to 2**63 - 1"),
        (wids.ShardSpec("/a.tar", nbytes=1 << 70), "expected numbers of samples and bytes"),
        (wids.ShardSpec("/a\0.tar"), "expected a path or URL, found a NUL"),
    ):
        with raises(SpecError, words):
            columns_of([shard])
    assert columns_of([wids.ShardSpec("/a.tar", extras={"n": np.int64(5)})])[0].extras == {"n": 5}
