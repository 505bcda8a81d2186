"""``DatasetSpec`` → the JSON document, written and loaded again."""

from __future__ import annotations

import doctest
import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from conftest import raises

from wids import DatasetSpec, ShardSpec, load_spec
from wids.shards.specs import loader, model


@pytest.mark.parametrize("module", [loader, model])
def test_examples_in_docstrings_run(module: ModuleType) -> None:
    """Each example prints what it shows."""
    failed, attempted = doctest.testmod(module)
    assert attempted
    assert not failed


def test_saved_spec_loads_alike(tmp_path: Path) -> None:
    """A saved spec names the shards in its folder by relative paths, and loads as the same spec.

    SPEC-15.
    """
    (tmp_path / "sub").mkdir()
    spec = DatasetSpec(
        (
            ShardSpec(str(tmp_path / "a.tar"), 3, 1024, md5sum="x", key_split="last"),
            ShardSpec(str(tmp_path / "sub" / "b.tar"), 0, extras={"lang": "é"}),
            ShardSpec("https://h/c.tar?sig=1", dataset="other"),
        ),
        name="d",
        extras={"__kind__": "mine", "info": {"a": 1}},
        weights={"other": 0.5},
    )
    os.umask(os.umask(0o077))

    spec.save(tmp_path / "d.json")

    assert load_spec(tmp_path / "d.json") == spec
    text = (tmp_path / "d.json").read_text(encoding="utf-8")
    assert [s["url"] for s in json.loads(text)["shardlist"]] == [
        *("a.tar", "sub/b.tar"),
        "https://h/c.tar?sig=1",
    ]
    assert sorted(os.listdir(tmp_path)) == ["d.json", "sub"]

    DatasetSpec(spec.shards[:2]).save(tmp_path / "e.json")
    assert (tmp_path / "e.json").stat().st_mode & 0o777 == 0o644


def test_failed_save_leaves_the_old_spec(tmp_path: Path) -> None:
    """If a spec cannot be written, the old file stays, and no temporary file (SPEC-15)."""
    path = tmp_path / "d.json"
    path.write_text("old")

    with raises(TypeError, "not JSON serializable"):
        DatasetSpec((ShardSpec("a.tar", extras={"x": object()}),)).save(path)

    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["d.json"]


def test_awkward_names_survive_saving(tmp_path: Path) -> None:
    """A path that looks like a home folder, a URL or a command loads as the same path."""
    names = ["~root/0.tar", "file:1.tar", "pipe:x.tar", "C#/%20?.tar", "a b.tar"]
    spec = DatasetSpec(tuple(ShardSpec(str(tmp_path / name)) for name in names))

    spec.save(tmp_path / "d.json")

    assert load_spec(tmp_path / "d.json").shards == spec.shards


def test_a_spec_without_counts() -> None:
    """Only the counts of the shards are left out."""
    shard = ShardSpec("/a.tar", 3, 1024, sha256="x", key_split="last", extras={"a": 1})
    spec = DatasetSpec((shard, ShardSpec("/b.tar")), "d", "/d.index", {"info": "i"})

    assert spec.without_counts() == replace(
        spec, shards=(replace(shard, num_samples=None), ShardSpec("/b.tar"))
    )
    assert spec.shards[0].num_samples == 3


def test_classes_are_made_once() -> None:
    """A loop may ask for the names of classes, of which there may be thousands, for each sample."""
    spec = DatasetSpec((), extras={"classes": ["cat", 7]})
    assert spec.classes is spec.classes
    assert spec.classes == ["cat", "7"]
    assert replace(spec, extras={"classes": ["dog"]}).classes == ["dog"]
    copy = pickle.loads(pickle.dumps(spec))  # noqa: S301 - made here
    assert copy == spec
    assert copy.classes == ["cat", "7"]
    assert DatasetSpec(()).classes == []
