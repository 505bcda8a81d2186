"""Open buckets with obstore: which bucket a URL names, with which settings, in which process.

obstore sends its requests from threads of its own, which do not survive a fork: in a forked child a
request would never return. So this module remembers the process that used obstore first, and
`signed_urls` reads in its forked children (specs/decisions/0096).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from wids.errors import FetchError
from wids.storage.transport import store_credentials, urls
from wids.storage.transport.store_options import Settings

_T = TypeVar("_T")

KINDS: Final[Mapping[str, str]] = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure",
    "abfss": "azure",
}  # fmt: skip
"""Kind of store of each scheme; also the name of the extra that installs obstore."""

READ_TIMEOUT: Final = "15s"
"""Longest silence of a store."""

REQUEST_TIMEOUT: Final = "300s"
"""Longest time for one response. A longer one is resumed, and so a trickle ends."""

Store: TypeAlias = Any
"""A store of obstore, which is imported when it is first needed."""

_runtime_pid: int | None = None
"""The process in which obstore was used first: this one, or one that it was forked from."""


class Place(NamedTuple):
    """Where an object is.

    Attributes:
        kind: Kind of store, a value of `KINDS`.
        bucket: Bucket, or container.
        account: Account of Azure that the URL names, or None.
        key: Name of the object in the bucket, or of a folder.
    """

    kind: str
    bucket: str
    account: str | None
    key: str


@lru_cache(maxsize=1024)  # each sample asks
def place_of(url: str) -> Place:
    """Return where the object of a URL is.

    Raises:
        FetchError: The URL names no bucket, or different parsers read its server differently.
    """
    urls.check_server(url)
    authority, _, key = url.partition("://")[2].partition("/")
    kind, account = KINDS[urls.scheme(url)], None
    if kind == "azure" and "@" in authority:  # container@account.dfs.core.windows.net
        authority, _, host = authority.partition("@")
        account = host.partition(".")[0]
    if not authority:
        raise FetchError(f"{urls.redact(url)}: expected the name of a bucket, found none")
    return Place(kind, authority, account, key)


def is_forked() -> bool:
    """Return whether a process that this one was forked from has used obstore."""
    return _runtime_pid not in (None, os.getpid())


def new_store(
    place: Place, settings: Settings, region: str | None = None, **client: str
) -> tuple[Store, Settings, store_credentials.Provider | None]:
    """Open a bucket.

    Args:
        place: The bucket, by any object in it.
        settings: The caller's.
        region: Region to sign for instead of the stated one, or None.
        client: Options of the HTTP client that replace the defaults.

    Returns:
        The store, all its settings, and what provides its credentials, if obstore does not.

    Raises:
        FetchError: The settings cannot be used.
    """
    from obstore import exceptions, store

    global _runtime_pid  # noqa: PLW0603 - a fact about the process
    if _runtime_pid is None:
        _runtime_pid = os.getpid()
    config, provider = dict(settings.config), None
    if place.kind == "s3":
        more, provider = store_credentials.of_aws(settings.profile, config, is_forked=is_forked())
        if provider is not None and is_forked():
            # As keys, which obstore signs with; a callback would need its threads.
            keys, provider = provider(), None
            more |= {"session_token" if n == "token" else n: keys[n] for n in keys if keys[n]}
            more.pop("expires_at")
        if os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
            more.pop("region", None)
        config = {**more, **config, **({"region": region} if region else {})}
    elif place.kind == "gcs":
        provider = store_credentials.of_google(config, is_forked=is_forked())
    elif place.account is not None:
        config.setdefault("account_name", place.account)
    complete = Settings(config, _client(place.kind, config, settings.client) | client)
    classes = {"s3": store.S3Store, "gcs": store.GCSStore, "azure": store.AzureStore}
    try:
        made = classes[place.kind](
            place.bucket,
            config=config,
            client_options=complete.client,
            # `with_retries` repeats and waits, and may hold back all requests to a busy server.
            retry_config={"max_retries": 0},
            **({} if provider is None else {"credential_provider": provider}),
        )
    except (exceptions.BaseError, ValueError, TypeError, OSError) as error:
        raise FetchError(
            f"{place.bucket}: expected options of a bucket, found: {type(error).__name__}: "
            f"{urls.without_secrets(str(error).partition(chr(10))[0]):.200}; correct "
            "storage_options or the environment"
        ) from None
    return made, complete, provider


def _client(kind: str, config: Mapping[str, Any], client: Mapping[str, Any]) -> dict[str, Any]:
    result = {
        "connect_timeout": "4s",
        "read_timeout": READ_TIMEOUT,
        "timeout": REQUEST_TIMEOUT,
        "user_agent": "wids",
        **client,
    }
    endpoints = [config.get("endpoint"), config.get("base_url")]
    if kind == "s3" and endpoints == [None, None]:
        endpoints = [os.environ.get(f"AWS_ENDPOINT_URL{end}") for end in ("_S3", "")]
    if any(str(endpoint).startswith("http://") for endpoint in endpoints):
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


class _Aside:
    """Runs calls in a thread, so that Ctrl-C ends the wait for them.

    obstore does not return from a request before its end, and Python handles signals in the main
    thread, between its own steps.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._work, name="wids-object-store", daemon=True).start()

    def _work(self) -> None:
        while True:
            self._calls.get()()

    def run(self, call: Callable[[], _T], timeout_s: float | None = None) -> _T:
        """Return the result of a call.

        Raises:
            queue.Empty: It did not return in time.
        """
        results: SimpleQueue[tuple[_T | None, BaseException | None]] = SimpleQueue()

        def answer() -> None:
            try:
                results.put((call(), None))
            except BaseException as error:  # noqa: BLE001 - it is raised in the other thread
                results.put((None, error))

        self._calls.put(answer)
        result, error = results.get(timeout=timeout_s)
        if error is not None:
            raise error
        return result  # type: ignore[return-value] # a result, where there is no error


_asides: dict[int, _Aside] = {}
"""The thread of this process, by its id."""


def interruptible(call: Callable[[], _T], timeout_s: float | None = None) -> _T:
    """Call a function of obstore so that Ctrl-C interrupts it.

    Args:
        call: The function.
        timeout_s: Longest wait, or None.

    Raises:
        TimeoutError: It did not return in time.
    """
    from queue import Empty

    if timeout_s is None and threading.current_thread() is not threading.main_thread():
        return call()  # signals arrive in the main thread
    # Taken out while it is in use, so that a call that was interrupted keeps no other waiting.
    aside = _asides.pop(os.getpid(), None) or _Aside()
    try:
        result = aside.run(call, timeout_s)
    except Empty:
        raise TimeoutError from None
    except Exception:
        _asides[os.getpid()] = aside
        raise
    _asides[os.getpid()] = aside
    return result
