"""JSON has the same values with orjson as without it: those of Python's json."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wids.shards.fields import values
from wids.shards.fields.values import decode_json


@pytest.fixture(params=["json", "orjson"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let one parser be installed, or skip."""
    if request.param == "json":
        monkeypatch.setitem(sys.modules, "orjson", None)
    else:
        pytest.importorskip("orjson", reason="needs the extra wids[fast]")
    values._fastest_json.cache_clear()
    yield
    values._fastest_json.cache_clear()


def outcome(parse: Any, data: bytes) -> str:
    """Return the value as text, in which types and signs differ, or the error."""
    try:
        return repr(parse(data))
    except Exception as error:  # noqa: BLE001 - any other one is a difference
        return f"{type(error).__name__}: {error}"


NUMBERS = """
0 -0 -0.0 0.1 1E5 1e999 -1e-400 NaN -Infinity [Infinity,1] 123456789012345678.0
9223372036854775807 -9223372036854775808 -9223372036854775809 18446744073709551615
18446744073709551616 [0.0012345678901234567,1] [0.0012345678901234567,18446744073709551616]
12345678901234567890.5 0.12345678901234567890123456789012345678901234567890 1e18446744073709551616
{"a":123456789012345678901234567890} [.1] [1.] 01 +1
"""
TEXTS = [
    *(b"", b" ", b" 1 \n", b"1 2", b"1,2", b"[3", b'{"a":1,"a":2}', b'{"a":1,}', b"[]]", b"nul"),
    *(b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\x01"', b'"\\u0000"', b'"\xff"', b'"\xed\xa0\x80"'),
    *("1".encode("utf-16"), '"ä"'.encode("utf-16-le"), '"ä"'.encode("utf-8-sig"), b"1\x00\x00\x00"),
    *("\u2028".encode(), '"\u2028"'.encode(), b"\xa01", b"1\x0c", b"[" * 2000 + b"]" * 2000),
    b'"' + b"7" * 40 + b'"',
]


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("data", [*NUMBERS.encode().split(), *TEXTS])
def test_a_document_has_the_value_of_json(data: bytes) -> None:
    """Each document has the value, or the error, that ``json.loads`` has for it."""
    assert outcome(decode_json, data) == outcome(json.loads, data)


@pytest.mark.usefixtures("parser")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    ),
    st.sampled_from([None, 1]),
)
def test_any_value_is_that_of_json(value: Any, indent: int | None) -> None:
    """Integers of any length, floats, and lone surrogates are the same for every parser."""
    data = json.dumps(value, indent=indent).encode()
    assert outcome(decode_json, data) == outcome(json.loads, data)


@pytest.mark.parametrize("parser", ["orjson"], indirect=True)
@pytest.mark.usefixtures("parser")
def test_floats_are_parsed_by_orjson(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digits of a float are not taken for those of an integer that orjson cannot read."""
    monkeypatch.setattr(values, "_decode_utf8", None)
    found = decode_json(b"[0.0012345678901234567, 3.00000000000000000001]")
    assert math.isclose(found[0], 0.0012345678901234567)
