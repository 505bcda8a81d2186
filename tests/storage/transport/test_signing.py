"""Signatures for S3, beside those of botocore."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

import pytest
from conftest import optional

from wids.storage.transport import signing
from wids.storage.transport.signing import AwsKeys

CHARACTERS = "aZ09-._~/ +%=&?#@:;,!$'()*[]{}|\\^`\"<>äß漢🦆"


@pytest.mark.parametrize("seed", range(20))
def test_a_url_is_signed_as_by_botocore(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts, keys, sessions, regions, ends and requester pays give the same signature."""
    optional("botocore")
    from botocore import auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    choose = random.Random(seed)
    key = "".join(choose.choices(CHARACTERS, k=choose.randrange(1, 40)))
    host = choose.choice(["http://127.0.0.1:9000", "https://s3.eu-west-1.amazonaws.com"])
    url = f"{host}/bucket/{quote(key)}".replace("/./", "/a/").replace("/../", "/b/")
    url = url + "x" if url.endswith(".") else url
    token = choose.choice([None, "to/ken+==" * 40])
    keys = AwsKeys("AKIDEXAMPLE", "secret/+" + str(seed), token)
    date_s, life_s = choose.randrange(2_000_000_000), choose.randrange(1, 604_800)
    more: dict[str, str] = choose.choice([{}, {"x_amz_request_payer": "requester"}])
    region = choose.choice(["us-east-1", "eu-central-2"])

    moment = datetime.fromtimestamp(date_s, timezone.utc)
    now: Any = lambda *_, **__: moment.replace(tzinfo=None)  # noqa: E731
    monkeypatch.setattr(auth, "get_current_datetime", now)
    request = AWSRequest("GET", url + ("?x-amz-request-payer=requester" if more else ""))
    signer = auth.S3SigV4QueryAuth(Credentials(*keys), "s3", region, expires=life_s)
    signer.add_auth(request)
    ours = signing.signed(url, keys, region, date_s, life_s, **more)
    assert _parts(ours) == _parts(str(request.url))


def _parts(url: str) -> tuple[str, set[str]]:
    path, _, query = url.partition("?")
    return path, set(query.split("&"))


def test_keys_are_not_shown() -> None:
    """Neither is in a text that an error could quote."""
    assert "secret" not in f"{AwsKeys('id', 'secret', 'token')!r}{AwsKeys('id', 'secret')}"
