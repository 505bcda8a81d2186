"""Options for servers from the environment."""

from __future__ import annotations

import pytest
from conftest import raises
from loopback import Server
from transfers import DATA, saved

import wids
from wids.storage.transport.schemes import from_environment


@pytest.mark.parametrize("text", ['{"key": "SECRET"', '["SECRET"]', "[" * 100_000, "key=SECRET"])
def test_a_malformed_variable(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable and not what it has (SEC-54)."""
    monkeypatch.setenv("WIDS_STORAGE_OPTIONS", text)
    with pytest.raises(ValueError, match="WIDS_STORAGE_OPTIONS: expected a JSON object") as caught:
        from_environment()
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_variable_is_the_default(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library reads it too, unless options are passed."""
    url = server.page("/a", DATA, needs=("Authorization", "Bearer T"))
    monkeypatch.setenv("WIDS_STORAGE_OPTIONS", '{"headers": {"Authorization": "Bearer T"}}')

    assert saved(url) == DATA
    with raises(wids.FetchError, "403"):
        saved(url, storage_options={})


def test_a_spec_remembers_where_it_came_from(server: Server) -> None:
    """Options go to the server of the document only, in whatever steps it is loaded (SEC-9)."""
    options = {"headers": {"X-Token": "T"}}
    other = Server()
    try:
        target = other.page("/a.tar", b"no tar")
        spec = wids.load_spec(server.page("/train.json", {"shardlist": [target]}))
        assert spec.origin == server.url
        assert spec.without_counts().origin == server.url
        with pytest.raises(wids.WidsError):
            wids.ShardListDataset(spec, storage_options=options)
        wids.verify_spec(spec, storage_options=options)
        with pytest.raises(wids.WidsError):
            wids.build_spec(spec, storage_options=options)
        assert len(other.log) >= 3
        assert not [r for r in other.log if "x-token" in r.headers]
        with pytest.raises(wids.WidsError):  # the caller's own list
            wids.ShardListDataset([target], storage_options=options)
        assert other.log[-1].headers["x-token"] == "T"
    finally:
        other.close()
