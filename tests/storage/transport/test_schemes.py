"""Which transport opens a URL, and which of the caller's options it gets."""

from __future__ import annotations

import io
import pickle
from importlib import import_module
from pathlib import Path

import pytest
from conftest import raises
from loopback import Server
from transfers import DATA, saved

from wids.errors import FetchError, NotFoundError
from wids.storage.fetch import Fetcher
from wids.storage.transport.local import Handler
from wids.storage.transport.schemes import TRANSPORTS
from wids.storage.transport.stream import Transport


def test_options_are_sent(server: Server) -> None:
    """Headers open a file that needs a token; without them the error says what to pass."""
    url = server.page("/a", DATA, needs=("Authorization", "Bearer T"))
    with raises(FetchError, "403", "storage_options"):
        saved(url)

    headers = {"headers": {"Authorization": "Bearer T"}}
    assert saved(url, storage_options=headers) == DATA
    assert saved(url, storage_options={server.url: headers, "s3://": {}}) == DATA


def test_tokens_go_to_no_other_server(server: Server) -> None:
    """Neither a redirect, nor a document from elsewhere, nor a look-alike gets them (SEC-9)."""
    options = {"headers": {"Authorization": "T", "X-Token": "T"}}
    other = Server()
    try:
        target = other.page("/b/c", DATA)
        assert saved(server.page("/a", b"", location=target), storage_options=options) == DATA
        # A document from `server` names a file of `other`.
        fetcher = Fetcher(options)
        fetcher.read(server.page("/spec.json", {}), 100)
        fetcher.save(target, io.BytesIO())
        for prefix in (server.url, other.url + "/a", other.url + "/b/cc", "https://"):
            assert saved(target, storage_options={prefix: options}) == DATA
        other.page("/b/e", DATA)
        assert saved(other.url + "/d/../b/e", storage_options={other.url + "/d/": options})
        for trick in ("#", "\\", "%23"):
            url = f"{other.url}{trick}@{server.url.partition('//')[2]}/b/c"
            with pytest.raises(FetchError):
                saved(url, storage_options={server.url: options})
        for request in other.log:
            assert not {"authorization", "x-token"} & set(request.headers)
        fetcher.save(server.page("/c", DATA), io.BytesIO())
        for prefix in (other.url, other.url + "/", other.url + "/b", other.url + "/b/c", "http://"):
            saved(target, storage_options={prefix: options})
            assert other.log[-1].headers["x-token"] == "T"
    finally:
        other.close()
    assert server.log[-1].headers["x-token"] == "T"


def test_mixed_options_are_refused() -> None:
    """Options and options by prefix in one dict are ambiguous."""
    with raises(ValueError, "found both", "headers"):
        Fetcher({"headers": {}, "s3://": {}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": "soon"}, "options: timeout: expected a number of seconds, found 'soon'"),
        ({"https://h/": {"timeout": -1}}, "timeout: expected a number of seconds, found -1"),
        ({"headers": "X-Token: T"}, "storage_options: headers: expected a dict, found a str"),
        ({"https://h/": "T"}, "storage_options: expected a dict, found a str"),
    ],
)
def test_options_that_no_transport_can_use(options: dict[str, object], message: str) -> None:
    """The error names the option before anything is requested, and shows no token."""
    with raises(ValueError, message) as caught:
        Fetcher(options)
    assert "T" not in str(caught.value)


def test_a_timeout_is_a_number_or_its_text(server: Server) -> None:
    """Text from a command line or a variable means the same."""
    assert saved(server.page("/a", DATA), storage_options={"timeout": "9"}) == DATA


def test_handlers_of_the_callers_own(tmp_path: Path) -> None:
    """A callable that opens a URL is enough for a scheme; if its files can seek, so is a range."""
    (tmp_path / "a").write_bytes(DATA)
    opened = []

    def open_mine(url: str) -> io.BufferedReader:
        opened.append(url)
        return (tmp_path / url.partition("://")[2]).open("rb")

    handlers = {"mine": open_mine}
    assert saved("mine://a", handlers=handlers) == DATA
    assert Fetcher(handlers=handlers).range_reader("mine://a", len(DATA))(5, 10) == DATA[5:10]
    with raises(NotFoundError, "mine://b"):
        saved("mine://b", handlers=handlers)
    assert opened == ["mine://a", "mine://a", "mine://b"]
    with raises(FetchError, "mine://c", "expected a readable file", "NoneType"):
        saved("mine://c", handlers={"mine": lambda _: None})


def open_data(_: str) -> io.BytesIO:
    """A handler that a pickle can name."""
    return io.BytesIO(DATA)


def test_all_transports_have_one_interface() -> None:
    """Each of the table, fsspec's and a handler's is a `Transport`, which pickles."""
    modules = {
        import_module(f"wids.storage.transport.{m}") for m in {*TRANSPORTS.values(), "fsspec"}
    }
    transports = [module.transport_for({}, None) for module in modules]
    for transport in [*transports, Handler(open_data)]:
        assert isinstance(transport, Transport)
        assert type(pickle.loads(pickle.dumps(transport))) is type(transport)  # noqa: S301 - own


def test_a_fetcher_with_a_handler_is_pickled() -> None:
    """A worker that is spawned reads with the handlers of its parent; a transport asks nothing."""
    fetcher = pickle.loads(pickle.dumps(Fetcher(handlers={"mine": open_data})))  # noqa: S301 - own
    assert fetcher.read("mine://a", len(DATA)) == DATA
    assert fetcher.nbytes("mine://a") is None


@pytest.mark.parametrize("url", ["mine://a/", "pipe:ls", "http://127.0.0.1:1/a/"])
def test_transports_without_lists_say_so(url: str) -> None:
    """A handler, a command and plain HTTP list no folders, and are not asked for one."""
    handlers = {"mine": lambda _: pytest.fail("the handler was called")}
    with raises(
        FetchError, url.split(" ", maxsplit=1)[0], "expected a scheme whose folders can be listed"
    ):
        Fetcher(handlers=handlers).entries(url)
