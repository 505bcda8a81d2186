"""Options for servers as text, from the environment and from a command line."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import raises
from loopback import Server
from transfers import DATA, saved

import wids
from wids.storage.transport.schemes import assignment, from_environment, header, merged


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("anon=true", {"anon": True}),
        ("key=AKIA=/+", {"key": "AKIA=/+"}),
        ('key="12"', {"key": "12"}),
        ("client_kwargs.region_name=eu-west-1", {"client_kwargs": {"region_name": "eu-west-1"}}),
        ("config_kwargs.s3.addressing_style=path",
         {"config_kwargs": {"s3": {"addressing_style": "path"}}}),
        ('client_kwargs={"a": 1}', {"client_kwargs": {"a": 1}}),
        ("headers.X-Pin=007", {"headers": {"X-Pin": "007"}}),
        ('s3://my.bucket/={"anon": true}', {"s3://my.bucket/": {"anon": True}}),
        ("token=", {"token": ""}),
    ],
)  # fmt: skip
def test_an_assignment(text: str, expected: dict[str, Any]) -> None:
    """A value is JSON where it is JSON, else text; a dot leads into a dict."""
    assert merged({}, [assignment(text)]) == expected


def test_what_comes_later_takes_precedence() -> None:
    """Options are added to those of the environment, also inside of dicts."""
    first = {"anon": True, "headers": {"x-token": "old", "A": "1"}, "client_kwargs": {"a": 1}}

    found = merged(
        first, [assignment("anon=false"), assignment("client_kwargs.b=2"), header("X-Token: new")]
    )

    assert found == {
        "anon": False,
        "headers": {"A": "1", "X-Token": "new"},
        "client_kwargs": {"a": 1, "b": 2},
    }
    assert first["headers"] == {"x-token": "old", "A": "1"}
    assert header("Authorization: Basic a:b ") == (("headers", "Authorization"), "Basic a:b")


@pytest.mark.parametrize(
    ("parse", "text"),
    [(header, "SECRET"), (header, ": SECRET"), (assignment, "SECRET"), (assignment, "=SECRET")],
)
def test_errors_do_not_quote_secrets(parse: Any, text: str) -> None:
    """What may be a token is not shown (SEC-54)."""
    with pytest.raises(ValueError, match="expected") as caught:
        parse(text)
    assert "SECRET" not in str(caught.value)
    with raises(ValueError, "client_kwargs.a: expected client_kwargs to be a dict", "found a str"):
        merged({"client_kwargs": "SECRET"}, [assignment("client_kwargs.a=1")])


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
