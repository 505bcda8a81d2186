"""Translate a caller's options into those of obstore, which takes its own names as well.

`NAMES` is the only table of them, and docs/object-stores.md shows it. A name with a dot is an
option inside a dict: ``client_kwargs.region_name``. Nothing here imports a driver.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from wids.errors import FetchError

OWN_OPTIONS: Final = frozenset(("headers", "timeout", "retry_s", "deadline_s", "driver"))
"""Options of this package, which no driver takes."""


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


NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "s3": {
        "key": "access_key_id",
        "secret": "secret_access_key",
        "token": "session_token",
        "profile": "profile",
        "anon": "skip_signature",
        "endpoint_url": "endpoint",
        "client_kwargs.endpoint_url": "endpoint",
        "client_kwargs.region_name": "region",
        "client_kwargs.verify": "root_certificate",
        "requester_pays": "request_payer",
    },
    "gcs": {
        "token": "token",  # see `_google_token`
        "anon": "skip_signature",
        "endpoint_url": "base_url",
        "requester_pays": "default_headers",
    },
    "azure": {
        "sas_token": "sas_key",
        "connection_string": "connection_string",  # see `_azure_connection`
        "anon": "skip_signature",
        "endpoint_url": "endpoint",
        "account_host": "endpoint",
    },
}
"""The names that s3fs, gcsfs and adlfs have for options of obstore, by kind of store."""

_CLIENT: Final = (
    "allow_http allow_invalid_certificates connect_timeout default_content_type default_headers "
    "pool_idle_timeout pool_max_idle_per_host proxy_ca_certificate proxy_excludes proxy_url "
    "randomize_addresses read_timeout root_certificate user_agent"
)
_CONFIG: Final = {
    "s3": "access_key_id checksum_algorithm conditional_put container_authorization_token_file "
    "container_credentials_full_uri container_credentials_relative_uri copy_if_not_exists "
    "default_region disable_bulk_delete disable_tagging endpoint metadata_endpoint region "
    "request_payer role_arn role_session_name secret_access_key server_side_encryption "
    "session_token skip_signature sse_bucket_key_enabled sse_kms_key_id "
    "unsigned_payload virtual_hosted_style_request web_identity_token_file",
    "gcs": "application_credentials base_url bearer_token service_account service_account_key "
    "skip_signature",
    "azure": "account_key account_name authority_host client_id client_secret disable_tagging "
    "encryption_key endpoint fabric_cluster_identifier fabric_session_token "
    "fabric_token_service_url fabric_workload_host federated_token_file msi_endpoint "
    "msi_resource_id object_id sas_key skip_signature tenant_id use_azure_cli use_emulator "
    "use_fabric_endpoint",
}
OBSTORE: Final = {kind: names.split() + _CLIENT.split() for kind, names in _CONFIG.items()}
"""The names of obstore itself, for a store and its HTTP client."""


def settings_for(kind: str, options: Mapping[str, Any]) -> Settings:
    """Return the settings that a caller's options stand for.

    Raises:
        FetchError: An option is unknown, which lists those that exist, or its value is.
    """
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for name, value in _flat(options):
        if name not in NAMES[kind] and name not in OBSTORE[kind]:
            raise FetchError(
                f"storage_options: expected options that exist, found {name!r:.60}; they are "
                f"{', '.join(sorted({*NAMES[kind], *OWN_OPTIONS}))}; those of obstore: "
                f'{", ".join(sorted(OBSTORE[kind]))}; and with driver="fsspec" those of its driver'
            )
        if value is None:
            continue
        target = NAMES[kind].get(name, name)
        try:
            converted = _converted(kind, name, value)
        except (OSError, ValueError, TypeError, AttributeError):
            raise FetchError(
                f"storage_options: {name}: expected a value that obstore takes, found "
                f'{type(value).__name__}; see docs/object-stores.md, or pass driver="fsspec"'
            ) from None
        if name == "client_kwargs.verify" and value is False:
            client["allow_invalid_certificates"] = True
        elif converted is not None:
            (client if target in _CLIENT.split() else config)[target] = converted
    return _with_own(kind, options, config, client)


def _flat(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the options of a driver, those inside ``client_kwargs`` with dotted names."""
    for name, value in options.items():
        if name == "client_kwargs" and isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", each) for inner, each in value.items())
        elif name not in OWN_OPTIONS:
            yield name, value


def _converted(kind: str, name: str, value: Any) -> Any:
    """Return the value of an option for obstore; None for its default."""
    if name == "client_kwargs.verify":
        if isinstance(value, bool):  # not the file with this number
            return None
        with open(value, "rb") as file:
            return file.read()
    if kind == "gcs" and name == "requester_pays":  # the project to bill
        if value and not isinstance(value, str):
            raise TypeError
        return {"x-goog-user-project": value} if value else None
    if name in ("anon", "requester_pays"):
        return bool(value)
    if name == "sas_token":
        return str(value).lstrip("?")
    return f"https://{value}" if name == "account_host" else value


def _with_own(
    kind: str, options: Mapping[str, Any], config: dict[str, Any], client: dict[str, Any]
) -> Settings:
    """Add what no single option says."""
    if "timeout" in options and kind != "gcs":
        client.setdefault("read_timeout", f"{float(options['timeout']) * 1000:.0f}ms")
    profile = config.pop("profile", None)
    if "token" in config and kind == "gcs":
        config |= _google_token(config.pop("token"))
    connection = config.pop("connection_string", None)
    if kind == "azure":
        connection = connection or os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    if connection:
        config = _azure_connection(connection) | config
    return Settings(config, client, profile)


def _google_token(token: Any) -> dict[str, Any]:
    """Return the settings for what gcsfs calls a token."""
    if token == "anon":  # noqa: S105 - a word, not a secret
        return {"skip_signature": True}
    if token in ("google_default", "cloud"):
        return {}
    if isinstance(token, Mapping) and token.get("type") == "service_account":
        return {"service_account_key": json.dumps(dict(token))}
    if not isinstance(token, str) or token in ("cache", "browser"):
        raise FetchError(
            'storage_options: token: expected "anon", "google_default", "cloud", a path, an access '
            f'token or a service account, found {type(token).__name__}; pass driver="fsspec" for it'
        )
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
