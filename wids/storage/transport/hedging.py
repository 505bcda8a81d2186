"""Know when a request is late, and whether it may be sent once more.

Late is what takes longer than almost all recent requests of about its size to its server, if all
its bytes are waited for; and what stops for most of a second. At most one request in twenty is sent
twice (decision 0205). `range_loop` sends it, and uses the answer that is there first.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from typing import Final

from wids.storage.transport import urls

_logger = logging.getLogger(__name__)

_NUM_LIKE: Final = 128
_LEAST_LIKE: Final = 16
_QUANTILE: Final = 0.95
_TIMES_LONGER: Final = 2.0
"""A request is late when it takes longer than this part of the others, and so many times as long as
half of them."""
_LEAST_LATE_S: Final = 0.05
SILENT_S: Final = 0.75
"""A request is late after so long a silence, also if nothing is known of others."""
_REQUESTS_A_HEDGE: Final = 20


class Like:
    """How long the recent requests of about one size to one server took.

    Attributes:
        late_s: After how many seconds the next one is late; 0 if too few are known.
    """

    late_s = 0.0

    def __init__(self) -> None:
        self._num_noted = 0
        self._took_s: deque[float] = deque(maxlen=_NUM_LIKE)

    def note(self, took_s: float) -> None:
        """Note one that was answered after so many seconds."""
        self._took_s.append(took_s)
        self._num_noted += 1
        if self._num_noted >= _LEAST_LIKE and self._num_noted % 8 == 0:
            ordered_s = sorted(self._took_s)
            long_s = ordered_s[int(_QUANTILE * len(ordered_s))]
            usual_s = ordered_s[len(ordered_s) // 2]
            self.late_s = max(_LEAST_LATE_S, _TIMES_LONGER * usual_s, long_s)


class Pace:
    """The requests to one server by their size, and how many were sent twice."""

    def __init__(self) -> None:
        self.num_requests = 0
        self._num_hedges = 0
        self._likes: defaultdict[int, Like] = defaultdict(Like)

    def like(self, nbytes: int) -> Like:
        """Return what is known of requests of about so many bytes."""
        return self._likes[nbytes.bit_length() // 2]

    def note_hedge(self, url: str, took_s: float) -> None:
        """Note that one was sent twice, after so many seconds."""
        _logger.info("%s: requested again after %.2f s", urls.redact(url), took_s)
        self._num_hedges += 1

    def lets_hedge(self, *, is_stalled: bool) -> bool:
        """Return whether one more request may be sent twice: the last one, if it has stalled."""
        return (self._num_hedges + (not is_stalled)) * _REQUESTS_A_HEDGE <= self.num_requests


_paces: Final[dict[str, Pace]] = {}
"""By server. No locks: what two threads change at once is one request more or less."""


def pace_of(server: str) -> Pace:
    """Return what this process knows of the requests to a server."""
    return _paces.get(server) or _paces.setdefault(server, Pace())
