"""Find the credentials of an object store where obstore does not look for them.

obstore itself finds keys, web identities (IRSA), containers and the addresses of cloud machines. It
asks the endpoint of a container only if the token is in a file, and does not read AWS configuration
files. This module reads keys from those files; for anything else that AWS tools support, such as
single sign-on and assumed roles, it uses botocore, if that is installed.
"""

from __future__ import annotations

import configparser
import os
import warnings
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, TypeAlias

from wids.errors import FetchError

Provider: TypeAlias = "Callable[[], dict[str, Any]]"
"""Returns credentials as obstore expects them from a callback."""

_LIFE: Final = timedelta(minutes=5)
"""How long obstore keeps what botocore returns, which renews it a quarter of an hour ahead."""

_OF_PROCESS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables from which obstore takes credentials by itself."""

_STATIC: Final = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
}


def of_aws(
    profile: str | None, config: Mapping[str, Any], *, is_forked: bool
) -> tuple[dict[str, Any], Provider | None]:
    """Return what to add to the configuration of an S3 store, and a provider of credentials.

    Args:
        profile: The profile that the caller named, or None.
        config: The configuration so far.
        is_forked: Whether obstore can send no request, so that credentials must come from here.

    Raises:
        FetchError: The profile does not exist, or needs botocore.
    """
    if profile is None and ("access_key_id" in config or config.get("skip_signature")):
        return {}, None
    named = profile or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    if profile is None and any(os.environ.get(name) for name in _OF_PROCESS):
        is_by_role = not os.environ.get("AWS_ACCESS_KEY_ID")
        # obstore asks the endpoint of a container only with a token in a file.
        has_endpoint = os.environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
        is_left = has_endpoint and not os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
        return {}, _by_botocore(None) if (is_forked or is_left) and is_by_role else None
    section = _section(named or "default")
    if section is None and named is not None:
        raise FetchError(
            f"profile {named!r:.60}: expected it in ~/.aws/config or ~/.aws/credentials, found "
            "none; correct the profile in storage_options or $AWS_PROFILE"
        )
    found = {ours: section[name] for name, ours in _STATIC.items() if section and name in section}
    if "access_key_id" in found:
        return found, None
    if section is None or not set(section) - {"region", "output", "s3"}:
        # No credentials in files: those of the machine.
        return found, _by_botocore(None) if is_forked else None
    provider = _by_botocore(named)
    if provider is None:
        raise FetchError(
            f"profile {named or 'default'!r:.60}: expected keys, found "
            f"{', '.join(sorted(set(section) - set(_STATIC)))[:100]}, which botocore reads; pip "
            "install botocore, or pass key and secret in storage_options"
        )
    return found, provider


def _section(name: str) -> dict[str, str] | None:
    """Return the settings of a profile in the two AWS files; None if neither has it."""
    found: dict[str, str] | None = None
    for variable, path, section in (
        ("AWS_CONFIG_FILE", "~/.aws/config", "default" if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", name),
    ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(os.path.expanduser(os.environ.get(variable) or path), encoding="utf-8")
        except (configparser.Error, UnicodeError):
            raise FetchError(
                f"{os.environ.get(variable) or path}: expected an AWS configuration file, found "
                "lines of another form"
            ) from None
        if parser.has_section(section):
            found = {**(found or {}), **dict(parser.items(section))}
    return found


def _by_botocore(profile: str | None) -> Provider | None:
    """Return a provider of what botocore finds; None if it is not installed or finds nothing."""
    if find_spec("botocore") is None:
        return None
    import botocore.session

    credentials = botocore.session.Session(profile=profile).get_credentials()
    if credentials is None:
        return None

    def provide() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc) + _LIFE,
        }

    return provide


def of_google(config: Mapping[str, Any], *, is_forked: bool) -> Provider | None:
    """Return a provider of tokens by google-auth, where obstore has no way of its own.

    obstore reads keys of service accounts, those of users, and asks the machine (also that of a
    workload identity); federated and impersonated identities are left to google-auth.
    """
    path = config.get("application_credentials") or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    is_static = not {"skip_signature", "service_account_key", "bearer_token"}.isdisjoint(config)
    if is_static or not (is_forked or (path and _is_federated(path))):
        return None
    try:
        import google.auth
        import google.auth.transport.urllib3
    except ImportError:
        return None
    import urllib3

    scopes = ["https://www.googleapis.com/auth/devstorage.read_write"]
    credentials: Any = None

    def provide() -> dict[str, Any]:
        nonlocal credentials
        # Without a request, google-auth would need the package requests.
        request = google.auth.transport.urllib3.Request(urllib3.PoolManager())
        if credentials is None:
            load: Callable[..., Any] = google.auth.default
            if path:
                load = partial(google.auth.load_credentials_from_file, path)
            with warnings.catch_warnings():
                # Of files that others have written; this one is the user's.
                warnings.simplefilter("ignore", DeprecationWarning)
                credentials, _ = load(scopes=scopes, request=request)
        if not credentials.valid:
            credentials.refresh(request)
        return {"token": credentials.token, "expires_at": datetime.now(timezone.utc) + _LIFE}

    return provide


def _is_federated(path: str) -> bool:
    import json

    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file).get("type") not in ("service_account", "authorized_user")
    except (OSError, ValueError, AttributeError):
        return False  # obstore reports what is wrong with it
