"""Lengths of many files, asked before any of them is read."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import raises
from events import LONG_S
from loopback import Fault, Server
from transfers import DATA

from wids.errors import FetchError, NotFoundError
from wids.storage.fetch import Fetcher
from wids.storage.remote_lengths import ask_lengths, check_found, known_lengths


def check(names: list[str], missing: set[int]) -> str:
    answers = [NotFoundError(f"{n}: not found") if i in missing else 1 for i, n in enumerate(names)]
    with pytest.raises(NotFoundError) as caught:
        check_found(names, answers)
    return str(caught.value)


def train(stop: int, end: str = ".tar") -> list[str]:
    return [f"https://h/train-{n:06d}{end}" for n in range(stop)]


@pytest.mark.parametrize(
    ("names", "missing", "expected"),
    [
        (
            train(147),
            set(range(100, 147)),
            "{000000..000146}.tar; 000000 to 000099 exist, 000100 and 46 more do not",
        ),
        (train(3), {1}, "{000000..000002}.tar; 000000, 000002 exist, 000001 does not"),
        (train(2), {0}, "{000000..000001}.tar; 000001 exists, 000000 does not"),
        (
            train(20, ".tar?sign=SECRET"),
            {19},
            "{000000..000019}.tar?…; 000000 to 000018 exist, 000019 does not",
        ),
        (
            [f"a{n}.tar" for n in range(8, 12)],
            {3},
            "expected a{8..11}.tar; 8 to 10 exist, 11 does not",
        ),
        (["a.tar", "b.tar", "c.tar"], {1}, "expected 3 files: 2 of 3 exist, b.tar not"),
        (["a.tar"], {0}, "a.tar: not found"),
        (["a.tar", "b.tar", "c.tar"], {0, 1, 2}, "a.tar: not found, and 2 more do not exist"),
    ],
)
def test_what_is_missing_is_named_with_what_exists(
    names: list[str], missing: set[int], expected: str
) -> None:
    """A wrong bound of a pattern is obvious from the error."""
    start = "expected https://h/train-" if expected[0] == "{" else ""
    assert check(names, missing) == start + expected


def test_many_at_a_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first byte of each states its length; they are asked in parallel."""
    urls = [server.page(f"/{n}.tar", b"x" * n) for n in range(64)]
    answer, together, numbers = server._answer, threading.Barrier(8), count()

    def answer_together(*arguments: Any) -> None:
        if next(numbers) < 8:
            together.wait(LONG_S)
        answer(*arguments)

    monkeypatch.setattr(server, "_answer", answer_together)
    assert ask_lengths(Fetcher(), urls) == list(range(64))
    assert not together.broken
    assert sorted(r.path for r in server.asked) == sorted(f"/{n}.tar" for n in range(64))
    assert sum(request.num_sent for request in server.asked) == 63  # one is empty
    assert server.log == []


@pytest.mark.parametrize(
    ("how", "found"),
    [("redirect", 5_000_000), ("token", 5_000_000), ("no ranges", 5_000_000), ("no length", None),
     ("neither", None)],
)  # fmt: skip
def test_how_servers_answer(how: str, found: int | None, server: Server) -> None:
    """No more than the beginning of a file is sent, also where no part and no length is."""
    about: dict[str, Any] = {
        "token": {"needs": ("X-Token", "T")},
        "no ranges": {"has_ranges": False},
        "no length": {"has_ranges": False, "is_chunked": True},
        "neither": {"has_ranges": False, "has_length": False},
    }
    url = server.page("/a", DATA, **about.get(how, {}))
    if how == "redirect":
        url = server.page("/b", b"", location="/a")
    server.rate_nbytes = 1_000_000
    assert Fetcher({"headers": {"X-Token": "T"}}).nbytes(url) == found
    assert sum(request.num_sent for request in server.asked) < 1_000_000


def test_what_is_not_asked(server: Server, tmp_path: Path) -> None:
    """A command would run, a handler may fetch everything: both stay unknown."""
    fetcher = Fetcher(handlers={"mine": pytest.fail})
    ran = tmp_path / "ran"

    assert known_lengths(fetcher, {f"pipe:touch {ran}": None, "mine://a": None, "s3://b": 7}) == {
        f"pipe:touch {ran}": None,
        "mine://a": None,
        "s3://b": 7,
    }
    assert not ran.exists()
    (tmp_path / "a").write_bytes(b"123")
    assert ask_lengths(fetcher, [str(tmp_path / "a")]) == [3]
    refused = server.page("/x", b"", always=Fault(403))
    with raises(FetchError, "403"):
        ask_lengths(fetcher, [refused, server.url + "/y"])
