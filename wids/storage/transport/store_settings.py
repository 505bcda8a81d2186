"""Translate the options of a caller into those of obstore, and open buckets with them.

`NAMES` is the only table of them, and docs/object-stores.md shows it. A name with a dot is an
option inside a dict: ``client_kwargs.region_name``.

obstore sends its requests from threads of its own, which do not survive a fork: in a forked child a
request would never return. So this module remembers which process used obstore first; in its forked
children `object_store` asks for nothing that needs it (specs/decisions/0096).
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
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


@dataclass(frozen=True)
class StoreConfig:
    """How to open the buckets of one kind of store, in the names of obstore.

    Attributes:
        config: Options of the store.
        client: Options of its HTTP client.
        profile: Profile of the AWS configuration files, or None.
        timeout_s: Longest silence of the server.
        environment: Options of the store that obstore takes from the environment.
        provider: Provides credentials, or None.
    """

    config: dict[str, Any] = field(default_factory=dict, repr=False)
    client: dict[str, Any] = field(default_factory=dict, repr=False)
    profile: str | None = None
    timeout_s: float = TIMEOUT_S
    environment: dict[str, Any] = field(default_factory=dict, repr=False)
    provider: store_credentials.Provider | None = None

    @property
    def all(self) -> dict[str, Any]:
        """All options of the store."""
        return self.environment | self.config


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


def config_for(kind: str, options: Mapping[str, Any]) -> StoreConfig:
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
) -> StoreConfig:
    """Add what no single option says."""
    timeout_s = float(options.get("timeout") or TIMEOUT_S)
    profile = config.pop("profile", None)
    if "token" in config and kind == "gcs":
        config |= _google_token(config.pop("token"))
    connection = config.pop("connection_string", None)
    if kind == "azure":
        connection = connection or os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    if connection:
        config = _azure_connection(connection) | config
    return StoreConfig(config, client, profile, timeout_s)


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
    settings = {ours: parts[name] for name, ours in names.items() if name in parts}
    if "endpoint" not in settings and "EndpointSuffix" in parts:
        protocol = parts.get("DefaultEndpointsProtocol", "https")
        account = settings.get("account_name", "")
        settings["endpoint"] = f"{protocol}://{account}.blob.{parts['EndpointSuffix']}"
    if "endpoint" in settings:
        settings["endpoint"] = settings["endpoint"].rstrip("/")
    return settings


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
_IDENTITY: Final = frozenset(("access_key_id", "secret_access_key", "session_token"))
_ROLE: Final = frozenset(
    ("container_authorization_token_file", "container_credentials_full_uri", "metadata_endpoint",
     "container_credentials_relative_uri", "role_arn", "web_identity_token_file")
)  # fmt: skip
"""Options with which a caller has obstore look for credentials."""


def _of_environment(kind: str) -> dict[str, Any]:
    """Return the options that obstore takes from the environment."""
    prefix, found = _PREFIXES[kind], {}
    names = {f"{prefix}{name.upper()}": name for name in _CONFIG[kind].split()} | _ALIASES
    for variable, name in names.items():
        value = os.environ.get(variable)
        if value and variable.startswith(prefix):
            is_true = value.lower() in ("1", "true", "on", "yes", "y")
            found[name] = is_true if name in _FLAGS else value
    return found


def completed(location: ObjectLocation, settings: StoreConfig) -> StoreConfig:
    """Return the settings of a caller with all that they leave open.

    Raises:
        FetchError: They cannot be used.
    """
    environment, config, provider = _of_environment(location.kind), dict(settings.config), None
    if location.kind == "s3" and config.keys().isdisjoint(_ROLE):
        more, provider = store_credentials.of_aws(settings.profile, environment | config)
        if {"region", "default_region"} & environment.keys():
            more.pop("region", None)
        config = more | config
        if provider is not None or "access_key_id" in config:  # not parts of two credentials
            environment = {n: environment[n] for n in environment.keys() - _IDENTITY}
    elif location.kind == "gcs":
        provider = store_credentials.of_google(environment | config)
    elif location.account is not None:
        config.setdefault("account_name", location.account)
    client = _client(location.kind, environment | config, settings)
    return replace(
        settings, config=config, client=client, environment=environment, provider=provider
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


def _client(kind: str, config: Mapping[str, Any], settings: StoreConfig) -> dict[str, Any]:
    result = {
        "connect_timeout": "4s",
        "read_timeout": f"{settings.timeout_s * 1000:.0f}ms",
        "timeout": REQUEST_TIMEOUT,
        "user_agent": "wids",
        **settings.client,
    }
    if str(config.get("endpoint") or config.get("base_url")).startswith("http://"):
        result["allow_http"] = True
    bundle = os.environ.get("AWS_CA_BUNDLE") if kind == "s3" else None
    if bundle and "root_certificate" not in result:
        try:
            with open(bundle, "rb") as file:
                result["root_certificate"] = file.read()
        except OSError as error:
            raise FetchError(
                f"{bundle}: expected certificates, as $AWS_CA_BUNDLE says, found: {error.strerror}"
            ) from None
    return result


_idle: Final[dict[int, ReadingThreads]] = {}
"""The thread of this process, by the id of the process, while it is idle."""


def interruptible(call: Callable[[], _T], timeout_s: float | None = None) -> _T:
    """Call a function of obstore in another thread, so that Ctrl-C ends the wait for it.

    obstore does not return from a request before its end, and Python handles signals in the main
    thread, between its own steps.

    Args:
        call: The function.
        timeout_s: Longest wait, or None.

    Raises:
        TimeoutError: It did not return in time.
    """
    if timeout_s is None and threading.current_thread() is not threading.main_thread():
        return call()  # signals arrive in the main thread
    # Taken out while it is in use, so that a call that was interrupted keeps no other waiting.
    thread = _idle.pop(os.getpid(), None) or ReadingThreads(1, "wids-object-store")
    future = thread.submit(call)
    until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    # In steps: a signal that comes just before Python waits does not end the wait.
    while (left_s := until_s - time.monotonic()) > 0:
        if wait([future], min(left_s, _SIGNAL_S)).done:
            break
    else:
        raise TimeoutError
    _idle[os.getpid()] = thread
    return future.result()
