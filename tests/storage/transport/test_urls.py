"""URLs as strings: nothing is opened or fetched."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any
from urllib.parse import quote

import pytest
from conftest import raises

from wids.errors import FetchError, SpecError, printable
from wids.storage.transport import urls


@pytest.mark.parametrize(
    ("base", "reference", "expected"),
    [
        # local
        ("/d", "a.tar", "/d/a.tar"),
        ("/d", "sub/a.tar", "/d/sub/a.tar"),
        ("/d/e", "../a.tar", "/d/a.tar"),
        ("/d", "./a.tar", "/d/a.tar"),
        ("/d", "/x/a.tar", "/x/a.tar"),
        ("/d", "C#/50%/a b:c.tar", "/d/C#/50%/a b:c.tar"),
        ("file:///d%20e", "a.tar", "/d e/a.tar"),
        ("/d", "file:///x%20y/a.tar", "/x y/a.tar"),
        # another URL or a command is returned unchanged
        ("/d", "https://h/a.tar?x=1", "https://h/a.tar?x=1"),
        ("/d", "pipe:cat /x/../a.tar", "pipe:cat /x/../a.tar"),
        ("https://h/d", "pipe:cat a | b", "pipe:cat a | b"),
        ("https://h/d", "s3://b/a.tar", "s3://b/a.tar"),
        # remote
        ("https://h/d", "a.tar", "https://h/d/a.tar"),
        ("https://h/d/", "../a.tar", "https://h/a.tar"),
        ("https://h", "../../a.tar", "https://h/a.tar"),
        ("https://h/d", "/a.tar", "https://h/a.tar"),
        ("https://h/d", "//other/a.tar", "https://other/a.tar"),
        ("https://h/d", "a:b.tar", "https://h/d/a:b.tar"),
        ("s3://b/p//q", "x//a.tar", "s3://b/p//q/x//a.tar"),
        # a reference without a query takes that of a signed base
        ("https://h/d/?sig=1&t=2", "a.tar", "https://h/d/a.tar?sig=1&t=2"),
        ("https://h/d/?sig=1", "x/../a.tar", "https://h/d/a.tar?sig=1"),
        ("https://h/d/?sig=1", "a.tar?own=2", "https://h/d/a.tar?own=2"),
    ],
)
def test_reference_is_resolved(base: str, reference: str, expected: str) -> None:
    """References resolve against a folder, local or remote, and no part of them is lost.

    SPEC-7, SPEC-8, SPEC-9, SPEC-10.
    """
    assert urls.join(base, reference) == expected


def test_home_is_expanded() -> None:
    """A path may begin with ``~``, a URL's path may not (SPEC-10)."""
    assert urls.join("/d", "~/a.tar") == os.path.expanduser("~/a.tar")
    assert urls.join("https://h/d", "~/a.tar") == "https://h/d/~/a.tar"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://h/d/x.json?sig=1", "https://h/d/?sig=1"),
        ("https://h/x.json", "https://h/"),
        ("/d/x.json", "/d"),
        ("file:///d/x.json", "/d"),
    ],
)
def test_parent_keeps_the_query(url: str, expected: str) -> None:
    """A signature that opens a document opens its neighbours (SPEC-8)."""
    assert urls.parent(url) == expected


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("a.tar", ""),
        ("/a:b/c.tar", ""),
        ("a:b.tar", ""),
        ("C:/x.tar", ""),
        ("FILE:/x.tar", "file"),
        ("pipe:cat x://y", "pipe"),
        ("HTTPS://h/x", "https"),
        ("hf://datasets/x", "hf"),
    ],
)
def test_scheme(url: str, scheme: str) -> None:
    """Text without ``://`` and without a known prefix is a path."""
    assert urls.scheme(url) == scheme


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:pw@h:8/p?sig=1", "https://h:8/p?…"),
        ("s3://b/k", "s3://b/k"),
        ("pipe:curl -H 'token'", "pipe:curl …"),
        ("/d/a?b.tar", "/d/a?b.tar"),
        ("file:///d/a.tar?sig=a b", "file:///d/a.tar?…"),
        ("https://me:a@b@h/p", "https://h/p"),
        ("simplecache::https://me:pw@h/p?sig=1", "simplecache::https://h/p?…"),
        ("zip://a.tar::s3://key:pw@b/k.zip", "zip://a.tar::s3://b/k.zip"),
        ("https://h/p?sig=1::https://h/q", "https://h/p?…"),
        ("/cwd/https:/me:pw@h/p?sig=1", "/cwd/https:/h/p?…"),
    ],
)
def test_redacted_url_has_no_secret(url: str, shown: str) -> None:
    """Messages show where a file is, but not how to get access."""
    assert urls.redact(url) == shown


SIGNED = "s3://key%2F1:pass%2Fword@bucket/a?X-Signature=sig%2Fnature&n=1"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"no {SIGNED}", "no s3://bucket/a?…"),
        ("no bucket 'key%2F1:pass%2Fword@bucket'", "no bucket '…@bucket'"),
        ("no bucket key/1:pass/word@bucket", "no bucket …@bucket"),
        ("the key pass/word is of nobody", "the key … is of nobody"),
        ("SignatureDoesNotMatch sig/nature, 1 of 1", "SignatureDoesNotMatch …, 1 of 1"),
        (f"no https://b.s3/a{quote('?X-Signature=sig%2Fnature&n=1')}", "no https://b.s3/a%3F…"),
        ("moved to https://me:pw@h/b?token=2, try", "moved to https://h/b?… try"),
        ("what is /a/b?", "what is /a/b?"),
    ],
)
def test_text_of_others_has_no_secret(text: str, shown: str) -> None:
    """A driver may quote a part of the URL, decoded or not, or other URLs."""
    assert urls.without_secrets(text, SIGNED) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("found /a?Sig=abc%2Fdef123&n=1", "found /a?…"),
        ("found 'x abc%2Fdef1'", "found 'x …'"),  # a quotation that was cut
        ("found b'Sig=abc%2F'", "found b'…'"),
        ("Sig=abc/def123&amp;n=1", "…&amp;n=1"),
        ("abc and n=1", "abc and n=1"),
        (
            "original, in 604800 s, of original.tar",
            "original, in 604800 s, of original.tar",
        ),
        ("at /hidden-part/b?token=led-here1", "at /…/b?…"),
    ],
)
def test_what_a_server_repeats_has_no_secret(text: str, shown: str) -> None:
    """Nothing shows a part of the URLs that were requested last, whole or cut (SEC-38)."""
    for number in range(300):  # the latest of many
        urls.keep_secrets(f"https://h/{number}?other=of-{number}-others")
    urls.keep_secrets("https://h/original.tar?Sig=abc%2Fdef123&n=1", None)
    urls.keep_secrets("https://h/original.tar?as=original&s=604800")
    urls.keep_secrets("https://c/hidden-part/b?token=led-here1", "https://h/original.tar")
    assert printable(text) == shown
    assert str(FetchError(text)) == shown


def test_a_secret_stays_one_while_its_url_is_requested_again() -> None:
    """A thread that requests a URL once more hides its secrets at each moment (SEC-38)."""
    url = "https://h/again.tar?Sig=again-and-again"
    urls.keep_secrets(url)
    is_over = threading.Event()

    def request() -> None:
        while not is_over.is_set():
            urls.keep_secrets(url)

    thread, interval_s = threading.Thread(target=request), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        shown = {printable("found again-and-again") for _ in range(20_000)}
    finally:
        sys.setswitchinterval(interval_s)
        is_over.set()
        thread.join()
    assert shown == {"found …"}


def test_secrets_are_found_in_linear_time() -> None:
    """A server that answers with a long text of beginnings of URLs delays nobody."""
    begin_s = time.process_time()
    for text in ("a:/" * 200_000, "a://b@c " * 80_000, "https://" + "?a" * 200_000):
        urls.without_secrets(text, SIGNED)
    assert time.process_time() - begin_s < 10  # half a second; minutes if it were quadratic


def test_a_chain_of_drivers_is_no_path() -> None:
    """It is refused as a URL (SEC-10), and not opened as a file with a password in its name."""
    assert urls.scheme("simplecache::https://h/a.tar") == "simplecache"
    assert urls.join("/data", "simplecache::https://h/a.tar") == "simplecache::https://h/a.tar"
    assert urls.scheme("a::b/c.tar") == ""


def test_within_compares_whole_names() -> None:
    """A folder is not inside one whose name is a prefix of its own name."""
    assert urls.is_within("/d/e/f", "/d/e")
    assert not urls.is_within("/d/ef", "/d/e")
    assert not urls.is_within("/d/e/../x", "/d/e")


def test_pipe_cannot_be_a_base() -> None:
    """A command is not a folder."""
    with raises(SpecError, "pipe:curl …: expected a folder as base, found a pipe"):
        urls.join("pipe:curl x", "a.tar")


def test_file_urls_are_local() -> None:
    """The host of a ``file:`` URL is empty or localhost."""
    assert urls.local_path("file://localhost/d/x") == urls.local_path("file:///d/x") == "/d/x"
    for url in ("file://server/share/x.tar", "file://localhost2/x"):
        with raises(SpecError, url, "expected a local file, found the host"):
            urls.local_path(url)


def test_what_may_have_secrets_is_not_kept() -> None:
    """Signed URLs and commands are in no memory of what was found in URLs (SEC-61)."""
    names = ["https://h/a.tar?X-Signature=secret", "pipe:curl -H secret https://h"]
    for find in (urls.scheme, urls.origin, urls.check_server):
        kept: Any = next(
            cell.cell_contents
            for cell in find.__closure__ or ()  # type: ignore[attr-defined]
            if hasattr(cell.cell_contents, "cache_info")
        )
        find("https://h/a.tar")
        before = kept.cache_info()
        for name in names:
            find(name)
        assert kept.cache_info() == before
