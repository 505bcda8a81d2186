"""Turn objects of a bucket into requests by HTTP: addresses, signatures, headers and refusals.

A `Bucket` reads objects like any file of a server, in every process, where this process can sign:
by URLs for S3 and Azure, by a header for Google. It signs for another region, at another time or
with newer credentials after a refusal that says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from wids.errors import FetchError
from wids.storage.transport import store_settings, urls
from wids.storage.transport.connections import Head
from wids.storage.transport.http import Http
from wids.storage.transport.range_loop import raise_error, read_ranges
from wids.storage.transport.range_reads import Range
from wids.storage.transport.retry import Timeouts, check_waits
from wids.storage.transport.signing import AwsKeys, signed
from wids.storage.transport.store_credentials import Provider
from wids.storage.transport.store_errors import right_region, store_error
from wids.storage.transport.store_settings import ObjectLocation, Store, location_of
from wids.storage.transport.stream import (
    TRANSIENT_STATUSES,
    AccessError,
    Content,
    NotByHttpError,
)

_LIFE_S: Final = 3600
_BACK_S: Final = 300
"""How long before now a signature is dated: clocks differ."""

_MOST_SIGNED: Final = 4096
_BY_OBSTORE: Final = frozenset(
    ("allow_invalid_certificates", "connect_timeout", "proxy_url", "proxy_excludes",
     "proxy_ca_certificate", "read_timeout", "use_emulator", "use_fabric_endpoint")
)  # fmt: skip
"""Options with which obstore reads."""

_AT_HAND: Final = ("skip_signature", "bearer_token", "sas_key", "account_key")
"""Options that are enough to read without a provider of credentials."""


class Bucket(Http):
    """An open bucket, whose objects are read by HTTP, or by obstore.

    Threads can share it.

    Args:
        location: The bucket, by any object in it.
        options: The caller's.

    Attributes:
        is_by_http: Whether its objects are read by HTTP.
        is_refused: Whether it has refused a signature in an address.
    """

    def __init__(self, location: ObjectLocation, options: Mapping[str, Any]) -> None:
        self._location = location._replace(key="")
        settings = store_settings.config_for(location.kind, options)
        self._settings = store_settings.completed(location, settings)
        config, client = self._settings.config, self._settings.client
        self._config, self._region = config, ""
        self._signed: dict[str, tuple[tuple[object, ...], str]] = {}
        self._skew_s = float(-_BACK_S)  # from now to the date of a signature
        self._stores: dict[Any, Store] = {}
        self.is_refused = False
        provider = self._settings.provider
        self.is_by_http = (
            (provider is not None or any(map(config.get, _AT_HAND)))
            and _BY_OBSTORE.isdisjoint([*settings.client, *config])
            # A directory bucket, or one that a name of AWS stands for.
            and not (location.bucket.endswith("--x-s3") or ":" in location.bucket)
            and str(config.get("server_side_encryption")).lower() != "sse-c"
        )
        headers = {"User-Agent": client["user_agent"], **client.get("default_headers", {})}
        if "bearer_token" in config:
            headers["Authorization"] = f"Bearer {config['bearer_token']}"
        has_tokens = location.kind == "gcs" and provider is not None
        super().__init__(
            partial(_with_token, headers, provider) if has_tokens else headers,  # type: ignore[arg-type]
            settings.timeout_s,
            client.get("root_certificate"),
        )

    @property
    def signs(self) -> bool:
        """Whether signatures are in its addresses, which a policy may forbid."""
        return self._location.kind == "s3" and not self._config.get("skip_signature")

    def reads(self, key: str) -> bool:
        """Return whether an object is read by HTTP."""
        # A client resolves dots in a path, and obstore, which signs for Azure, refuses empty parts.
        odd = {".", "..", ""} if "account_key" in self._config else {".", ".."}
        return self.is_by_http and odd.isdisjoint(key.split("/"))

    def store(self, **client: str) -> Store:
        """Return the store of obstore.

        Args:
            client: Options of the HTTP client that replace the others.
        """
        place = self._region, *client.items()
        if place not in self._stores:
            self._stores[place] = store_settings.new_store(
                self._location, self._settings, self._region, **client
            )
        return self._stores[place]

    def address(self, url: str) -> str:
        """Return the address of an object, which is replaced after half an hour at most.

        Raises:
            FetchError: There are no credentials.
        """
        keys, skew_s, now_s = self._keys(), self._skew_s, time.time()
        made_by = now_s // (_LIFE_S / 2), skew_s, self._region, keys
        found = self._signed.get(url)
        if found is None or found[0] != made_by:
            if len(self._signed) >= _MOST_SIGNED:
                self._signed.clear()
            address = self._new_address(location_of(url).key, keys, now_s + skew_s)
            found = self._signed[url] = made_by, address
        return found[1]

    def _keys(self) -> AwsKeys | None:
        provider = self._settings.provider
        if provider is None or not self.signs:
            return None
        found = provider()
        return AwsKeys(found["access_key_id"], found["secret_access_key"], found["token"])

    def _new_address(self, key: str, keys: AwsKeys | None, date_s: float) -> str:
        config, (kind, bucket, *_) = self._config, self._location
        region = self._region or config.get("region") or config.get("default_region") or "us-east-1"
        endpoint = config.get("endpoint") or config.get("base_url") or {
            "s3": f"https://s3.{region}.amazonaws.com",
            "gcs": "https://storage.googleapis.com",
            "azure": f"https://{config.get('account_name')}.blob.core.windows.net",
        }[kind]  # fmt: skip
        scheme, _, host = endpoint.rstrip("/").partition("://")
        path = f"{bucket}/{quote(key)}"
        if kind == "s3" and config.get("virtual_hosted_style_request"):
            path = quote(key)
            if not config.get("endpoint"):
                host = f"{bucket}.{host}"
        url = f"{scheme}://{host}/{path}"
        if keys is not None:
            payer = {"x_amz_request_payer": "requester"} if config.get("request_payer") else {}
            return signed(url, keys, region, date_s, _LIFE_S, **payer)
        if "sas_key" in config and not config.get("skip_signature"):
            return f"{url}?{config['sas_key']}"
        if "account_key" in config and not config.get("skip_signature"):
            import obstore

            call: Any = obstore.sign  # needs no network
            return str(call(self.store(), "GET", key, timedelta(seconds=_LIFE_S)))
        return url

    def if_version(self, tag: str) -> dict[str, str]:
        """Return the header, which is another one: S3 has no If-Range."""
        return {"If-Match": tag} if tag.startswith('"') else {}  # not a date

    def refusal(
        self, url: str, address: str, head: Head, text: str, *, is_last: bool
    ) -> FetchError | None:
        """Return the error of a refusal; None if the object has another address now."""
        if head.status in TRANSIENT_STATUSES:
            return super().refusal(url, address, head, text, is_last=is_last)
        try:
            if not is_last and (self.address(url) != address or self._corrects(head, text)):
                return None
        except FetchError as no_keys:
            return no_keys
        found = OSError(f"status code: {head.status}: {text}")
        error = store_error(self._location.kind, url, found)
        is_refused = isinstance(error, AccessError) and self.signs and not self.is_proven
        if not is_refused or store_settings.is_forked():
            return error
        self.is_refused = True
        return NotByHttpError(str(error))

    def _corrects(self, head: Head, text: str) -> bool:
        """Have addresses be as a refusal of one says; return whether that changes anything."""
        if self.moves(text, head.headers.get("x-amz-bucket-region")):
            return True
        with suppress(ValueError, TypeError):  # no date
            date_s = parsedate_to_datetime(head.headers.get("date", "")).timestamp()
            skew_s = date_s - time.time() - _BACK_S
            if head.status == 403 and self.signs and abs(skew_s - self._skew_s) > _BACK_S:
                self._skew_s = skew_s
                return True
        return False

    def moves(self, text: str, stated: str | None = None) -> bool:
        """Sign for another region, if a refusal says so; return whether it does.

        Args:
            text: The refusal.
            stated: What a header says.
        """
        region = right_region(text)
        if self._location.kind != "s3" or region is None:
            return False
        region = region or stated or _asked_region(self._location, self._config.get("endpoint"))
        if region:
            self._region = region
        return bool(region)


def _with_token(headers: Mapping[str, str], provider: Provider) -> tuple[dict[str, str], float]:
    """Return headers with a token, and the Unix time at which to ask for the next one."""
    found = provider()
    return {**headers, "Authorization": f"Bearer {found['token']}"}, found["expires_at"].timestamp()


def _asked_region(location: ObjectLocation, endpoint: str | None) -> str | None:
    """Return the region that the store states to anyone who asks for a bucket."""
    address = f"{(endpoint or 'https://s3.amazonaws.com').rstrip('/')}/{location.bucket}"
    asking, timeouts = _Asking(), Timeouts(urls.origin(address), retry_s=0.0)
    nothing = (lambda: None), (lambda *_: None), (lambda _, data: data)
    with suppress(FetchError):
        wanted = Range(asking, address, 0, 1, *nothing, timeouts, may_hedge=False)
        read_ranges([wanted], raise_error)
    check_waits()  # raises if the wait was cut short
    return asking.region


class _Asking(Http):
    """Asks a bucket for its region, which a refusal and a redirect state too.

    Attributes:
        region: The region; None if it was not stated.
    """

    region: str | None = None

    def content_of(self, url: str, start: int, head: Head) -> Content:
        """Note the region."""
        self.region = head.headers.get("x-amz-bucket-region")
        return super().content_of(url, start, head)

    def refusal(
        self, url: str, address: str, head: Head, text: str, *, is_last: bool
    ) -> FetchError | None:
        """Note the region."""
        self.region = head.headers.get("x-amz-bucket-region")
        return super().refusal(url, address, head, text, is_last=is_last)
