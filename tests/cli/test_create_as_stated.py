"""``wids create --as-stated``: files of other programs → a spec, without reading shards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from beside_files import shards, write_energon, write_stats
from command import run
from conftest import optional, write_tar

import wids


@pytest.mark.parametrize("form", ["folder", "pattern", "document"])
def test_a_spec_of_what_is_stated(tmp_path: Path, form: str) -> None:
    """Counts and lengths are in the spec, and the command says what is not known."""
    tars = shards(tmp_path / "d")
    (tmp_path / "d" / "sizes.json").write_text(json.dumps({"00000.tar": 10, "00001.tar": 7}))
    for tar in tars:
        tar.write_bytes(b"\0" * tar.stat().st_size)  # reading them would be an error
    name = {"folder": "d/", "pattern": "d/*.tar", "document": "d/sizes.json"}[form]
    output = tmp_path / "d" / "d.json"
    status, out, err = run("create", tmp_path / name, "--as-stated", "-o", output, "-n", "cats")
    assert (status, out) == (0, f"{output}: 2 shards, 17 samples\n")
    assert err == (
        "wids: no shard was read; not known: the digests of 2 shards, the indexes of 2 shards, the "
        "checksums of all members; without --as-stated they are read\n"
    )
    entry = {"url": "00000.tar", "nsamples": 10, "filesize": tars[0].stat().st_size}
    source = {} if form == "document" else {"counts_from": "sizes.json"}
    document = json.loads(output.read_text())
    assert (document["name"], document["shardlist"][0]) == ("cats", {**entry, **source})


def test_a_split_becomes_a_spec(tmp_path: Path) -> None:
    """``--split`` names one of Energon's; the shards can be read for digests too."""
    optional("yaml")
    tars = shards(tmp_path / "d" / "parts", (3, 4))
    write_energon(tmp_path / "d", tars, train=["parts/00001.tar"], val=["parts/00000.tar"])
    for options in (["--as-stated"], []):
        output = tmp_path / f"{len(options)}.json"
        status, out, _ = run("create", tmp_path / "d", "--split", "train", *options, "-o", output)
        assert (status, out) == (0, f"{output}: 1 shard, 4 samples\n")
        assert wids.load_spec(output).name == "train"
    assert run("create", *tars, "--split", "train", "-o", tmp_path / "x.json")[0] == 1


def test_shards_that_nothing_states_are_an_error(tmp_path: Path) -> None:
    """The error names the first of them, and what to do; nothing is written."""
    tars = shards(tmp_path / "d", (3, 4, 5))
    write_stats(tars[0], 3)
    output = tmp_path / "d.json"
    status, _, err = run("create", tmp_path / "d", "--as-stated", "-o", output)
    assert status == 1
    assert "00001.tar and 1 more shard: expected the number of samples in a file beside" in err
    assert not output.exists()
    status, _, err = run("create", tmp_path / "d", "--as-stated", "--digests", "-o", output)
    assert (status, "--digests: expected it without --as-stated" in err) == (1, True)


def test_a_document_and_a_file_that_disagree(tmp_path: Path) -> None:
    """A count of a document is compared with those beside the shards."""
    (tar,) = shards(tmp_path / "d", (3,))
    write_stats(tar, 4)
    (tmp_path / "d" / "sizes.json").write_text('{"00000.tar": 3}')
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"shardlist": [{"url": "d/00000.tar", "nsamples": 5}]}))
    status, _, err = run("create", spec, "--as-stated", "-o", tmp_path / "o.json")
    assert status == 1
    assert "00000.tar: the spec states 5 samples, and " in err


def test_reading_replaces_what_was_stated(tmp_path: Path) -> None:
    """A spec made by reading the shards names no file that counted them before."""
    write_tar(tmp_path / "a.tar", [("a.txt", b"a")])
    spec = tmp_path / "spec.json"
    entry = {"url": "a.tar", "nsamples": 9, "counts_from": "sizes.json"}
    spec.write_text(json.dumps({"shardlist": [entry]}))
    assert wids.build_spec(spec).shards[0].extras == {}
