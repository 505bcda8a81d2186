"""Count what the requests of this process cost, for each server."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Final


@dataclass
class Counts:
    """What requests to one server cost this process, summed over its threads.

    Attributes:
        num_requests: Requests that have ended.
        num_failures: How many of them failed, refused ones included.
        num_refusals: How many of them the server refused, because it was busy.
        num_retries: Attempts that followed a failed one.
        nbytes: Bytes received.
        turn_s: Seconds that requests waited until they could be sent.
        response_s: Seconds from sending a request to the beginning of its response.
        bytes_s: Seconds that readers waited for bytes after that.
        most_in_flight: Largest number of requests in flight at a time.
    """

    num_requests: int = 0
    num_failures: int = 0
    num_refusals: int = 0
    num_retries: int = 0
    nbytes: int = 0
    turn_s: float = 0.0
    response_s: float = 0.0
    bytes_s: float = 0.0
    most_in_flight: int = 0


_counts: Final[defaultdict[str, Counts]] = defaultdict(Counts)
"""By server. They are exact but for two threads that add at the same moment."""


def of(server: str) -> Counts:
    """Return the counts of a server, to be added to."""
    return _counts[server]


def note_retry(server: str) -> None:
    """Count an attempt that follows a failed one."""
    if server:
        _counts[server].num_retries += 1


def snapshot() -> dict[str, Counts]:
    """Return a copy of the counts of this process, by server: scheme and host.

    A forked process begins at zero.
    """
    return {server: replace(counts) for server, counts in list(_counts.items())}


def totals() -> tuple[int, int, int]:
    """Return the requests, the bytes and the retries of this process, over all servers."""
    num_requests = nbytes = num_retries = 0  # plain sums: each request asks
    for counts in list(_counts.values()):
        num_requests += counts.num_requests
        nbytes += counts.nbytes
        num_retries += counts.num_retries
    return num_requests, nbytes, num_retries


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_counts.clear)
