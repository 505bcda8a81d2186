"""Translate the options of a caller into those of obstore, and open buckets with them.

`NAMES` is the only table of them, and docs/object-stores.md shows it. A name with a dot is an
option inside a dict: ``client_kwargs.region_name``.

obstore sends its requests from threads of its own, which do not survive a fork: in a forked child a
request would never return. So this module remembers which process used obstore first; in its forked
children `object_store` asks for nothing that needs it (specs/decisions/0096).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from wids.errors import FetchError
from wids.storage.reading_threads import ReadingThreads
from wids.storage.transport import store_credentials, urls
from wids.storage.transport.http import TIMEOUT_S

OWN_OPTIONS: Final = frozenset(("headers", "timeout", "retry_s", "deadline_s", "hedge", "driver"))
"""Options of this package, which no driver takes."""

Settings: TypeAlias = dict[str, Any]
"""Options in the names of obstore."""

_Translate: TypeAlias = Callable[[Any], Settings]
"""Returns the settings that the value of a caller's option stands for."""


@dataclass(frozen=True)
class StoreConfig:
    """How to open the buckets of one kind of store.

    Attributes:
        config: Options of the store; and for S3 ``profile``, which `completed` replaces.
        client: Options of its HTTP client.
        timeout_s: Longest silence of the server.
        provider: Provides credentials, or None.
    """

    config: Settings = field(default_factory=dict, repr=False)
    client: Settings = field(default_factory=dict, repr=False)
    timeout_s: float = TIMEOUT_S
    provider: store_credentials.Provider | None = None


def _as(name: str, convert: Callable[[Any], Any] = lambda value: value) -> _Translate:
    """Return what translates the values of an option that obstore has under this name."""
    return lambda value: {name: convert(value)}


def _certificates(value: Any) -> Settings:
    """Return the settings for what boto calls ``verify``: a file of certificates, or a switch."""
    if isinstance(value, bool):  # not the file with this number
        return {} if value else {"allow_invalid_certificates": True}
    with open(value, "rb") as file:
        return {"root_certificate": file.read()}


def _google_token(token: Any) -> Settings:
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
    return {"application_credentials" if os.path.exists(token) else "bearer_token": token}


def _google_payer(project: Any) -> Settings:
    """Return the settings that have a project of Google pay."""
    if project and not isinstance(project, str):
        raise TypeError
    return {"default_headers": {"x-goog-user-project": project}} if project else {}


def _azure_connection(text: str) -> Settings:
    """Return the settings that a connection string of Azure states."""
    parts = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    names = {"AccountName": "account_name", "AccountKey": "account_key",
             "SharedAccessSignature": "sas_key", "BlobEndpoint": "endpoint"}  # fmt: skip
    settings = {ours: parts[name] for name, ours in names.items() if name in parts}
    if "endpoint" not in settings and "EndpointSuffix" in parts:
        protocol = parts.get("DefaultEndpointsProtocol", "https")
        account = settings.get("account_name", "")
        settings["endpoint"] = f"{protocol}://{account}.blob.{parts['EndpointSuffix']}"
    if "endpoint" in settings:
        settings["endpoint"] = settings["endpoint"].rstrip("/")
    return settings


NAMES: Final[Mapping[str, Mapping[str, _Translate]]] = {
    "s3": {
        "key": _as("access_key_id"),
        "secret": _as("secret_access_key"),
        "token": _as("session_token"),
        "profile": _as("profile"),
        "anon": _as("skip_signature", bool),
        "endpoint_url": _as("endpoint"),
        "client_kwargs.endpoint_url": _as("endpoint"),
        "client_kwargs.region_name": _as("region"),
        "client_kwargs.verify": _certificates,
        "requester_pays": _as("request_payer", bool),
    },
    "gcs": {
        "token": _google_token,
        "anon": _as("skip_signature", bool),
        "endpoint_url": _as("base_url"),
        "requester_pays": _google_payer,
    },
    "azure": {
        "sas_token": _as("sas_key", lambda token: str(token).lstrip("?")),
        "connection_string": _azure_connection,
        "anon": _as("skip_signature", bool),
        "endpoint_url": _as("endpoint"),
        "account_host": _as("endpoint", "https://{}".format),
    },
}
"""The names that s3fs, gcsfs and adlfs have for options, by kind of store, and what returns the
settings that a value stands for."""

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


def config_for(kind: str, options: Mapping[str, Any]) -> StoreConfig:
    """Return the settings that a caller's options stand for.

    Raises:
        FetchError: An option is unknown, which lists those that exist, or its value is.
    """
    given = {name: value for name, value in options.items() if name not in OWN_OPTIONS}
    if isinstance(given.get("client_kwargs"), Mapping):
        inner = given.pop("client_kwargs")
        given |= {f"client_kwargs.{name}": value for name, value in inner.items()}
    for name in given:
        if name not in NAMES[kind] and name not in OBSTORE[kind]:
            raise FetchError(
                f"storage_options: expected options that exist, found {name!r:.60}; they are "
                f"{', '.join(sorted({*NAMES[kind], *OWN_OPTIONS}))}; those of obstore: "
                f'{", ".join(sorted(OBSTORE[kind]))}; and with driver="fsspec" those of its driver'
            )
    given = {name: value for name, value in given.items() if value is not None}
    connection = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    if kind == "azure" and connection:
        given.setdefault("connection_string", connection)
    found: Settings = {}
    # Any other option replaces what a connection string says.
    for name in sorted(given, key=lambda name: name != "connection_string"):
        translate = NAMES[kind].get(name, _as(name))
        found |= _translated(f"storage_options: {name}", translate, given[name])
    client = {name: found.pop(name) for name in _CLIENT.split() if name in found}
    return StoreConfig(found, client, float(options.get("timeout") or TIMEOUT_S))


def _translated(label: str, translate: _Translate, value: Any) -> Settings:
    """Return the settings that a value stands for; an error says where it is stated."""
    try:
        return translate(value)
    except FetchError:
        raise
    except (OSError, ValueError, TypeError, AttributeError) as error:
        expected, found = "a value that obstore takes", type(value).__name__
        if isinstance(error, OSError):
            expected, found = "a file that can be read", f"{found} ({error.strerror})"
        raise FetchError(
            f"{label}: expected {expected}, found {found}; see docs/object-stores.md, or pass "
            'driver="fsspec"'
        ) from None


_T = TypeVar("_T")

REQUEST_TIMEOUT: Final = "300s"
"""Longest time for one response. A longer one is resumed, which ends a trickle."""

Store: TypeAlias = Any
"""A store of obstore, which is imported when it is first needed."""

_SIGNAL_S: Final = 0.5
"""How long the main thread waits at most before it looks for signals."""

_runtime_pid: int | None = None
"""The process in which obstore was used first: this one, or one that it was forked from."""


class ObjectLocation(NamedTuple):
    """The bucket and the name of an object.

    Attributes:
        kind: Kind of store, a value of `urls.KINDS`.
        bucket: Bucket, or container.
        account: Account of Azure that the URL names, or None.
        key: Name of the object in the bucket, or of a folder.
    """

    kind: str
    bucket: str
    account: str | None
    key: str


@lru_cache(maxsize=1024)  # each sample asks
def location_of(url: str) -> ObjectLocation:
    """Return the bucket and the name of the object at a URL.

    Raises:
        FetchError: The URL names no bucket, or different parsers read its server differently.
    """
    urls.check_server(url)
    authority, _, key = url.partition("://")[2].partition("/")
    kind, account = urls.KINDS[urls.scheme(url)], None
    if kind == "azure" and "@" in authority:  # container@account.dfs.core.windows.net
        authority, _, host = authority.partition("@")
        account = host.partition(".")[0]
    if not authority:
        raise FetchError(f"{urls.redact(url)}: expected the name of a bucket, found none")
    return ObjectLocation(kind, authority, account, key)


def is_forked() -> bool:
    """Return whether a process that this one was forked from has used obstore."""
    return _runtime_pid not in (None, os.getpid())


_PREFIXES: Final = {"s3": "AWS_", "gcs": "GOOGLE_", "azure": "AZURE_STORAGE_"}
_ALIASES: Final = {
    "AWS_ENDPOINT_URL": "endpoint",
    "AWS_ENDPOINT_URL_S3": "endpoint",
    "AZURE_STORAGE_ACCESS_KEY": "account_key",
    "AZURE_STORAGE_SAS_TOKEN": "sas_key",
    "GOOGLE_SERVICE_ACCOUNT_PATH": "service_account",
}
"""Variables that obstore reads beside those that are named after its options."""

_FLAGS: Final = ("skip_signature", "request_payer", "virtual_hosted_style_request")


def _of_environment(kind: str) -> dict[str, Any]:
    """Return the options that obstore takes from the environment."""
    prefix = _PREFIXES[kind]
    names = {f"{prefix}{name.upper()}": name for name in _CONFIG[kind].split()} | _ALIASES
    stated = {v: name for v, name in names.items() if v.startswith(prefix) and os.environ.get(v)}
    found: Settings = {name: os.environ[variable] for variable, name in stated.items()}
    for flag in found.keys() & _FLAGS:
        found[flag] = found[flag].lower() in ("1", "true", "on", "yes", "y")
    return found


def completed(location: ObjectLocation, settings: StoreConfig) -> StoreConfig:
    """Return the settings of a caller with all that they leave open.

    Raises:
        FetchError: They cannot be used.
    """
    kind, options, provider = location.kind, dict(settings.config), None
    profile, environment = options.pop("profile", None), _of_environment(kind)
    config = environment | options
    if kind == "s3":
        region, provider = store_credentials.of_aws(profile, options, environment)
        if region and config.keys().isdisjoint(("region", "default_region")):
            config["region"] = region
    elif kind == "gcs":
        provider = store_credentials.of_google(config)
    else:
        provider = store_credentials.of_azure(options)
        if provider is not None:  # not that of the environment
            config = {
                n: config[n] for n in config if n in options or n not in store_credentials.OF_AZURE
            }
        if location.account is not None:
            _check_account(location, config)
            config["account_name"] = location.account
    bundle = os.environ.get("AWS_CA_BUNDLE") if kind == "s3" else None
    is_plain = any(str(config.get(n)).startswith("http://") for n in ("endpoint", "base_url"))
    client = {
        "connect_timeout": "4s",
        "read_timeout": f"{settings.timeout_s * 1000:.0f}ms",
        "timeout": REQUEST_TIMEOUT,
        "user_agent": "wids",
        **({"allow_http": True} if is_plain else {}),
        **(_translated("$AWS_CA_BUNDLE", _certificates, bundle) if bundle else {}),
        **settings.client,
    }
    return replace(settings, config=config, client=client, provider=provider)


def _check_account(location: ObjectLocation, config: Mapping[str, Any]) -> None:
    """Refuse keys and an endpoint of another account of Azure than a URL names."""
    stated = config.get("account_name", location.account)
    names = {"endpoint"} if config.get("skip_signature") else {"endpoint", "account_key", "sas_key"}
    found = ", ".join(sorted(names & config.keys()))
    if stated != location.account and found:
        raise FetchError(
            f"{location.bucket}@{location.account}: expected options of the account in the URL, "
            f"found {found} beside account_name {stated!r:.40}; pass those of {location.account} "
            "for its URLs, as storage_options by prefix"
        )


def new_store(
    location: ObjectLocation, settings: StoreConfig, region: str | None = None, **client: str
) -> Store:
    """Open a bucket with obstore.

    Args:
        location: The bucket, by any object in it.
        settings: Those that `completed` returned.
        region: Region to sign for instead of the stated one, or None.
        client: Options of the HTTP client that replace the others.

    Raises:
        FetchError: The settings cannot be used.
    """
    from obstore import exceptions, store

    global _runtime_pid  # noqa: PLW0603 - a fact about the process
    if _runtime_pid is None:
        _runtime_pid = os.getpid()
    classes = {"s3": store.S3Store, "gcs": store.GCSStore, "azure": store.AzureStore}
    provider = settings.provider
    try:
        return classes[location.kind](
            location.bucket,
            config={**settings.config, **({"region": region} if region else {})},
            client_options=settings.client | client,
            # `with_retries` repeats and waits, and may hold back all requests to a busy server.
            retry_config={"max_retries": 0},
            **({} if provider is None else {"credential_provider": provider}),
        )
    except (exceptions.BaseError, ValueError, TypeError, OSError) as error:
        raise FetchError(
            f"{location.bucket}: expected options of a bucket, found: {type(error).__name__}: "
            f"{urls.without_secrets(str(error).partition(chr(10))[0]):.200}; correct "
            "storage_options or the environment"
        ) from None


_idle: Final[dict[int, ReadingThreads]] = {}
"""The thread of this process, by the id of the process, while it is idle."""


def interruptible(call: Callable[[], _T]) -> _T:
    """Call a function of obstore in another thread, so that Ctrl-C ends the wait for it.

    obstore does not return from a request before its end, and Python handles signals in the main
    thread, between its own steps.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()  # signals arrive in the main thread
    # Taken out while it is in use, so that a call that was interrupted keeps no other waiting.
    thread = _idle.pop(os.getpid(), None) or ReadingThreads(1, "wids-object-store")
    future = thread.submit(call)
    # In steps: a signal that comes just before Python waits does not end the wait.
    while not wait([future], _SIGNAL_S).done:
        pass
    _idle[os.getpid()] = thread
    return future.result()
