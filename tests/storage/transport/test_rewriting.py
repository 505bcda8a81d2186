"""URLs that the environment sends elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import raises
from loopback import Server

from wids.errors import SpecError
from wids.storage import fetch
from wids.storage.transport.urls import rewritten


def test_rules_apply_in_order(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The rules of WDS_REWRITE apply one after the other."""
    (tmp_path / "a").write_bytes(b"local")
    server.page("/data/a", b"remote")
    monkeypatch.setenv("WDS_REWRITE", f"^s3://bucket={server.url}/data;^gs://.*/={tmp_path}/")

    assert fetch.Fetcher().read("s3://bucket/a", 10) == b"remote"
    assert fetch.Fetcher().read("gs://other/a", 10) == b"local"
    monkeypatch.setenv("WDS_REWRITE", "^s3://=pipe:echo ")
    assert fetch.Fetcher().read("s3://a/b=c", 10) == b"a/b=c\n"


@pytest.mark.parametrize("url", ["s3://a;id", "s3://a b", "s3://$(id)", "s3://a|b", "s3://a\nb"])
def test_no_part_of_a_url_is_run(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's URL cannot become a command of the shell (SEC-11)."""
    monkeypatch.setenv("WDS_REWRITE", "^s3://=pipe:echo ")

    with raises(SpecError, "plain characters"):
        fetch.Fetcher().read(url, 10)


@pytest.mark.parametrize("url", ["s3://b/../x", "s3://b/%2e%2e/x", "s3://b\\..\\x"])
def test_no_url_leads_out_of_the_folder(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's URL that becomes a path stays below the folder of the rule (SEC-2)."""
    monkeypatch.setenv("WDS_REWRITE", "^s3://b=/data/mirror")

    with raises(SpecError, "without .."):
        rewritten(url)


@pytest.mark.parametrize("rules", ["nothing", "(=https://me:SECRET@h/?SECRET", "a=\\9"])
def test_malformed_rules_are_errors(rules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable, and no password in it."""
    monkeypatch.setenv("WDS_REWRITE", rules)

    with pytest.raises(SpecError, match="WDS_REWRITE") as caught:
        fetch.Fetcher().read("s3://a/b", 10)
    assert "SECRET" not in str(caught.value)


def test_aistore(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """AIS_ENDPOINT serves ``ais:`` URLs, and those of the schemes in USE_AIS_FOR."""
    for provider in ("s3", "gs", "ais"):
        server.page(f"/{provider}/bucket/a%20b", provider.encode())
    monkeypatch.setenv("AIS_ENDPOINT", server.url + "/")
    monkeypatch.setenv("USE_AIS_FOR", "s3:gs")

    for scheme in ("s3", "gs", "ais"):
        assert fetch.Fetcher().read(f"{scheme}://bucket/a b", 10) == scheme.encode()
