"""Turn what an object store refuses into errors of wids.

obstore has a class for a missing object, a refused access and a refused version. The status of all
other answers stands only in its text, which is parsed here and nowhere else (specs/decisions/0096).
An error whose text is not understood counts as an outage, which is retried.
"""

from __future__ import annotations

import re
from typing import Final

from wids.errors import FetchError, NotFoundError
from wids.storage.transport import urls
from wids.storage.transport.stream import (
    AccessError,
    PastEndError,
    not_found,
    transient_error,
)

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([A-Za-z]+)</Code>")
_REGION: Final = re.compile(r"<Region>([a-z0-9-]+)</Region>")
_ATTEMPT: Final = re.compile(r"Error performing [A-Z]+ (\w+://[^/\s]+)\S* in \S+ - ")
_KIND: Final = re.compile(r"kind: ([A-Z]\w+)")
_CERTIFICATE: Final = re.compile(r"InvalidCertificate\((\w+)|CaUsedAsEndEntity|UnknownIssuer")
_WRONG_REGION: Final = frozenset(
    ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException")
)
_BARE_REDIRECT: Final = "redirect without LOCATION"
_PERMANENT: Final = frozenset(
    ("NotSupportedError", "InvalidPathError", "UnknownConfigurationKeyError")
)
_MACHINE: Final = ("169.254.169.254", "metadata.google.internal", "fd00:ec2::254")
"""Addresses that only machines of a cloud have, where obstore looks for credentials last."""

_KEYS: Final = {
    "s3": "pass key and secret, profile, or anon=True for a public bucket, in storage_options or "
    "$WIDS_STORAGE_OPTIONS, or set $AWS_ACCESS_KEY_ID or $AWS_PROFILE",
    "gcs": "pass token, or anon=True for a public bucket, in storage_options or "
    "$WIDS_STORAGE_OPTIONS, or set $GOOGLE_APPLICATION_CREDENTIALS",
    "azure": "pass account_name with account_key or sas_token, or anon=True for a public "
    "container, in storage_options or $WIDS_STORAGE_OPTIONS, or set $AZURE_STORAGE_ACCOUNT_KEY",
}


def right_region(text: str) -> str | None:
    """Return the region to sign for, if a refusal says that a request was signed for another one.

    Return ``""`` if it does not say for which, and None for any other text.
    """
    code, region = _found(_CODE, text), _found(_REGION, text)
    is_wrong = _BARE_REDIRECT in text or code in _WRONG_REGION
    # This one is about a region only if it names one.
    return region if is_wrong or (region and code == "AuthorizationQueryParametersError") else None


def store_error(
    kind: str, url: str, error: Exception, expected: str = "a readable object"
) -> FetchError:
    """Return the error of wids for one that obstore raised, or that has a refusal as its text.

    Args:
        kind: Kind of store, a key of `store_settings.NAMES`.
        url: The object.
        error: The error.
        expected: What was expected.
    """
    if isinstance(error, FetchError):
        return error
    text, bucket = str(error), urls.origin(url)
    status, code, region = int(_found(_STATUS, text) or 0), _found(_CODE, text), right_region(text)
    found = f": {status} {code}".rstrip() if status else f": {_reason(error, text, url)}"
    make: type[FetchError] | None = FetchError
    advice, certificate = "", _CERTIFICATE.search(text)
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        if code not in ("NoSuchBucket", "ContainerNotFound"):
            return not_found(url)
        make, expected, found = NotFoundError, f"the bucket {bucket} to exist", f" none ({code})"
        advice = "; check its name and the endpoint, or create it"
    elif status == 416:
        make, expected, found = PastEndError, "a longer file", " that it ends before this part"
    elif region is not None:
        expected, found = f"the region of {bucket}", " another" + (region and f"; it is {region}")
        advice = '; pass client_kwargs={"region_name": …} in storage_options, or set $AWS_REGION'
    elif any(address in text for address in _MACHINE):
        expected, found = f"credentials for {bucket}", " none, also not from the machine"
        advice = f"; {_KEYS[kind]}"
    elif status in (401, 403):
        make, expected, advice = AccessError, f"access to {bucket}", f"; {_KEYS[kind]}"
        advice += "; if its requester pays, pass requester_pays" if kind != "azure" else ""
    elif certificate is not None:
        expected, found = "a certificate that is trusted", f": {certificate[0]}"
        advice = "; set $SSL_CERT_FILE, or for S3 $AWS_CA_BUNDLE, to the file of your certificates"
    # A value that cannot be used will not become better.
    elif not isinstance(error, (ValueError, TypeError)) and type(error).__name__ not in _PERMANENT:
        make = None
    message = f"{urls.redact(url)}: expected {expected}, found{found}{advice}"
    if make is not None:
        return make(message)
    is_cut = not status and "request or response body error" in text
    return transient_error(message, error, status, is_cut=is_cut)


def _found(pattern: re.Pattern[str], text: str) -> str:
    """Return what a pattern finds in a text, or nothing."""
    match = pattern.search(text)
    return match[1] if match else ""


def _reason(error: Exception, text: str, url: str) -> str:
    """Return what a message without a status says: its first line, and the innermost kind."""
    line = _ATTEMPT.sub(r"\1: ", text.partition("\n")[0])
    kinds = [kind for kind in _KIND.findall(text) if kind not in ("Request", "Body")]
    inner = f" ({kinds[-1]})" if kinds else ""
    dns = " (the name of the server is unknown)" if "dns error" in text else ""
    return f"{type(error).__name__}: {urls.without_secrets(line, url):.200}{dns or inner}"
