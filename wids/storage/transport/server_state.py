"""What a process knows about the requests to one server, and what it does when one is refused.

A refusal lowers the limit. The refusal of the only request in flight means that others fill the
server: then nothing is sent for a moment, and the other processes of the program make room.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Final

from wids.storage.transport import shared_refusals
from wids.storage.transport.request_limit import RequestLimit

_POLL_S: Final = 0.25
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
"""Pause after a server has refused the only request in flight; it doubles with each. The next one
would be refused too, and a thousand may wait."""
_YIELD_EVERY_S: Final = 1.0
"""How often a process sends one request fewer because others were refused: requests in flight
take some time to end."""


@dataclass
class ServerState:
    """What the gate of a process knows about one server.

    Attributes:
        name: Scheme and host.
        limit: How many may be in flight.
        num_in_flight: How many are in flight.
        full_s: When the limit was last reached.
        event_s: When something last arrived, or a request was sent.
        num_rejected: How often in a row the only request in flight was refused.
        pause_until_s: Until when none is sent after that.
        num_shared: The number of `shared_refusals` that is known here.
        yielded_s: When the limit was last lowered for another process.
    """

    name: str
    limit: RequestLimit = field(default_factory=RequestLimit)
    num_in_flight: int = 0
    full_s: float = 0.0
    event_s: float = 0.0
    num_rejected: int = 0
    pause_until_s: float = 0.0
    num_shared: float = 0
    yielded_s: float = 0.0

    def note_refusal(self) -> None:
        """Send fewer requests, and for some time none if this was the only one."""
        self.limit.refuse(self.num_in_flight - 1)
        if self.num_in_flight > 1:
            return
        pause_s = min(_LONGEST_PAUSE_S, math.ldexp(_FIRST_PAUSE_S, min(self.num_rejected, 20)))
        self.num_rejected += 1
        self.pause_until_s = time.monotonic() + pause_s
        shared_refusals.note(self.name)
        self.num_shared = shared_refusals.number(self.name)

    def make_room(self) -> None:
        """Send one request fewer if the server had no room for another process."""
        num_shared, now_s = shared_refusals.number(self.name), time.monotonic()
        if num_shared == self.num_shared:
            return
        self.num_shared = num_shared
        if now_s - self.yielded_s >= _YIELD_EVERY_S and self.num_in_flight > 1:
            self.yielded_s = now_s
            self.limit.refuse(self.num_in_flight - 1)

    def takes_another(self) -> bool:
        """Return whether one more request may be sent now."""
        # After a refusal of the only request, one at a time is sent until one is answered.
        most = 1 if self.num_rejected else self.limit.value
        return self.num_in_flight < most and time.monotonic() >= self.pause_until_s

    def poll_s(self) -> float:
        """Return when to look again: also at the end of a pause, which wakes nobody."""
        pause_s = self.pause_until_s - time.monotonic()
        return min(_POLL_S, pause_s) if pause_s > 0 else _POLL_S
