"""Credentials of object stores, from where programs of AWS and Google look for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from conftest import in_child, optional, raises
from loopback import Server
from objects import new_certificate, object_server, part_of
from s3 import Bucket

from wids.errors import FetchError, NotFoundError
from wids.storage.transport.object_store import ObjectStores

DATA = b"0123456789"
ROLE = "arn:aws:iam::123456789012:role/reader"


@pytest.fixture
def home(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with empty AWS files; all of AWS is the bucket's server, which has one object."""
    optional("obstore")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for end in ("", "_STS"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL{end}", bucket.options["endpoint_url"])
    bucket.system.pipe(f"{bucket.name}/a.tar", DATA)
    (tmp_path / "token").write_text("a token of the cluster")
    return tmp_path


def read(bucket: Bucket, **options: Any) -> bytes:
    return part_of(ObjectStores(options), f"{bucket.url}/a.tar", 3, 9)[1]


def identity(key: str) -> dict[str, object]:
    """Return credentials as the pages of a machine state them."""
    until = datetime.now(timezone.utc) + timedelta(hours=1)
    return {
        "Code": "Success",
        "AccessKeyId": key,
        "SecretAccessKey": "secret",
        "Token": "token",
        "Expiration": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "LastUpdated": "2026-01-01T00:00:00Z",
        "Type": "AWS-HMAC",
    }


@pytest.mark.parametrize("by", ["option", "AWS_PROFILE", "default"])
def test_keys_of_a_profile(
    bucket: Bucket, home: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Keys in the two AWS files are used, by option, by variable and by default."""
    name = "default" if by == "default" else "training"
    section = name if by == "default" else f"profile {name}"
    (home / "config").write_text(f"[{section}]\nregion = eu-west-1\n")
    (home / "credentials").write_text(
        f"[{name}]\naws_access_key_id = OURS\naws_secret_access_key = secret\n"
        "[other]\naws_access_key_id = THEIRS\naws_secret_access_key = secret\n"
    )
    options = {"profile": name} if by == "option" else {}
    if by == "AWS_PROFILE":
        monkeypatch.setenv("AWS_PROFILE", name)
    assert read(bucket, **options) == DATA[3:9]
    assert set(bucket.keys) == {"OURS"}


def test_parts_of_two_credentials_are_not_mixed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys in options, or of a profile in options, come without a session of the environment.

    That is so for what is read by HTTP, and for what obstore reads, lists and writes.
    """
    import obstore

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "THEIRS")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
    (home / "credentials").write_text(
        "[training]\naws_access_key_id = OURS\naws_secret_access_key = secret\n"
    )

    def queries(**options: Any) -> list[dict[str, str]]:
        stores = ObjectStores(options)
        bucket = stores.by_http("s3://bucket/a.tar")
        assert bucket is not None
        call: Any = obstore.sign
        sign = partial(call, method="GET", expires_in=timedelta(seconds=9))
        by_obstore = stores.asked("s3://bucket/a.tar", lambda store, key: sign(store, paths=key))
        addresses = bucket.address("s3://bucket/a.tar"), by_obstore
        return [dict(parse_qsl(url.partition("?")[2])) for url in addresses]

    for query in queries():
        assert query["X-Amz-Security-Token"] == "session"
    for options in ({"key": "OURS", "secret": "secret"}, {"profile": "training"}):
        for query in queries(**options):
            assert query["X-Amz-Credential"].startswith("OURS/")
            assert "X-Amz-Security-Token" not in query


def test_a_signature_of_azure_is_not_mixed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in options is used without credentials of the environment, by HTTP and by obstore."""
    optional("obstore")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=THEIRS")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "dGhlaXJz")
    stores = ObjectStores(
        {
            "account_name": "account",
            "endpoint_url": f"{server.url}/account",
            "sas_token": "?sv=1&sig=a%2Bb%3D",
        }
    )
    with raises(NotFoundError, "az://container/a.tar"):
        stores.open("az://container/a.tar", 0, 9, None)
    with raises(NotFoundError, "az://container/x/"):
        stores.entries("az://container/x/")
    assert [dict(parse_qsl(path)).get("sig") for path in server.requests] == ["a+b=", "a+b="]
    assert not any("authorization" in request.headers for request in server.log)


def of_process(home: Path) -> str:
    script = home / "script.py"
    answer = {
        "Version": 1,
        "AccessKeyId": "BYPROCESS",
        "SecretAccessKey": "secret",
        "SessionToken": "token",
    }
    script.write_text(f"print({json.dumps(answer)!r})")
    return f"credential_process = {sys.executable} {script}\n"


def of_web_identity(home: Path) -> str:
    return f"role_arn = {ROLE}\nweb_identity_token_file = {home}/token\n"


def of_source_profile(home: Path) -> str:
    (home / "credentials").write_text(
        "[source]\naws_access_key_id = SOURCE\naws_secret_access_key = secret\n"
    )
    return f"role_arn = {ROLE}\nsource_profile = source\n"


@pytest.mark.parametrize(
    ("settings", "key"),
    [(of_process, "BYPROCESS"), (of_web_identity, "ASIA"), (of_source_profile, "ASIA")],
)
def test_a_profile_that_botocore_reads(
    bucket: Bucket, home: Path, settings: Callable[[Path], str], key: str
) -> None:
    """A program's keys and those of an assumed role are used, also in a forked child."""
    optional("botocore")
    text = settings(home)
    (home / "config").write_text(f"[profile training]\nregion = us-east-1\n{text}")
    assert read(bucket, profile="training") == DATA[3:9]
    assert bucket.keys[-1].startswith(key)
    num_before = len(bucket.keys)
    assert in_child(lambda: read(bucket, profile="training") == DATA[3:9])
    assert len(bucket.keys) > num_before
    assert bucket.keys[-1].startswith(key)


def test_a_program_without_keys_is_an_error(bucket: Bucket, home: Path) -> None:
    """It says whose credentials were looked for, and nothing that the program printed."""
    optional("botocore")
    program = "import sys; sys.exit('a secret')"
    (home / "script.py").write_text(program)
    process = f"credential_process = {sys.executable} {home}/script.py\n"
    (home / "config").write_text(f"[profile training]\n{process}")
    with raises(FetchError, "credentials of AWS", "CredentialRetrievalError") as caught:
        read(bucket, profile="training")
    assert "a secret" not in str(caught.value)


def test_without_botocore_a_profile_says_what_it_needs(
    bucket: Bucket, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the profile, its settings and the package; a missing profile says so."""
    text = of_process(home)
    (home / "config").write_text(f"[profile training]\nregion = us-east-1\n{text}")
    monkeypatch.setattr("wids.storage.transport.store_credentials.find_spec", lambda _: None)
    with raises(FetchError, "'training'", "credential_process", "pip install botocore"):
        read(bucket, profile="training")
    with raises(FetchError, "'absent'", "correct the profile"):
        read(bucket, profile="absent")
    (home / "config").write_text("no section = 1\n")
    with raises(FetchError, "config", "expected an AWS configuration file"):
        read(bucket, profile="training")


@pytest.mark.parametrize("has_session", [False, True])
def test_single_sign_on(bucket: Bucket, home: Path, *, has_session: bool) -> None:
    """A profile of SSO gets keys for the token that ``aws sso login`` has left."""
    optional("botocore")
    start = "https://example.awsapps.com/start"
    sign_on = f"sso_start_url = {start}\nsso_region = us-east-1\n"
    of_profile = "sso_session = company\n" if has_session else sign_on
    (home / "config").write_text(
        f"[profile training]\nregion = us-east-1\n{of_profile}"
        "sso_account_id = 123456789012\nsso_role_name = reader\n"
        f"[sso-session company]\n{sign_on}"
    )
    tokens = home / ".aws" / "sso" / "cache"
    tokens.mkdir(parents=True)
    until = datetime.now(timezone.utc) + timedelta(hours=1)
    text = json.dumps({"accessToken": "t", "expiresAt": until.strftime("%Y-%m-%dT%H:%M:%SZ")})
    name = "company" if has_session else start
    (tokens / f"{sha1(name.encode(), usedforsecurity=False).hexdigest()}.json").write_text(text)
    portal = Server()
    try:
        answer = {
            "accessKeyId": "BYSSO",
            "secretAccessKey": "secret",
            "sessionToken": "token",
            "expiration": int(until.timestamp()) * 1000,
        }
        needs = ("x-amz-sso_bearer_token", "t")
        portal.page("/federation/credentials", {"roleCredentials": answer}, needs=needs)
        # botocore finds the folder of tokens when it is imported.
        code = (
            "from wids.storage import fetch; import sys;"
            f"sys.stdout.buffer.write(fetch.Fetcher().read({bucket.url + '/a.tar'!r}, {len(DATA)}))"
        )
        environment = {
            **os.environ,
            "HOME": str(home),
            "AWS_PROFILE": "training",
            "AWS_ENDPOINT_URL_SSO": portal.url,
        }
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, check=True
        )
    finally:
        portal.close()
    assert done.stdout == DATA
    assert bucket.keys[-1] == "BYSSO"


def test_a_web_identity_of_the_process(
    bucket: Bucket, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables that a cluster sets (IRSA) are enough, also in a forked child."""
    optional("botocore")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_ROLE_SESSION_NAME", "training")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(home / "token"))
    assert read(bucket) == DATA[3:9]
    num_before = len(bucket.keys)
    assert in_child(lambda: read(bucket) == DATA[3:9])
    assert len(bucket.keys) > num_before
    assert bucket.keys[-1].startswith("ASIA")


@pytest.mark.parametrize("place", ["file", "variable"])
def test_an_identity_of_a_container(
    bucket: Bucket, home: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A container gets keys from the page that its variables name (EKS, ECS), also in a child."""
    optional("botocore")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    agent = Server()
    try:
        token = (home / "token").read_text()
        address = agent.page("/keys", identity("BYPAGE"), needs=("authorization", token))
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", address)
        if place == "file":
            monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(home / "token"))
        else:
            monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", token)
        assert read(bucket) == DATA[3:9]
        assert in_child(lambda: read(bucket) == DATA[3:9])
    finally:
        agent.close()
    assert set(bucket.keys) == {"BYPAGE"}


def test_an_identity_of_a_machine(
    bucket: Bucket, home: Path, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    """Without settings the keys are those of the instance (EC2), also in a forked child."""
    optional("botocore")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    for name in ("AWS_METADATA_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        monkeypatch.setenv(name, server.url)
    folder = "/latest/meta-data/iam/security-credentials/"
    needs = ("x-aws-ec2-metadata-token", "a token")
    server.page("/latest/api/token", b"a token")
    server.page(folder, b"reader", needs=needs)
    server.page(f"{folder}reader", identity("BYMACHINE"), needs=needs)
    assert not (home / "config").exists()
    assert read(bucket) == DATA[3:9]
    assert in_child(lambda: read(bucket) == DATA[3:9])
    assert set(bucket.keys) == {"BYMACHINE"}


def federated(home: Path, server: Server) -> dict[str, object]:
    """A workload identity of another cloud, whose token is in a file."""
    return {
        "type": "external_account",
        "audience": "//iam.googleapis.com/locations/global/workforcePools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{server.url}/token",
        "credential_source": {"file": str(home / "token")},
    }


def service_account(home: Path, server: Server) -> dict[str, object]:
    new_certificate(home)
    return {
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "1",
        "private_key": (home / "key.pem").read_text(),
        "client_email": "reader@p.iam.gserviceaccount.com",
        "client_id": "2",
        "token_uri": f"{server.url}/token",
    }


@pytest.mark.parametrize("account", [federated, service_account])
def test_identities_of_google(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: Server,
    account: Callable[[Path, Server], dict[str, object]],
) -> None:
    """Each gets a token from its server, also after a fork, and names who is billed."""
    pytest.importorskip("google.auth", reason="pip install 'wids[gcs]'")
    (tmp_path / "token").write_text("a token of the cluster")
    (tmp_path / "account.json").write_text(json.dumps(account(tmp_path, server)))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
    answer = {
        "access_token": "token",
        "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "token_type": "Bearer",
        "expires_in": 3600,
    }
    server.page("/token", answer)
    (tmp_path / "www" / "bucket").mkdir(parents=True)
    (tmp_path / "www" / "bucket" / "train").write_bytes(DATA)
    billed = "if ($http_x_goog_user_project != project) { return 400; }"
    more = f'location / {{ if ($http_authorization != "Bearer token") {{ return 401; }} {billed} }}'
    with object_server(tmp_path, more=more) as address:

        def reads() -> bool:
            transport = ObjectStores({"endpoint_url": address, "requester_pays": "project"})
            return part_of(transport, "gs://bucket/train", 3, 9)[1] == DATA[3:9]

        assert reads()
        assert in_child(reads)
