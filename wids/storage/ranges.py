"""Read parts of one remote file, all of one version, and join near ranges into one request.

Each response states the length of the file, and most servers also state its tag. A response with
another length or tag is an error, so an index of one version is never used to read the next. Where
the caller compares the bytes with checksums, these decide, and not the tag: mirrors and the
machines behind a load balancer state other tags for equal files.

A request costs about as much time as some more bytes do, so the bytes between two ranges are
requested along with them where that saves a request. How many bytes these are depends on what a
reader waits for, which the callers decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, cast

from wids.errors import FetchError, MismatchError, WidsError
from wids.storage.reading_threads import in_threads
from wids.storage.transport import urls
from wids.storage.transport.retry import CancelledError, with_retries
from wids.storage.transport.schemes import Plan, Transports
from wids.storage.transport.stream import (
    Content,
    NotByHttpError,
    PastEndError,
    check_complete,
)

if TYPE_CHECKING:
    from wids.storage.transport.http import Http
    from wids.storage.transport.range_reads import Range


class WholeFileError(FetchError):
    """A file that has to be fetched whole, such as one of a server without ranges."""


class RangeReader:
    """Reads parts of one remote file of a known length.

    Threads can share it, and it survives a fork and pickling.

    Args:
        transports: Open URLs.
        tags: The tag of each URL whose version is known. The reader adds that of its URL.
        url: The file.
        nbytes: Its length.
        is_compared: Whether the tag is ignored, since the caller compares the bytes.
    """

    def __init__(
        self,
        transports: Transports,
        tags: MutableMapping[str, str],
        url: str,
        nbytes: int,
        *,
        is_compared: bool = False,
    ) -> None:
        self._transports = transports
        self._tags = tags
        self._url = url
        self._nbytes = nbytes
        self._is_compared = is_compared
        self._has_untagged = False
        self._plan: Plan | None = None

    def __call__(self, start: int, stop: int) -> bytes:
        """Read the bytes from ``start`` to ``stop``; see `view`."""
        return bytes(self.view(start, stop))

    def view(self, start: int, stop: int) -> memoryview:
        """Read the bytes from ``start`` to ``stop``, and return them as they arrived, uncopied.

        Raises:
            WholeFileError: The server does not support ranges, or does not state the file's length.
            MismatchError: The file has another length, or a tag that differs from that of the first
                part.
            FetchError: It cannot be read.
        """
        return read_all([(self, start, stop)], lambda _, arrived: bytes_of(arrived))[0]

    def by_stream(self, start: int, stop: int) -> memoryview:
        """Do what `view` does, by streams of the transport; nothing is requested for no bytes."""
        if start >= stop:
            return memoryview(b"")
        return with_retries(lambda: self._attempt(start, stop), self.plan.timeouts.again())

    @property
    def plan(self) -> Plan:
        """How the file is read."""
        # Not a `cached_property`: before Python 3.12 all objects share its lock, and a process that
        # is forked while a thread has that would wait for it forever.
        if self._plan is None:
            self._plan = self._transports.plan(self._url)
        return self._plan

    @property
    def version(self) -> str | None:
        """The tag of all that was read and not compared; None if a response had none."""
        return None if self._has_untagged else self._tags.get(self._url)

    def request(self, start: int, stop: int) -> Range | None:
        """Return how `range_loop` reads a part; None if it cannot."""
        http = None
        with suppress(FetchError):  # the options cannot be used: the stream raises this
            plan = self.plan
            http = plan.transport.by_http(plan.url)
        if http is None or start >= stop:
            return None
        from wids.storage.transport.range_reads import Range

        return Range(
            cast("Http", http),
            plan.url,
            start,
            stop,
            self._tag,
            partial(self._check, start),
            partial(self._checked, start, stop),
            plan.timeouts.again(),
            plan.may_hedge,
        )

    def _tag(self) -> str | None:
        return None if self._is_compared else self._tags.get(self._url)

    def why_past_end(self, error: WidsError) -> WidsError:
        """Return why there is nothing so far behind: the file is encoded, or has another length."""
        try:
            plan = self.plan._replace(timeouts=self.plan.timeouts.again())
            read_first(plan, 1, 0, lambda content: self._check(0, content, None))
        except WidsError as found:
            return found
        return error

    def _attempt(self, start: int, stop: int) -> memoryview:
        tag = self._tag()
        try:
            opened = self._transports.open(self._url, start, stop, tag)
        except PastEndError:
            with self._transports.open(self._url, 0, 0) as stream:
                self._check(0, stream.content, None)
            raise
        with opened as stream:
            self._check(start, stream.content, tag)
            # A server without ranges would send all of it.
            data = memoryview(stream.collected(stop - start))
            return self._checked(start, stop, stream.content, data)

    def _checked(self, start: int, stop: int, content: Content, data: memoryview) -> memoryview:
        """Return the bytes of a part, if all have arrived."""
        data = data[: stop - start]
        check_complete(self._url, len(data), stop - start)
        if content.tag is None:
            self._has_untagged |= not self._is_compared
        elif not self._is_compared:
            # Another thread may have read its first part meanwhile: one of the two versions wins.
            self._check_tag(self._tags.setdefault(self._url, content.tag), content.tag)
        return data.toreadonly()

    def _check(self, start: int, content: Content, tag: str | None) -> None:
        """Raise an error unless a response has the bytes from ``start`` of the same file."""
        is_part = content.start == start
        if tag is not None and (content.tag is not None or not is_part):
            # After If-Range, a whole file without a tag is another version too.
            self._check_tag(tag, content.tag)
        if not is_part:
            self._transports.note_whole_files(self._url, content.total_nbytes or self._nbytes)
        if not is_part or content.total_nbytes is None:
            raise WholeFileError(
                f"{urls.redact(self._url)}: expected a part of the file, found a server that "
                'sends whole files only; use access="download"'
            )
        if content.total_nbytes != self._nbytes:
            raise MismatchError(
                f"{urls.redact(self._url)}: expected a file of {self._nbytes} bytes, as its "
                f"index says, found {content.total_nbytes}; a new version was published: "
                "rebuild its index"
            )

    def _check_tag(self, expected: str, found: str | None) -> None:
        if found != expected:
            raise MismatchError(
                f"{urls.redact(self._url)}: expected the version {expected} of the file, which was "
                f"read first, found {found or 'another'}; it was replaced while it was being read: "
                "open the dataset again; or mirrors state other versions of it: use "
                'access="download", or index it with `wids create`'
            )


ReadPart: TypeAlias = "Callable[[int, int], bytes | memoryview]"
"""Reads the bytes from a start to a stop, as a `RangeReader` does."""

Arrived: TypeAlias = "bytes | memoryview | WidsError"
"""A part of a file, or why it could not be read."""

T = TypeVar("T")


def read_all(
    parts: Sequence[tuple[ReadPart, int, int]], use: Callable[[int, Arrived], T]
) -> list[T]:
    """Read parts of files at the same time; return what was made of them.

    Args:
        parts: What reads each part, and where it begins and ends.
        use: Called with the number of a part and its bytes, as soon as they are there, by any
            thread. It may raise the error that it is called with, which ends all other reads.
    """
    made: dict[int, T] = {}

    def read(number: int) -> None:
        call, start, stop = parts[number]
        arrived: Arrived
        try:
            arrived = (call.by_stream if isinstance(call, RangeReader) else call)(start, stop)
        except CancelledError:
            raise
        except WidsError as error:
            arrived = error
        made[number] = use(number, arrived)

    requests: dict[int, Range] = {}
    others: set[int] = set()
    past_end: dict[int, PastEndError] = {}
    for number, (call, start, stop) in enumerate(parts):
        request = call.request(start, stop) if isinstance(call, RangeReader) else None
        if request is None:
            others.add(number)
        else:
            requests[number] = request
    numbers = list(requests)

    def take(place: int, arrived: Arrived) -> None:
        number = numbers[place]
        if isinstance(arrived, NotByHttpError):
            others.add(number)
        elif isinstance(arrived, PastEndError):
            past_end[number] = arrived
        else:
            made[number] = use(number, arrived)

    if requests:
        from wids.storage.transport.range_loop import read_ranges

        read_ranges(list(requests.values()), take)
    for number, error in past_end.items():  # its request would wait for those in flight
        reader = cast("RangeReader", parts[number][0])
        made[number] = use(number, reader.why_past_end(error))
    if others:
        in_threads([partial(read, number) for number in sorted(others)], "wids-ranges")
    return list(map(made.__getitem__, range(len(parts))))


def read_first(
    plan: Plan, stop: int | None, most_nbytes: int, check: Callable[[Content], None]
) -> tuple[Content, bytes] | None:
    """Return a response from the beginning of a file, and its bytes; None if a stream has to.

    Args:
        plan: How the file is read.
        stop: Where the bytes end; None for those of the whole file.
        most_nbytes: Bytes after which a response that has the whole file is cut off; one more is
            returned then.
        check: Called with the response; may raise an error of it.
    """
    http = plan.transport.by_http(plan.url)
    if http is None:
        return None
    from wids.storage.transport.range_loop import raise_error, read_ranges
    from wids.storage.transport.range_reads import END, Range

    found: list[tuple[Content, bytes]] = []

    def accept(content: Content, _: str | None) -> None:
        check(content)
        wanted.is_whole = stop is None
        if content.stop is None:
            most = most_nbytes + 1
            wanted.stop = most if content.total_nbytes is None else min(content.total_nbytes, most)
        elif stop is None and content.stop != content.total_nbytes:
            raise FetchError(
                f"{urls.redact(plan.url)}: expected the whole file, found a part of it: the bytes "
                f"up to {content.stop} of {content.total_nbytes or 'an unknown number'}"
            )
        else:
            most = max(most_nbytes, stop or 0) + 1
            wanted.stop = min(stop or most, content.stop + 1, most)  # to see that there is more

    def finish(content: Content, data: memoryview) -> memoryview:
        if content.stop is not None and len(data) > content.stop:
            raise FetchError(
                f"{urls.redact(plan.url)}: expected {content.stop} bytes, as its Content-Range "
                "says, found more"
            )
        found.append((content, bytes(data)))
        return data

    wanted = Range(
        cast("Http", http),
        plan.url,
        0,
        END if stop is None else stop,
        lambda: None,
        accept,
        finish,
        plan.timeouts,
        plan.may_hedge,
    )
    try:
        read_ranges([wanted], raise_error)
    except NotByHttpError:
        return None
    return found[-1]


def bytes_of(arrived: Arrived) -> memoryview:
    """Return the bytes of a part, or raise why it could not be read."""
    if isinstance(arrived, WidsError):
        raise arrived
    return memoryview(arrived)


Span: TypeAlias = tuple[int, int]
"""The start and the stop of a range of bytes."""

GAP_NBYTES: Final = 64 << 10
"""Bytes that cost about as much as one of many requests that are in flight together."""

STEP_NBYTES: Final = 512 << 10
"""Bytes that cost about as much as a request that a reader waits for before the next one.

Measured on loopback with 16 requests at a time over 1 Gbit/s: reading and skipping take as long at
0.4 MB where a request takes 20 ms, at 0.55 MB with 50 ms, at 1 MB with 100 ms."""

REQUEST_NBYTES: Final = 8 << 20
"""Longest range that is joined, so that large reads are spread over several requests."""


def joined(
    spans: Iterable[tuple[int, ...]],
    gap_nbytes: float = GAP_NBYTES,
    limit_nbytes: int = REQUEST_NBYTES,
) -> list[Span]:
    """Return the ranges to request for others, which ascend by their starts.

    Args:
        spans: The ranges that are wanted; there may be more edges between the first and the last.
        gap_nbytes: Most bytes between two of them that are requested along with both.
        limit_nbytes: Longest range to make of several. One that is longer by itself stays whole.
    """
    found: list[Span] = []
    for start, *_, stop in spans:
        if found:
            first, last = found[-1]
            if start - last <= gap_nbytes and max(stop, last) - first <= limit_nbytes:
                found[-1] = (first, max(stop, last))
                continue
        found.append((start, stop))
    return found


def frugal_gap_nbytes(spans: Sequence[tuple[int, ...]]) -> float:
    """Return the largest gap that may be joined so that at most twice the wanted bytes are read.

    There are fewer gaps than ranges, so none is longer than the mean of the ranges.
    """
    wanted_nbytes = sum([span[-1] - span[0] for span in spans])
    return min(GAP_NBYTES, wanted_nbytes / max(1, len(spans)))
