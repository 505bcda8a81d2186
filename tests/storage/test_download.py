"""Files that arrive in pieces: cuts, resumption, and comparison with what is known."""

from __future__ import annotations

import hashlib
import io
import random
import threading
from contextlib import nullcontext, suppress

import pytest
from conftest import raises
from events import wait_for
from loopback import Fault, Server
from transfers import DATA, saved

from wids.errors import MismatchError
from wids.storage.download import Download, Expected
from wids.storage.fetch import Fetcher
from wids.storage.transport.retry import CancelledError, cancelled_by

LAST = Download.part_nbytes - 1

pytestmark = pytest.mark.usefixtures("quick_retries")


@pytest.mark.parametrize("how", ["reset", "close"])
def test_a_cut_is_resumed(server: Server, how: str) -> None:
    """After a cut only the rest is requested: at most 1.2 times the size is sent."""
    faults = [Fault(after_nbytes=2_000_000, how=how), Fault(after_nbytes=1_500_000, how=how)]
    url = server.page("/a", DATA, faults=faults)

    assert saved(url) == DATA
    ranges = [f"bytes={start}-{stop}" for start, stop in ((0, LAST), (2000000, 4999999))]
    assert [request.range for request in server.log] == [*ranges, "bytes=3500000-4999999"]
    assert server.num_sent <= 1.2 * len(DATA)


def test_without_ranges_it_starts_over(server: Server) -> None:
    """A server that cannot resume sends everything again, and no byte is stored twice."""
    fault = Fault(after_nbytes=2_000_000)
    url = server.page("/a", DATA, has_ranges=False, faults=[fault])

    assert saved(url) == DATA
    assert server.num_sent == 2_000_000 + len(DATA)


def test_without_a_tag_it_starts_over(server: Server) -> None:
    """Without a tag only a stated digest can show that the rest is of the same version."""
    url = server.page("/a", DATA, has_tag=False, faults=[Fault(after_nbytes=2_000_000)])
    assert saved(url) == DATA
    # The second time as a whole, so that its length need not be believed.
    assert [request.range for request in server.log] == [f"bytes=0-{LAST}", None]

    server.pages["/a"].faults.append(Fault(after_nbytes=2_000_000))
    assert saved(url, Expected(sha256=hashlib.sha256(DATA).hexdigest())) == DATA
    assert server.log[-1].range is not None


def test_a_file_that_changes_in_between_is_not_mixed(server: Server) -> None:
    """The rest of another version is never appended."""
    url = server.page("/a", DATA, faults=[Fault(after_nbytes=2_000_000)])
    other = random.Random(2).randbytes(len(DATA))
    file = io.BytesIO()

    def change(received_nbytes: int, _: int | None) -> None:
        if received_nbytes >= 1_500_000:
            server.pages["/a"].body = other

    Fetcher().save(url, file, report=change)

    assert file.getvalue() == other


def test_the_stated_length_reveals_a_short_response(server: Server) -> None:
    """A server that claims to have sent everything is compared with the spec."""
    fault = Fault(after_nbytes=1000, how="short")
    url = server.page("/a", DATA, always=fault)

    with raises(MismatchError, f"expected {len(DATA)} bytes (filesize), found 1000"):
        saved(url, Expected(nbytes=len(DATA)))
    server.pages["/a"].has_length = False
    with raises(MismatchError, f"expected {len(DATA)} bytes (filesize), found 1000"):
        saved(url, Expected(nbytes=len(DATA)))


def test_digests_are_compared(server: Server) -> None:
    """The error says which digest differs, and shows both values."""
    url = server.page("/a", DATA)
    md5, sha = hashlib.md5(DATA).hexdigest(), hashlib.sha256(DATA).hexdigest()  # noqa: S324

    assert saved(url, Expected(len(DATA), md5.upper(), sha)) == DATA
    with raises(MismatchError, f"expected the md5 {'0' * 32}, found {md5}"):
        saved(url, Expected(md5sum="0" * 32))
    with raises(MismatchError, f"expected the sha256 {'0' * 64}, found {sha}"):
        saved(url, Expected(sha256="0" * 64))


def test_one_thread_hashes_behind(server: Server) -> None:
    """While other bytes arrive; it ends with the download, also where that fails."""
    digest = hashlib.sha256(DATA).hexdigest()
    names: set[str] = set()

    def report(received_nbytes: int, _: int | None) -> None:
        names.update(thread.name for thread in threading.enumerate())
        if received_nbytes > len(DATA) - 100_000 and expected.md5sum:
            raise OSError(28, "No space left on device")

    url = server.page("/a", DATA)
    for expected in (Expected(sha256=digest), Expected(sha256=digest, md5sum="0" * 32)):
        names.clear()
        with suppress(OSError) if expected.md5sum else nullcontext():
            Fetcher().save(url, io.BytesIO(), expected, report)
        assert "wids-hash" in names
        wait_for(lambda: all(each.name != "wids-hash" for each in threading.enumerate()))


def test_the_stated_length_bounds_what_is_written() -> None:
    """An endless response does not fill the disk."""
    with raises(MismatchError, "expected 1000 bytes (filesize)"):
        saved("pipe:yes", Expected(nbytes=1000))


def test_a_cut_after_the_last_byte(server: Server) -> None:
    """The rest is empty, and the server answers 416: everything is fetched again."""
    fault = Fault(after_nbytes=len(DATA))
    url = server.page("/a", DATA, is_chunked=True, faults=[Fault(416), fault])

    assert saved(url) == DATA
    assert [request.range for request in server.log] == [
        f"bytes=0-{LAST}",
        None,  # an empty file has no first part
        f"bytes={len(DATA)}-",
        None,
    ]


def test_the_rest_may_say_more_than_the_first_response(server: Server) -> None:
    """A chunked response has no length, but its continuation has: it is the same file."""
    faults = [Fault(416), Fault(after_nbytes=2_000_000)]
    url = server.page("/a", DATA, is_chunked=True, faults=faults)

    assert saved(url) == DATA
    ranges = [request.range for request in server.log]
    assert ranges == [f"bytes=0-{LAST}", None, "bytes=2000000-"]


def test_cancel_ends_a_fetch(server: Server) -> None:
    """A fetch can be cancelled while bytes arrive and while it waits to retry."""
    cancel = threading.Event()
    server.rate_nbytes = 100_000  # 50 s for the file

    def report(received_nbytes: int, _: int | None) -> None:
        if received_nbytes:
            cancel.set()

    with cancelled_by(cancel), raises(CancelledError):
        Fetcher().save(server.page("/a", DATA), io.BytesIO(), report=report)
    assert server.num_sent < len(DATA) / 2
    with cancelled_by(cancel), raises(CancelledError):
        Fetcher().save(server.page("/b", DATA, 503), io.BytesIO())
