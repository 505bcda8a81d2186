"""Options for servers on the command line: headers, options of drivers, and the environment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command import write_bare_shards
from conftest import raises
from loopback import Server

import wids
from wids.cli import main as cli
from wids.cli.server_options import assignment, header, merged

SECRET = "Bearer a-secret-token"  # noqa: S105 - of the server of these tests


@pytest.fixture
def site(server: Server, tmp_path: Path) -> str:
    """The URL of a spec whose server wants a token for every file; its shards are beside it."""
    folder = tmp_path / "published"
    folder.mkdir()
    paths = sorted(write_bare_shards(folder).glob("*.tar"))
    spec = wids.build_spec([str(path) for path in paths], dataset_index=folder / "train.index")
    spec.save(folder / "train.json")
    for path in folder.iterdir():
        server.page(f"/{path.name}", path.read_bytes(), needs=("Authorization", SECRET))
    return f"{server.url}/train.json"


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


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["info", "SPEC"], "samples  20"),
        (["sample", "SPEC", "12"], "text 12"),
        (["verify", "SPEC", "-j", "1"], "no problems"),
        (["prefetch", "SPEC"], "3 fetched now"),
        (["cache", "check", "SPEC"], "0 of 3 shards"),
        (["create", "SHARDS", "-j", "1", "-o", "OUT"], "3 shards, 20 samples"),
    ],
)
def test_every_command_that_reads_urls(
    arguments: list[str],
    shown: str,
    site: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A header as an option, or in the environment; without it the server refuses."""
    shards = site.replace("train.json", "train-{000000..000002}.tar")
    names = {"SPEC": site, "SHARDS": shards, "OUT": str(tmp_path / "out.json")}
    arguments = [names.get(argument, argument) for argument in arguments]

    assert cli.main(arguments) == 1
    assert "403" in "".join(capsys.readouterr())
    assert cli.main([*arguments, "--header", f"Authorization: {SECRET}"]) == 0
    assert shown in "".join(capsys.readouterr())
    monkeypatch.setenv("WIDS_STORAGE_OPTIONS", json.dumps({"headers": {"Authorization": SECRET}}))
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "another-cache"))
    assert cli.main(arguments) == 0
    assert shown in "".join(capsys.readouterr())


def test_secrets_are_in_no_file_and_no_message(
    site: str, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A spec, a dataset index, a journal, the cache and errors show no option (SEC-54)."""
    shards = site.replace("train.json", "train-{000000..000002}.tar")
    options = ["--header", f"Authorization: {SECRET}", "--storage-option", "secret=a-secret-token"]
    output = tmp_path / "out.json"
    server.page("/train-000002.tar", b"no tar", needs=("Authorization", SECRET))

    assert cli.main(["create", shards, "-o", str(output), "-j", "2", *options]) == 1
    good = shards.replace("2}", "1}")
    assert cli.main(["create", good, "-o", str(output), "-j", "2", *options]) == 0
    assert cli.main(["verify", site, "-j", "1", *options]) == 1
    assert cli.main(["sample", site, "1", *options]) == 0
    assert cli.main(["info", site.replace("train.json", "x.json"), *options]) == 1
    with pytest.raises(SystemExit, match="2"):
        cli.main(["info", site, "--header", "a-secret-token"])

    shown = "".join(capsys.readouterr())
    assert "expected 'Name: value'" in shown
    assert "a-secret-token" not in shown
    folders = (tmp_path, Path(os.environ["WIDS_CACHE"]))
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path for path in files if b"a-secret-token" in path.read_bytes()]
