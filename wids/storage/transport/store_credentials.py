"""Find the credentials of an object store, for signing in this process and for obstore.

Keys of AWS are read from options, the environment and the AWS files. Anything else that AWS tools
support is left to botocore, and the credentials of Google to google-auth. Where these are not
installed, or find nothing, obstore looks for credentials itself, and reads with them.
"""

from __future__ import annotations

import configparser
import json
import os
import warnings
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, TypeAlias

from wids.errors import FetchError
from wids.storage.transport.stream import TransientError

Provider: TypeAlias = "Callable[[], dict[str, Any]]"
"""Returns credentials as obstore expects them from a callback."""

_LIFE: Final = timedelta(minutes=5)
"""How long obstore keeps what botocore returns, which renews it a quarter of an hour ahead."""

_OF_PROCESS: Final = frozenset(
    ("web_identity_token_file", "container_credentials_relative_uri",
     "container_credentials_full_uri")
)  # fmt: skip
"""What leads to credentials without a profile, in the names of obstore."""

_ROLE: Final = _OF_PROCESS | {"container_authorization_token_file", "metadata_endpoint", "role_arn"}
"""Options with which a caller has obstore look for credentials."""


def of_aws(
    profile: str | None, options: Mapping[str, Any], environment: Mapping[str, Any]
) -> tuple[str | None, Provider | None]:
    """Return the region of the profile that is used, and a provider of credentials, or None.

    Args:
        profile: The profile that the caller named, or None.
        options: The caller's other options, in the names of obstore.
        environment: Those of the environment.

    Raises:
        FetchError: The profile does not exist, or needs botocore.
    """
    # All keys are from one place: a session of the environment is not one of the caller's keys.
    stated = options if "access_key_id" in options else environment
    is_anonymous = {**environment, **options}.get("skip_signature")
    is_enough = profile is None and ("access_key_id" in stated or is_anonymous)
    if is_enough or not _ROLE.isdisjoint(options):
        return None, None if is_anonymous else _static(stated)
    named = profile or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    if profile is None and not _OF_PROCESS.isdisjoint(environment):
        return None, _by_botocore(None)
    section = _section(named or "default")
    if section is None and named is not None:
        raise FetchError(
            f"profile {named!r:.60}: expected it in ~/.aws/config or ~/.aws/credentials, found "
            "none; correct the profile in storage_options or $AWS_PROFILE"
        )
    keys = {name.removeprefix("aws_"): value for name, value in (section or {}).items()}
    provider = _static(options) or _static(keys) or _by_botocore(named)
    more = set(section or ()) - {"region", "output", "s3"}
    if provider is None and more:
        raise FetchError(
            f"profile {named or 'default'!r:.60}: expected keys, found "
            f"{', '.join(sorted(more))[:100]}, which botocore reads; pip "
            "install botocore, or pass key and secret in storage_options"
        )
    return keys.get("region"), provider


def _static(keys: Mapping[str, Any]) -> Provider | None:
    """Return a provider of keys that do not change; None if there are none."""
    if "access_key_id" not in keys:
        return None
    found = {
        "access_key_id": keys["access_key_id"],
        "secret_access_key": keys.get("secret_access_key", ""),
        "token": keys.get("session_token"),
        "expires_at": None,
    }
    return lambda: found


def _section(name: str) -> dict[str, str] | None:
    """Return the settings of a profile in the two AWS files; None if neither has it."""
    settings: dict[str, str] | None = None
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
            settings = {**(settings or {}), **dict(parser.items(section))}
    return settings


def _by_botocore(profile: str | None) -> Provider | None:
    """Return a provider of what botocore finds; None if it is not installed or finds nothing."""
    if find_spec("botocore") is None:
        return None
    import botocore.session

    try:
        credentials = botocore.session.Session(profile=profile).get_credentials()
    except Exception as error:  # noqa: BLE001 - of another package
        raise FetchError(_failure("AWS", error)) from None
    if credentials is None:
        return None

    def find() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        keys = {"access_key_id": frozen.access_key, "secret_access_key": frozen.secret_key}
        return {**keys, "token": frozen.token}

    return partial(_provided, "AWS", find)


OF_AZURE: Final = {"sas_key": "sas_token", "account_key": "access_key"}
"""What a caller of Azure states, and its names in what a provider returns."""


def of_azure(options: Mapping[str, Any]) -> Provider | None:
    """Return a provider of what the caller states, which obstore asks before the environment.

    Args:
        options: The caller's options, in the names of obstore.
    """
    for name, provided in OF_AZURE.items():
        if name in options:
            return lambda: {provided: options[name], "expires_at": None}
    return None


def of_google(config: Mapping[str, Any]) -> Provider | None:
    """Return a provider of tokens by google-auth; None if it is not installed or finds nothing.

    Args:
        config: The configuration, also that of the environment.

    Raises:
        FetchError: The file or the key that was named cannot be used.
    """
    if config.get("skip_signature") or "bearer_token" in config:
        return None
    try:
        import google.auth
        import google.auth.transport.urllib3
    except ImportError:
        return None
    import urllib3

    key = config.get("service_account_key")
    path = config.get("service_account") or config.get("application_credentials")
    # Without a request, google-auth would need the package requests.
    request = google.auth.transport.urllib3.Request(urllib3.PoolManager())
    load: Callable[..., Any] = google.auth.default
    scopes = ["https://www.googleapis.com/auth/devstorage.read_write"]
    if key:
        load = partial(google.auth.load_credentials_from_dict, json.loads(key))
    elif path:
        load = partial(google.auth.load_credentials_from_file, path)
    try:
        with warnings.catch_warnings():
            # Of files that others have written; this one is the user's.
            warnings.simplefilter("ignore", DeprecationWarning)
            credentials: Any = load(scopes=scopes, request=request)[0]
    except Exception as error:  # noqa: BLE001 - of another package
        if not (key or path):
            return None
        raise FetchError(_failure("Google", error)) from None

    def find() -> dict[str, Any]:
        if not credentials.valid:
            credentials.refresh(request)
        return {"token": credentials.token}

    return partial(_provided, "Google", find)


def _provided(whose: str, find: Provider) -> dict[str, Any]:
    """Return what another package finds, as obstore expects it."""
    try:
        return {**find(), "expires_at": datetime.now(timezone.utc) + _LIFE}
    except Exception as error:  # noqa: BLE001 - of another package
        raise TransientError(_failure(whose, error), is_outage=False) from None


def _failure(whose: str, error: Exception) -> str:
    # Without its text, which may quote what a program or a server has printed.
    return (
        f"credentials of {whose}: expected some, found an error: {type(error).__name__}; check "
        "the profile, the key or the login"
    )
