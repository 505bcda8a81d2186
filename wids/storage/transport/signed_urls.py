"""Read objects by signed URLs and the transport of HTTP, where obstore can send no request.

That is in children of a process that has used obstore, made by a fork, as the workers of a
DataLoader are by default on Linux. Signing needs no network, and costs a hundredth of a request.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

from wids.errors import FetchError
from wids.storage.transport import urls
from wids.storage.transport.http import TIMEOUT_S, Http
from wids.storage.transport.store_clients import Place, Store
from wids.storage.transport.store_credentials import Provider
from wids.storage.transport.store_options import Settings
from wids.storage.transport.stream import Stream

_LIFE_S: Final = 3600.0
_KEYS: Final = ("access_key_id", "service_account_key", "account_key")
_VARIABLES: Final = {
    "s3": ("AWS_ACCESS_KEY_ID",),
    "gcs": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
    "azure": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"),
}
_PACKAGES: Final = {
    "s3": "pip install botocore, or ",
    "gcs": "pip install google-auth, or ",
    "azure": "",
}


class SignedUrls:
    """Reads the objects of one bucket.

    Args:
        place: The bucket, by any object in it.
        store: Signs URLs.
        settings: Those of the store.
        provider: Provides credentials, or None.
    """

    def __init__(
        self, place: Place, store: Store, settings: Settings, provider: Provider | None
    ) -> None:
        self._place = place
        self._store = store
        self._settings = settings
        self._provider = provider
        self._signed: dict[str, tuple[str, float]] = {}
        self._http: dict[str, Http] = {}

    def __call__(self, url: str, key: str, start: int, stop: int | None, tag: str | None) -> Stream:
        """Open an object or a part of it; errors name ``url``, and not the signed one.

        Raises:
            FetchError: It cannot be read or signed.
        """
        signed, headers = self._address(url, key)
        token = headers.get("Authorization", "")
        http = self._http.get(token)
        if http is None:  # another thread may replace it, if the token was renewed
            http = Http(headers, TIMEOUT_S, self._settings.client.get("root_certificate"))
            self._http = {token: http}
        try:
            # A URL that is signed for GET refuses HEAD.
            stream = http(signed, start, 1 if stop == 0 else stop, tag)
        except FetchError as error:
            error.args = (str(error).replace(urls.redact(signed), urls.redact(url)),)
            raise
        if stop == 0:
            stream.close()
            return Stream(iter(()), 0, stream.total_nbytes, stream.tag)
        return stream

    def _address(self, url: str, key: str) -> tuple[str, Mapping[str, str]]:
        """Return the URL to request, and headers."""
        config = self._settings.config
        plain = _plain(self._place, config, key)
        if config.get("skip_signature"):
            return plain, {}
        if "sas_key" in config:
            return f"{plain}?{config['sas_key']}", {}
        if self._place.kind == "gcs" and (self._provider or "bearer_token" in config):
            token = config.get("bearer_token") or self._provider()["token"]  # type: ignore[misc]
            return plain, {"Authorization": f"Bearer {token}"}
        address, until_s = self._signed.get(key, ("", 0.0))
        if time.monotonic() > until_s:
            address = self._sign(url, key)
            # Half of its life is left for downloads, and for clocks that differ.
            self._signed[key] = (address, time.monotonic() + _LIFE_S / 2)
        return address, {}

    def _sign(self, url: str, key: str) -> str:
        import obstore

        # Without keys at hand obstore would request them. That never returns here, and the parent
        # would miss answers too, since a fork shares what a process waits with (epoll).
        has_keys = any(name in self._settings.config for name in _KEYS) or any(
            os.environ.get(name) for name in _VARIABLES[self._place.kind]
        )
        if not has_keys:
            raise FetchError(
                f"{urls.redact(url)}: expected keys to sign with, found none in this process, "
                "which was forked from one that reads object stores; "
                + _PACKAGES[self._place.kind]
                + 'start workers with multiprocessing_context="forkserver"'
            )
        call: Any = obstore.sign
        return str(call(self._store, "GET", key, timedelta(seconds=_LIFE_S)))


def _plain(place: Place, config: Mapping[str, Any], key: str) -> str:
    """Return the URL of an object without a signature."""
    endpoint = config.get("endpoint") or config.get("base_url")
    path = f"{place.bucket}/{quote(key)}"
    if place.kind == "s3" and config.get("virtual_hosted_style_request") and endpoint:
        path = quote(key)
    if endpoint is None:
        endpoint = {
            "s3": f"https://s3.{config.get('region', 'us-east-1')}.amazonaws.com",
            "gcs": "https://storage.googleapis.com",
            "azure": f"https://{config.get('account_name')}.blob.core.windows.net",
        }[place.kind]
    return f"{endpoint.rstrip('/')}/{path}"
