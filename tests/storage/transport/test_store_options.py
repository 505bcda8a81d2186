"""Options of s3fs, gcsfs and adlfs, in the names of obstore."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import optional, raises

from wids.errors import FetchError
from wids.storage.transport.store_options import (
    OWN_OPTIONS,
    TABLES,
    NoCounterpartError,
    settings_for,
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
             "requester_pays": True, "key": None, "default_block_size": 5},
            {"region": "eu-west-1", "skip_signature": True, "request_payer": True},
            {"allow_invalid_certificates": True},
        ),
        (
            "s3",
            {"config_kwargs": {"s3": {"addressing_style": "virtual"}, "read_timeout": 1.5,
             "retries": {"max_attempts": 3}, "proxies": {"http": "http://p", "https": "http://p"}}},
            {"virtual_hosted_style_request": True},
            {"read_timeout": "1500ms", "proxy_url": "http://p"},
        ),
        ("gcs", {"token": "anon", "project": "p"}, {"skip_signature": True}, {}),
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
    """What people pass to the fsspec drivers means the same here."""
    settings = settings_for(kind, options)
    assert (settings.config, settings.client) == (config, client)


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        ("s3", {"s3_additional_kwargs": {"ACL": "private"}}, "s3_additional_kwargs.ACL"),
        ("s3", {"version_aware": True}, "version_aware"),
        ("s3", {"client_kwargs": {"api_version": "x"}}, "client_kwargs.api_version"),
        (
            "s3",
            {"config_kwargs": {"proxies": {"http": "a", "https": "b"}}},
            "config_kwargs.proxies",
        ),
        ("gcs", {"token": "browser"}, "token"),
        ("gcs", {"requester_pays": True}, "requester_pays"),
        ("azure", {"credential": object()}, "credential"),
    ],
)
def test_options_without_a_counterpart_are_named(
    kind: str, options: dict[str, Any], name: str
) -> None:
    """They are left to the fsspec driver, and its absence is an error that names the option."""
    with raises(NoCounterpartError, name.partition(".")[0]):
        settings_for(kind, options)


@pytest.mark.parametrize("verify", [True, False])
def test_a_switch_is_not_a_file_descriptor(*, verify: bool) -> None:
    """Options that switch the check of certificates neither read nor close standard input."""
    code = (
        "import os; from wids.storage.transport.store_options import settings_for;"
        f"settings_for('s3', {{'client_kwargs': {{'verify': {verify}}}}}); os.fstat(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=b"", timeout=30, check=False)
    assert done.returncode == 0


def test_an_unknown_option_lists_those_that_exist() -> None:
    """A typing error is an error, without the value, which may be a secret (SEC-54)."""
    with raises(FetchError, "found 'secert'", "access", "project", "token") as caught:
        settings_for("gcs", {"secert": "hidden"})
    assert "hidden" not in str(caught.value)
    with raises(FetchError, "endpoint_url", "client_kwargs", "requester_pays", "retry_s"):
        settings_for("s3", {"accesskey": "hidden"})
    with raises(FetchError, "client_kwargs.verify", "found str") as caught:
        settings_for("s3", {"client_kwargs": {"verify": "/no/such/file"}})


@pytest.mark.parametrize(
    ("kind", "package", "name"),
    [
        ("s3", "s3fs", "S3FileSystem"),
        ("gcs", "gcsfs", "GCSFileSystem"),
        ("azure", "adlfs", "AzureBlobFileSystem"),
    ],
)
def test_every_option_of_the_drivers_is_known(kind: str, package: str, name: str) -> None:
    """None of the installed s3fs, gcsfs and adlfs is refused as unknown."""
    driver = optional(package) if kind == "s3" else pytest.importorskip(package)
    names: set[str] = set()
    for of in getattr(driver, name).__mro__:
        if of.__module__.partition(".")[0] == package:
            names |= set(inspect.signature(of.__init__).parameters)
    groups = {name.partition(".")[0] for name in (*TABLES[kind], *OWN_OPTIONS)}
    assert len(names) > 10
    assert names - groups - {"self", "args", "kwargs"} == set()


def test_the_documentation_has_every_option() -> None:
    """The tables in docs/object-stores.md are those of the code."""
    page = DOCS.read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.]+)`", page))
    for kind, table in TABLES.items():
        assert set(table) - named == set(), kind
    assert OWN_OPTIONS - named == set()
