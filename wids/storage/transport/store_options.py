"""Translate the options that people pass to s3fs, gcsfs and adlfs into those of obstore.

`TABLES` is the only table of them, and docs/object-stores.md shows it. A name with a dot is an
option inside a dict: ``client_kwargs.region_name``. Nothing here imports a driver.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from wids.errors import FetchError

OWN_OPTIONS: Final = frozenset(("headers", "timeout", "retry_s", "deadline_s", "driver"))
"""Options of this package, which no driver takes."""


class NoCounterpartError(Exception):
    """An option, or a value of it, that only a driver of fsspec understands."""


@dataclass(frozen=True)
class Settings:
    """How to open the buckets of one kind of store.

    Attributes:
        config: Configuration of the store, in obstore's names.
        client: Configuration of its HTTP client, in obstore's names.
        profile: Profile of the AWS configuration files, or None.
    """

    config: dict[str, Any] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict)
    profile: str | None = None


class Row(NamedTuple):
    """What becomes of an option.

    Attributes:
        target: Its name in obstore; ``client.…`` for the HTTP client; ``""`` if it is ignored; None
            if only a driver of fsspec has it.
        convert: Returns the value for obstore.
    """

    target: str | None
    convert: Callable[[Any], Any] = lambda value: value


def _raise_no_counterpart(_: Any) -> Any:
    raise NoCounterpartError


def _certificates(verify: Any) -> Any:
    """Return the PEM text of a file of certificates; None for the usual ones."""
    if isinstance(verify, bool):  # not the file with this number
        return None
    with open(verify, "rb") as file:
        return file.read()


def _seconds(value: Any) -> str:
    return f"{float(value) * 1000:.0f}ms"


def _is_virtual(style: Any) -> bool | None:
    return None if style == "auto" else style == "virtual"


def _is_unsigned(version: Any) -> bool | None:
    # botocore's `UNSIGNED` is an object of its own; every named version signs.
    return None if isinstance(version, str) else True


def _proxy(proxies: Any) -> Any:
    found = set(proxies.values())
    return found.pop() if len(found) == 1 else _raise_no_counterpart(proxies)


def _google_project(payer: Any) -> Any:
    """Return the header for a bucket whose requester pays: the value is the project to bill."""
    if not payer:
        return None
    if not isinstance(payer, str):
        raise NoCounterpartError
    return {"x-goog-user-project": payer}


_FSSPEC: Final = Row(None)
_IGNORED: Final = Row("")
_VERIFY: Final = Row("client.root_certificate", _certificates)

_S3: Final[Mapping[str, Row]] = {
    "key": Row("access_key_id"),
    "username": Row("access_key_id"),
    "client_kwargs.aws_access_key_id": Row("access_key_id"),
    "secret": Row("secret_access_key"),
    "password": Row("secret_access_key"),
    "client_kwargs.aws_secret_access_key": Row("secret_access_key"),
    "token": Row("session_token"),
    "client_kwargs.aws_session_token": Row("session_token"),
    "profile": Row("profile"),
    "anon": Row("skip_signature", bool),
    "config_kwargs.signature_version": Row("skip_signature", _is_unsigned),
    "endpoint_url": Row("endpoint"),
    "client_kwargs.endpoint_url": Row("endpoint"),
    "region": Row("region"),
    "client_kwargs.region_name": Row("region"),
    "config_kwargs.region_name": Row("region"),
    "client_kwargs.verify": _VERIFY,
    "requester_pays": Row("request_payer", bool),
    "config_kwargs.s3.addressing_style": Row("virtual_hosted_style_request", _is_virtual),
    "config_kwargs.connect_timeout": Row("client.connect_timeout", _seconds),
    "config_kwargs.read_timeout": Row("client.read_timeout", _seconds),
    "config_kwargs.proxies": Row("client.proxy_url", _proxy),
    **dict.fromkeys(
        (
            *("client_kwargs.use_ssl", "use_ssl", "config_kwargs.retries.max_attempts"),
            *("config_kwargs.retries.mode", "config_kwargs.max_pool_connections"),
            *("config_kwargs.request_checksum_calculation", "cache_regions", "max_concurrency"),
            "local_expiry_check",
            *("config_kwargs.response_checksum_validation", "fixed_upload_size"),
        ),
        _IGNORED,
    ),
    **dict.fromkeys(("session", "version_aware", "s3_additional_kwargs"), _FSSPEC),
}

_GCS: Final[Mapping[str, Row]] = {
    "token": Row("token"),  # see `_google_token`
    "anon": Row("skip_signature", bool),
    "endpoint_url": Row("base_url"),
    "requester_pays": Row("client.default_headers", _google_project),
    "timeout": _IGNORED,
    **dict.fromkeys(
        ("project", "access", "consistency", "cache_timeout", "check_connection",
         "secure_serialize", "default_location", "location", "mrd_pool_cache_size",
         "max_mrd_pool_cache_queue_size", "requests_timeout"),
        _IGNORED,
    ),
    **dict.fromkeys(
        ("session_kwargs", "version_aware", "generation", "experimental", "finalize_on_close"),
        _FSSPEC,
    ),
}  # fmt: skip

_AZURE: Final[Mapping[str, Row]] = {
    "account_name": Row("account_name"),
    "account_key": Row("account_key"),
    "sas_token": Row("sas_key", lambda token: str(token).lstrip("?")),
    "connection_string": Row("connection_string"),  # see `_azure_connection`
    "client_id": Row("client_id"),
    "client_secret": Row("client_secret"),
    "tenant_id": Row("tenant_id"),
    "anon": Row("skip_signature", bool),
    "endpoint_url": Row("endpoint"),
    "account_host": Row("endpoint", lambda host: f"https://{host}"),
    **dict.fromkeys(
        ("max_concurrency", "location_mode", "socket_timeout", "connection_timeout", "read_timeout",
         "exclude_shared_token_cache_credential", "exclude_environment_credential",
         "exclude_interactive_browser_credential", "assume_container_exists"),
        _IGNORED,
    ),
    **dict.fromkeys(("credential", "request_session", "version_aware", "is_emulator"), _FSSPEC),
}  # fmt: skip

_OF_ALL: Final[Mapping[str, Row]] = dict.fromkeys(
    (
        *("default_block_size", "blocksize", "block_size", "default_fill_cache", "asynchronous"),
        *("default_cache_type", "loop", "batch_size", "skip_instance_cache", "use_listings_cache"),
        *("listings_expiry_time", "max_paths"),
    ),
    _IGNORED,
)
"""Options of every fsspec file system: blocks and listings that are not cached here."""

TABLES: Final[Mapping[str, Mapping[str, Row]]] = {
    "s3": {**_S3, **_OF_ALL},
    "gcs": {**_GCS, **_OF_ALL},
    "azure": {**_AZURE, **_OF_ALL},
}
"""What becomes of each option, by kind of store."""


def settings_for(kind: str, options: Mapping[str, Any]) -> Settings:
    """Return the settings that a caller's options stand for.

    Raises:
        FetchError: An option is unknown; the error lists those that exist.
        NoCounterpartError: An option is known only to a driver of fsspec; its text is the name.
    """
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for name, value in _flat(options, TABLES[kind]):
        row = TABLES[kind].get(name, _FSSPEC)
        # Off, empty or not set, as the drivers have them by default.
        if value is None or (row.target is None and not value):
            continue
        try:
            converted = row.convert(value) if row.target is not None else _raise_no_counterpart(0)
        except NoCounterpartError:
            raise NoCounterpartError(name) from None
        except (OSError, ValueError, TypeError, AttributeError):
            raise FetchError(
                f"storage_options: {name}: expected a value that its driver takes, found "
                f"{type(value).__name__}; see docs/object-stores.md"
            ) from None
        if name == "client_kwargs.verify" and value is False:
            client["allow_invalid_certificates"] = True
        elif row.target and converted is not None:
            inside = row.target.startswith("client.")
            (client if inside else config)[row.target.removeprefix("client.")] = converted
    return _with_own(kind, options, config, client)


def _with_own(
    kind: str, options: Mapping[str, Any], config: dict[str, Any], client: dict[str, Any]
) -> Settings:
    """Add what no single option says."""
    if "timeout" in options and kind != "gcs":
        client.setdefault("read_timeout", _seconds(options["timeout"]))
    profile = config.pop("profile", None)
    if "token" in config and kind == "gcs":
        config |= _google_token(config.pop("token"))
    connection = config.pop("connection_string", None)
    if kind == "azure":
        connection = connection or os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    if connection:
        config = _azure_connection(connection) | config
    return Settings(config, client, profile)


def _flat(
    options: Mapping[str, Any], table: Mapping[str, Row], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield options with dotted names: a dict that is no option itself is a group of them."""
    known = {name.partition(".")[0] for name in table}
    for name, value in options.items():
        full = prefix + name
        if not prefix and name in OWN_OPTIONS:
            continue
        if not prefix and name not in known:
            raise FetchError(
                f"storage_options: expected options that exist, found {name!r:.60}; they are "
                + ", ".join(sorted(known | OWN_OPTIONS))
            )
        if isinstance(value, Mapping) and full not in table:
            yield from _flat(value, table, full + ".")
        else:
            yield full, value


def _google_token(token: Any) -> dict[str, Any]:
    """Return the settings for what gcsfs calls a token."""
    if token == "anon":  # noqa: S105 - a word, not a secret
        return {"skip_signature": True}
    if token in ("google_default", "cloud"):
        return {}
    if isinstance(token, Mapping) and token.get("type") == "service_account":
        return {"service_account_key": json.dumps(dict(token))}
    if not isinstance(token, str) or token in ("cache", "browser"):
        raise NoCounterpartError("token")
    if os.path.exists(token):
        return {"application_credentials": token}
    return {"bearer_token": token}


def _azure_connection(text: str) -> dict[str, Any]:
    """Return the settings that a connection string of Azure states."""
    parts = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    names = {"AccountName": "account_name", "AccountKey": "account_key",
             "SharedAccessSignature": "sas_key", "BlobEndpoint": "endpoint"}  # fmt: skip
    found = {ours: parts[name].rstrip("/") for name, ours in names.items() if name in parts}
    if "AccountKey" in parts:
        found["account_key"] = parts["AccountKey"]
    if "endpoint" not in found and "EndpointSuffix" in parts:
        protocol = parts.get("DefaultEndpointsProtocol", "https")
        account = found.get("account_name", "")
        found["endpoint"] = f"{protocol}://{account}.blob.{parts['EndpointSuffix']}"
    return found
