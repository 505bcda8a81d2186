"""Options of s3fs, gcsfs and adlfs, in the names of obstore."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import optional, raises
from events import LONG_S

from wids.errors import FetchError
from wids.storage.transport.store_settings import (
    NAMES,
    OBSTORE,
    OWN_OPTIONS,
    ObjectLocation,
    completed,
    config_for,
)

DOCS = Path(__file__).parents[3] / "docs" / "object-stores.md"


@pytest.mark.parametrize(
    ("kind", "options", "config", "client"),
    [
        (
            "s3",
            {"key": "k", "secret": "s", "token": "t", "endpoint_url": "http://h", "headers": {}},
            {"access_key_id": "k", "secret_access_key": "s", "session_token": "t",
             "endpoint": "http://h"},
            {},
        ),
        (
            "s3",
            {"client_kwargs": {"region_name": "eu-west-1", "verify": False}, "anon": True,
             "requester_pays": True, "key": None},
            {"region": "eu-west-1", "skip_signature": True, "request_payer": True},
            {"allow_invalid_certificates": True},
        ),
        (
            "s3",
            {"virtual_hosted_style_request": True, "read_timeout": "1500ms", "access_key_id": "k",
             "proxy_url": "http://p"},
            {"virtual_hosted_style_request": True, "access_key_id": "k"},
            {"read_timeout": "1500ms", "proxy_url": "http://p"},
        ),
        ("gcs", {"token": "anon"}, {"skip_signature": True}, {}),
        ("gcs", {"token": "ya29.x"}, {"bearer_token": "ya29.x"}, {}),
        (
            "gcs",
            {"token": {"type": "service_account"}, "requester_pays": "p"},
            {"service_account_key": '{"type": "service_account"}'},
            {"default_headers": {"x-goog-user-project": "p"}},
        ),
        ("gcs", {"token": str(DOCS)}, {"application_credentials": str(DOCS)}, {}),
        (
            "azure",
            {"account_name": "a", "sas_token": "?sig=x"},
            {"account_name": "a", "sas_key": "sig=x"},
            {},
        ),
        (
            "azure",
            {"connection_string": "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=k==;"
             "EndpointSuffix=core.windows.net"},
            {"account_name": "a", "account_key": "k==",
             "endpoint": "https://a.blob.core.windows.net"},
            {},
        ),
    ],
)  # fmt: skip
def test_options_have_counterparts(
    kind: str, options: dict[str, Any], config: dict[str, Any], client: dict[str, Any]
) -> None:
    """The usual options of the fsspec drivers mean the same here, and obstore's are its own."""
    settings = config_for(kind, options)
    assert (settings.config, settings.client) == (config, client)


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        ("s3", {"version_aware": True}, "version_aware"),
        ("s3", {"config_kwargs": {"s3": {"addressing_style": "virtual"}}}, "config_kwargs"),
        ("s3", {"client_kwargs": {"api_version": "x"}}, "client_kwargs.api_version"),
        ("gcs", {"token": "browser"}, "token"),
        ("gcs", {"requester_pays": True}, "requester_pays"),
        ("azure", {"credential": object()}, "credential"),
    ],
)
def test_options_that_obstore_does_not_take_are_named(
    kind: str, options: dict[str, Any], name: str
) -> None:
    """The error names the option, and the driver that may take it."""
    with raises(FetchError, "storage_options:", name, 'driver="fsspec"'):
        config_for(kind, options)


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_obstore_takes_its_names(kind: str) -> None:
    """Each is known to the obstore that is installed, for a store or for its client."""
    optional("obstore")
    from obstore import store

    make = {"s3": store.S3Store, "gcs": store.GCSStore, "azure": store.AzureStore}[kind]
    for name in OBSTORE[kind]:
        settings = config_for(kind, {name: "1"})
        with raises(Exception, "key") as caught:
            make("b", config={**settings.config, "nonsense": ""}, client_options=settings.client)
        assert re.findall(r"key:? '?(\w+)'?", str(caught.value)) == ["nonsense"], name


@pytest.mark.parametrize("verify", [True, False])
def test_a_switch_is_not_a_file_descriptor(*, verify: bool) -> None:
    """Options that switch the check of certificates neither read nor close standard input."""
    code = (
        "import os; from wids.storage.transport.store_settings import config_for;"
        f"config_for('s3', {{'client_kwargs': {{'verify': {verify}}}}}); os.fstat(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=b"", timeout=LONG_S, check=False)
    assert done.returncode == 0


def test_an_unknown_option_lists_those_that_exist() -> None:
    """A typing error is an error, without the value, which may be a secret (SEC-54)."""
    with raises(FetchError, "found 'secert'", "anon", "token", "bearer_token") as caught:
        config_for("gcs", {"secert": "hidden"})
    assert "hidden" not in str(caught.value)
    with raises(FetchError, "endpoint_url", "client_kwargs.verify", "retry_s", "access_key_id"):
        config_for("s3", {"accesskey": "hidden"})
    with raises(FetchError, "client_kwargs.verify", "found str") as caught:
        config_for("s3", {"client_kwargs": {"verify": "/no/such/file"}})


def test_a_variable_that_names_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable, and says what is wrong with the file."""
    monkeypatch.setenv("AWS_CA_BUNDLE", "/no/such/file")
    settings = config_for("s3", {"key": "k", "secret": "s"})
    with raises(FetchError, "$AWS_CA_BUNDLE: expected a file", "(No such file or directory)"):
        completed(ObjectLocation("s3", "bucket", None, ""), settings)


def test_a_connection_string_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stated beside it replaces its parts, and the option replaces the variable."""
    ours = {"connection_string": "AccountName=ours;AccountKey=k;BlobEndpoint=http://h/ours/"}
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING", "AccountName=theirs;SharedAccessSignature=s"
    )
    assert config_for("azure", {}).config == {"account_name": "theirs", "sas_key": "s"}
    expected = {"account_name": "ours", "account_key": "other", "endpoint": "http://h/ours"}
    assert config_for("azure", {"account_key": "other", **ours}).config == expected
    assert config_for("azure", {**ours, "account_key": "other"}).config == expected


@pytest.mark.parametrize(("account", "expected"), [("theirs", "theirs"), (None, "ours")])
def test_the_account_of_a_url_comes_first(account: str | None, expected: str) -> None:
    """The same container of another account has other bytes."""
    settings = config_for("azure", {"account_name": "ours", "anon": True})
    config = completed(ObjectLocation("azure", "data", account, ""), settings).config
    assert config["account_name"] == expected


@pytest.mark.parametrize("secret", ["account_key", "sas_token", "endpoint_url"])
def test_no_account_gets_the_keys_of_another(secret: str) -> None:
    """Nor is a container looked for at the endpoint of another account."""
    settings = config_for("azure", {"account_name": "ours", secret: "https://SECRET"})
    with raises(FetchError, "data@theirs", "beside account_name 'ours'") as caught:
        completed(ObjectLocation("azure", "data", "theirs", ""), settings)
    assert "SECRET" not in str(caught.value)
    for account in ("ours", None):
        assert completed(ObjectLocation("azure", "data", account, ""), settings)


def test_the_documentation_has_every_option() -> None:
    """The tables in docs/object-stores.md are those of the code."""
    page = DOCS.read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.]+)`", page))
    for kind, table in NAMES.items():
        assert {*table, *OBSTORE[kind]} - named == set(), kind
    assert OWN_OPTIONS - named == set()
