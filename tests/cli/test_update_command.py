"""``wids update``: a spec → the same with changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import run, write_bare_shards

from wids import load_spec


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of three shards without a spec."""
    return write_bare_shards(tmp_path)


def test_update(shards: Path) -> None:
    """The changes of ``widsindex update``; the previous file stays beside the new one."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec)
    before = json.loads(spec.read_text())

    assert run("update", spec, "-n", "new", "-i", "text", "-b", "https://h/x/", "-k")[0] == 0
    document = json.loads(spec.read_text())
    assert (document["name"], document["info"], document["keep"]) == ("new", "text", True)
    assert load_spec(spec).shards[0].url == "https://h/x/train-000000.tar"
    assert json.loads((shards / "train.json.bak").read_text()) == before

    run("update", spec, "-K", "--dir", "s3://bucket/a")
    assert json.loads(spec.read_text())["keep"] is False
    assert load_spec(spec).shards[0].url == "s3://bucket/a/train-000000.tar"
    run("update", spec, "--rebase")
    document = json.loads(spec.read_text())
    assert document["base"] == "s3://bucket/a/"
    assert document["shardlist"][0]["url"] == "train-000000.tar"
    run("update", spec, "--nodir", "--base", ".")
    assert load_spec(spec).shards[0].url == str(shards / "train-000000.tar")


def test_update_that_would_break_a_spec(tmp_path: Path) -> None:
    """Shards in several folders have no common base; the file stays as it is."""
    spec = tmp_path / "a.json"
    spec.write_text(json.dumps({"shardlist": ["x/a.tar", "y/a.tar"]}))
    before = spec.read_text()

    status, _, err = run("update", spec, "--rebase")

    assert (status, spec.read_text()) == (1, before)
    assert "expected all shards in one folder to rebase to, found 2" in err


def test_update_keeps_permissions_link_and_previous_bytes(shards: Path) -> None:
    """Permissions stay, so does the link to the file, and .bak has the previous bytes."""
    spec = shards / "train.json"
    run("create", shards, "-o", spec)
    spec.chmod(0o600)
    before = spec.read_bytes()
    link = shards / "link.json"
    link.symlink_to(spec)

    assert run("update", link, "--name", "x")[0] == 0

    assert link.is_symlink()
    assert load_spec(spec).name == "x"
    assert spec.stat().st_mode & 0o777 == 0o600
    assert (shards / "train.json.bak").read_bytes() == before
