"""Headers that a callable returns: tokens that expire, and calls that fail."""

from __future__ import annotations

import pickle
import time
from functools import partial

import pytest
from conftest import in_child, raises
from loopback import Server

from wids.errors import FetchError
from wids.storage.fetch import Fetcher
from wids.storage.reading_threads import in_threads
from wids.storage.transport.http import CallerHeaders

pytestmark = pytest.mark.usefixtures("quick_retries")


class Tokens:
    """A service of tokens, of which the server accepts the last one only.

    Attributes:
        server: Serves the pages.
        count: Number of tokens so far.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.count = 0

    def __call__(self) -> dict[str, str]:
        self.count += 1
        self.accept(self.count)
        return {"Authorization": f"Bearer SECRET{self.count}"}

    def accept(self, number: int) -> None:
        """Accept one token, and no other."""
        for page in self.server.pages.values():
            page.denial = 401
            page.needs = ("Authorization", f"Bearer SECRET{number}")


def test_a_token_that_expires_is_renewed(server: Server) -> None:
    """After 401 the callable is called once more, in the same read and by one thread only."""
    url = server.page("/a", bytes(1000))
    tokens = Tokens(server)
    fetcher = Fetcher({"headers": tokens})
    assert fetcher.read(url, 1000) == bytes(1000)
    assert tokens.count == 1
    tokens.accept(2)  # before the callable returned it

    read = fetcher.range_reader(url, 1000)
    assert in_threads([partial(read, 0, 10)] * 20, "test") == [bytes(10)] * 20
    assert tokens.count == 2


def test_a_token_with_a_time_is_renewed_before(server: Server) -> None:
    """It is called again shortly before the time that it stated, and not for each request."""
    url = server.page("/a", b"abc")
    tokens, lasts_s = Tokens(server), 3600.0
    fetcher = Fetcher({"headers": lambda: (tokens(), time.time() + lasts_s)})
    for _ in range(3):
        assert fetcher.read(url, 3) == b"abc"
    assert tokens.count == 1

    lasts_s = -1.0
    fetcher = Fetcher({"headers": lambda: (tokens(), time.time() + lasts_s)})
    for _ in range(3):
        assert fetcher.read(url, 3) == b"abc"
    assert tokens.count == 4
    assert not [request for request in server.log if request.path != "/a"]


def test_a_token_goes_to_no_other_server(server: Server) -> None:
    """A redirect drops what the callable returned, and a refusal there renews nothing for it."""
    other = Server()
    try:
        target = other.page("/b", b"there", needs=("Authorization", "theirs"), denial=401)
        tokens = Tokens(server)
        with raises(FetchError, "found 401"):
            Fetcher({"headers": tokens}).read(server.page("/a", b"", location=target), 10)
        assert len(other.log) >= 1
        assert not [r for r in other.log if "authorization" in r.headers]
    finally:
        other.close()


def failing(kind: type[Exception]) -> dict[str, str]:
    raise kind("SECRET")


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (partial(failing, KeyError), ["an error: KeyError"]),
        (partial(failing, TimeoutError), ["an error: TimeoutError", "tried 5 times"]),
        (lambda: "SECRET", ["must return a dict", "found a str"]),
        (lambda: ({"a": "b"}, "SECRET"), ["must return a dict", "found a tuple"]),
        (lambda: {"a": "SECRET\n"}, ["one line of Latin-1"]),
    ],
)
def test_a_callable_that_fails_is_an_error(call: object, parts: list[str], server: Server) -> None:
    """The message says what is wrong with the callable, and shows nothing of what it returned."""
    with raises(FetchError, "the headers callable", *parts) as caught:
        Fetcher({"headers": call}).read(server.page("/a", b"abc"), 3)
    assert "SECRET" not in str(caught.value)
    assert not server.log


def constant() -> dict[str, str]:
    return {"Authorization": "Bearer SECRET1"}


def test_a_callable_goes_to_other_processes(server: Server) -> None:
    """A fetcher can be forked, and pickled if the callable can; tokens are not in the pickle."""
    url = server.page("/a", b"abc", needs=("Authorization", "Bearer SECRET1"))
    fetcher = Fetcher({"headers": constant})
    assert fetcher.read(url, 3) == b"abc"

    pickled = pickle.dumps(fetcher)
    assert b"SECRET1" not in pickled
    assert pickle.loads(pickled).read(url, 3) == b"abc"  # noqa: S301 - made here
    assert in_child(lambda: fetcher.read(url, 3) == b"abc")


def test_a_child_does_not_wait_for_a_call_of_its_parent() -> None:
    """The lock of a thread that is calling is not the child's."""
    headers = CallerHeaders(constant)
    with headers._lock:
        assert in_child(lambda: headers.current() == constant())


def test_headers_of_a_prefix_stay_below_it(server: Server) -> None:
    """A redirect on the same server that leads out of their path drops them (SEC-9)."""
    outside, inside = server.page("/other/b", b"there"), server.page("/own/b", b"there")
    prefix = outside.removesuffix("/other/b") + "/own"
    fetcher = Fetcher({prefix: {"headers": {"X-Token": "SECRET"}}})
    for target, is_sent in ((outside, False), (inside, True), (f"{prefix}/../other/b", False)):
        assert fetcher.read(server.page("/own/a", b"", location=target), 10) == b"there"
        first, second = server.log[-2:]
        assert first.headers.get("x-token") == "SECRET"
        assert second.headers.get("x-token") == ("SECRET" if is_sent else None), target
