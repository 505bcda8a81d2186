"""Find out by trial how many requests to one server are worth sending at a time.

The limit begins small and doubles while more requests in flight make more bytes a second. Each
trial of another limit is compared with the previous limit, and kept only if it paid: otherwise what
is read first would share the network with what is read later. Requests that a reader waits for may
all be in flight at once, up to a bound. A refused request (429, 503, SlowDown) lowers the limit to
the number of requests that the server did not refuse. The classes have no clock, no threads and no
input or output: admission control reports events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST: Final = 4
"""Requests in flight to a server of which nothing is known."""
_FIRST_MEASURED: Final = 16
"""As many once as many responses have begun: a speed of fewer says little about more, since each
begins faster than it continues."""
LEAST: Final = 2
"""The fewest in flight, unless it refuses them: the next one is sent while another arrives."""
FIRST_AWAITED: Final = 16
"""Requests in flight at first, if a reader waits for them."""
_QUICK_S: Final = 0.01
"""The processor is the limit if some requests are so short, however long the others wait for it."""
_ANSWERS: Final = 16
"""After so many answers for each request in flight, without a refusal, more may be awaited again;
and after `_MOST_ANSWERS` in any case."""
_MOST_ANSWERS: Final = 200
MOST: Final = 256
"""Requests in flight to one server at most."""

_ROUND_S: Final = 0.06
"""Time over which every request in flight is measured, before the limit may change."""
_ROUND_PARTS: Final = 8
"""Reports of a round at least: with fewer, one that comes early or late decides."""
_SHORT_ROUND_S: Final = 0.02
"""The same where requests are short, and as many as the limit have ended."""
_ROUND_LATENCIES: Final = 4.0
"""A round is at least this many waits for a response: new connections begin slowly."""

_GAIN: Final = 0.25
"""Part of a proportional gain that pays: a quarter more requests, for 6 % more bytes."""
_FEW: Final = 16
_GAIN_OF_FEW: Final = 0.7
"""The same for fewer requests than `_FEW`: where a few processes share a network that is full, one
that sends more requests takes bytes from the others, but not in proportion."""
_LEAST_GROWTH: Final = 0.25
_REQUEST_UNITS: Final = 1024
"""What a response counts beside its bytes, so that requests without bytes are measured too."""

_FIRST_REST: Final = 2
_REST_AFTER_REFUSAL: Final = 24
_LONGEST_REST: Final = 256
"""Rounds between two trials that do not pay; the number doubles with each."""


@dataclass
class _Round:
    """What the requests in flight did, while there were as many as the limit allows.

    Attributes:
        units: Bytes that arrived, and a little for each response.
        seconds: Time that this took, summed over the requests.
        num_parts: Number of reports.
        num_ended: Number of requests that ended.
    """

    units: float = 0.0
    seconds: float = 0.0
    num_parts: int = 0
    num_ended: int = 0


class RequestLimit:
    """The number of requests that may be in flight to one server.

    Args:
        most: The largest number.

    Attributes:
        value: The number now.
        generation: Counts the changes of it. A report refers to one generation.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self.value = min(FIRST, most)
        self.generation = 0
        # The limit that trials are compared with, and its units a second over all requests.
        self._base = self.value
        self._base_speed: float | None = None
        self._round = _Round()
        self._latency_s = 0.0
        self._request_s = 0.0
        self._rest = 0  # rounds until the next trial
        self._next_rest = _FIRST_REST
        self._step: int | None = None  # None before the first refusal
        self._growth = 1.0
        self._is_upward = True
        self._first_speed: float | None = None  # of a trial that is measured once more
        self._refused_at = 0
        self._has_measured = False  # since the latest refusal

    def note_response(self, latency_s: float) -> None:
        """Note the seconds from a request to the beginning of its response."""
        self._latency_s += (latency_s - self._latency_s) / 8 if self._latency_s else latency_s
        most = min(_FIRST_MEASURED, self._most)
        if self._base_speed is None and self._step is None and self.value < most:
            self._base += 1
            self._set(self._base)

    def note_request(self, seconds: float) -> None:
        """Note the seconds that a whole request took."""
        self._request_s += (seconds - self._request_s) / 8 if self._request_s else seconds

    def note_part(
        self, generation: int, nbytes: int, seconds: float, num_in_flight: int, *, has_ended: bool
    ) -> None:
        """Note what a request received in some seconds, during which the limit was reached.

        Args:
            generation: `generation` when these seconds began.
            nbytes: Bytes that arrived.
            seconds: The time that they took.
            num_in_flight: Number of requests in flight now, this one included.
            has_ended: Whether these are the last bytes of the request.
        """
        # Above a limit that was lowered, a request is slower than it will be.
        if generation != self.generation or num_in_flight > self.value + 1 + self.value // 8:
            return
        current = self._round
        current.units += nbytes + _REQUEST_UNITS * has_ended
        current.seconds += seconds
        current.num_parts += 1
        current.num_ended += has_ended
        if self._is_complete(current):
            self._round = _Round()
            self._has_measured = True
            self._judge(self.value * current.units / current.seconds)

    def refuse(self, num_others: int) -> None:
        """Note that the server refused a request, while others were in flight."""
        refused_at = self.value
        # At most half at a time: others may just have ended.
        value = max(1, self.value // 2, min(self.value - 1, num_others))
        if self._has_measured or not self._refused_at:  # not one more of the same burst
            is_usual = 2 * value >= self._refused_at > 0
            rest = _longer(self._next_rest) if is_usual else 0
            self._next_rest = max(rest, _REST_AFTER_REFUSAL)
            self._refused_at = refused_at
        self._has_measured = False
        self._step = max(1, value // 16)
        self._is_upward = True
        self._rest = self._next_rest
        self._base, self._base_speed = value, None
        self._set(value)

    def _is_complete(self, current: _Round) -> bool:
        if current.num_parts <= self.value // 2:
            return False
        if current.num_parts < _ROUND_PARTS and current.seconds < 4 * self.value * _ROUND_S:
            return False
        # Requests may run in lockstep, so a part of one would have too many bytes, or none.
        short_s = self.value * max(_SHORT_ROUND_S, self._request_s)
        if current.num_ended >= self.value and current.seconds >= short_s:
            return True
        return current.seconds >= self.value * max(_ROUND_S, _ROUND_LATENCIES * self._latency_s)

    def _judge(self, speed: float) -> None:
        """Choose the next limit after a round at the present one."""
        if self.value == self._base:
            known = self._base_speed
            self._base_speed = speed if known is None else (known + speed) / 2
            self._rest -= 1
            if self._rest <= 0:
                self._try_another()
            return
        if self._first_speed is not None:
            speed = (self._first_speed + speed) / 2
        growth = self.value / self._base - 1
        gain = _GAIN_OF_FEW if min(self.value, self._base) < _FEW else _GAIN
        if speed >= (self._base_speed or 0.0) * (1 + gain * growth):
            self._base, self._base_speed = self.value, speed
            self._next_rest = _FIRST_REST
            if self._step is not None and self._is_upward:
                self._step = min(2 * self._step, max(1, self.value // 4))
            self._try_another()
        elif self._first_speed is None:
            self._first_speed = speed
        else:
            self._rest = self._next_rest
            self._next_rest = _longer(self._next_rest)
            if self._is_upward:
                self._growth = max(_LEAST_GROWTH, self._growth / 2)
            self._is_upward = not self._is_upward
            self._set(self._base)

    def _try_another(self) -> None:
        """Begin a trial of a higher or lower limit."""
        if self._is_upward and self._base < self._most:
            step = int(self._base * self._growth) if self._step is None else self._step
            self._set(min(self._most, self._base + max(1, step)))
        elif self._base > (LEAST if self._step is None else 1):
            self._is_upward = False
            self._set(self._base - max(1, self._base // 5))
        else:
            self._is_upward = True

    def _set(self, value: int) -> None:
        self.value = value
        self.generation += 1
        self._round = _Round()
        self._first_speed = None


class AwaitedLimit:
    """The number of requests that may be in flight to one server while readers wait for them.

    The ranges of a batch begin and end together, so no trial could compare two numbers.

    Args:
        most: The largest number.
    """

    generation = 0  # nothing is reported of it

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self.value = min(FIRST_AWAITED, most)
        self._least_s = 0.0  # of the recent requests
        self._num_answers = 0  # since the number changed
        self._was_refused = False

    @property
    def is_prompt(self) -> bool:
        """Whether some requests are so short that the processor limits them."""
        return 0 < self._least_s < _QUICK_S

    def note_request(self, seconds: float) -> None:
        """Note the seconds that a whole request took: one more may be in flight."""
        self._least_s = min(seconds, 1.02 * self._least_s or seconds)
        self._num_answers += 1
        wanted, more = 1, 1
        if self._was_refused:
            wanted, more = min(_ANSWERS * self.value, _MOST_ANSWERS), self.value // 4
        if self._num_answers >= wanted and not (self.is_prompt and self.value >= FIRST_AWAITED):
            self.value, self._num_answers = min(self._most, self.value + max(1, more)), 0

    def refuse(self, num_others: int) -> None:
        """Note that the server refused a request, while others were in flight."""
        self._was_refused = True
        # By little at a time: a server of which each refusal is chance takes many.
        self.value = max(1, self.value * 7 // 8, min(self.value - 1, num_others))
        self._num_answers = 0


def _longer(rest: int) -> int:
    return min(_LONGEST_REST, 2 * rest)
