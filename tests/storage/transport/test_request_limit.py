"""How many requests are in flight, against networks that are simulated."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest

from wids.storage.transport.request_limit import (
    FIRST,
    FIRST_AWAITED,
    MOST,
    AwaitedLimit,
    RequestLimit,
)

MB = 1_000_000
STEP_S = 0.005


@dataclass
class Network:
    """A server and a network.

    Attributes:
        rate: Bytes a second of a connection.
        card: Bytes a second of all connections.
        most: Requests that the server takes at a time.
        latency_s: Seconds until a response begins.
    """

    rate: float
    card: float = float("inf")
    most: int = 10**9
    latency_s: float = 0.001

    def possible(self, nbytes: int) -> float:
        """Bytes a second of as many requests of this length as the server takes."""
        seconds = self.latency_s + nbytes / self.rate
        return min(self.card, min(self.most, MOST) * nbytes / seconds)


@dataclass
class Request:
    """A request in flight."""

    number: int
    left: float
    generation: int
    sent_s: float
    since_s: float
    begins_s: float
    has_answered: bool = False


@dataclass
class Outcome:
    """What happened: bytes a second, requests, and the limit after each step."""

    speed: float
    num_requests: int
    num_refused: int
    limits: list[int]


def simulated(
    network: Network, nbytes: int, seconds: float, seed: int = 1, noise: float = 0.05
) -> Outcome:
    """Send requests of a length for some seconds, as many at a time as the limit allows."""
    draw = random.Random(seed)
    limit = RequestLimit()
    flying: list[Request] = []
    now_s = received = 0.0
    num_requests = num_refused = 0
    limits = []
    while now_s < seconds:
        while len(flying) < limit.value:
            num_requests += 1
            if len(flying) >= network.most:
                num_refused += 1
                limit.refuse(len(flying))
                continue
            begins_s = now_s + network.latency_s
            flying.append(Request(num_requests, nbytes, limit.generation, now_s, now_s, begins_s))
        now_s += STEP_S
        active = [request for request in flying if request.begins_s <= now_s]
        rate = min(network.rate, network.card / max(1, len(active)))
        for request in active:
            if not request.has_answered:
                request.has_answered = True
                limit.note_response(now_s - request.since_s)
            got = min(request.left, rate * STEP_S * draw.uniform(1 - noise, 1 + noise))
            request.left -= got
            received += got
            has_ended = request.left <= 0
            if has_ended:
                limit.note_request(now_s - request.sent_s)
            limit.note_part(
                request.generation,
                int(got),
                now_s - request.since_s,
                len(flying),
                has_ended=has_ended,
            )
            request.since_s, request.generation = now_s, limit.generation
            if has_ended:
                flying.remove(request)
        limits.append(limit.value)
    return Outcome(received / seconds, num_requests, num_refused, limits)


@dataclass
class Reader:
    """A process that reads shards of 20 MB, in the parts that admission control requests."""

    limit: RequestLimit
    speed: float = 0.0
    arrived: list[float] = field(default_factory=lambda: [0.0] * 40)
    sent: list[float] = field(default_factory=lambda: [0.0] * 40)
    flying: list[tuple[Request, int]] = field(default_factory=list)

    def send(self, now_s: float, draw: random.Random, *, in_order: bool) -> None:
        while len(self.flying) < self.limit.value:
            open_shards = [n for n, sent in enumerate(self.sent) if sent < 20 * MB][:8]
            shard = open_shards[0] if in_order else draw.choice(open_shards)
            nbytes = min(8 * MB, max(MB / 4, self.speed / 2) if self.speed else MB)
            nbytes = min(nbytes, 20 * MB - self.sent[shard])
            self.sent[shard] += nbytes
            request = Request(0, nbytes, self.limit.generation, now_s, now_s, now_s)
            self.flying.append((request, shard))

    def receive(self, rate: float, now_s: float, draw: random.Random) -> None:
        for request, shard in list(self.flying):
            got = min(request.left, rate * STEP_S * draw.uniform(0.8, 1.2))
            request.left -= got
            self.arrived[shard] += got
            has_ended = request.left <= 0
            about = (request.generation, int(got), now_s - request.since_s, len(self.flying))
            self.limit.note_part(*about, has_ended=has_ended)
            request.since_s, request.generation = now_s, self.limit.generation
            if has_ended:
                self.flying.remove((request, shard))
                self.speed += (rate - self.speed) / 4 if self.speed else rate


def first_shard_s(
    num_ranks: int, rate: float, *, in_order: bool = True, most_s: float = math.inf
) -> float:
    """Return when all ranks have their first shard, where they share a network; or the most."""
    draw, now_s = random.Random(num_ranks), 0.0
    readers = [Reader(RequestLimit()) for _ in range(num_ranks)]
    while now_s < most_s and any(reader.arrived[0] < 20 * MB - 1 for reader in readers):
        now_s += STEP_S
        for reader in readers:
            reader.send(now_s, draw, in_order=in_order)
        rate_of_each = rate / sum(len(reader.flying) for reader in readers)
        for reader in readers:
            reader.receive(rate_of_each, now_s, draw)
    return now_s


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("rate", [5, 30])
def test_what_is_read_first_arrives_first(num_ranks: int, rate: int) -> None:
    """However many requests share a network, the first shard takes little more than its bytes."""
    due_s = num_ranks * 20 / rate
    assert first_shard_s(num_ranks, rate * MB) < 1.3 * due_s
    # Without the order of shards, they would arrive together.
    late_s = 1.5 * due_s
    assert first_shard_s(num_ranks, rate * MB, in_order=False, most_s=late_s) >= late_s


@pytest.mark.parametrize("rate", [5, pytest.param(20, marks=pytest.mark.long), 60])
@pytest.mark.parametrize("most", [6, pytest.param(20, marks=pytest.mark.long), 60, 10**9])
@pytest.mark.parametrize("latency_s", [pytest.param(0.001, marks=pytest.mark.long), 0.05])
def test_it_gets_what_the_network_has(rate: int, most: int, latency_s: float) -> None:
    """Four fifths of what is possible, and at most a tenth of the requests is refused."""
    network = Network(rate * MB, 1000 * MB, most, latency_s)

    outcome = simulated(network, 8 << 20, 12)
    assert outcome.speed > 0.8 * network.possible(8 << 20)
    assert outcome.num_refused < 0.1 * outcome.num_requests


@pytest.mark.parametrize("latency_s", [0.01, 0.05, 0.2])
def test_latency_alone_is_hidden(latency_s: float) -> None:
    """Where requests only wait, as many are in flight as can be."""
    outcome = simulated(Network(1000 * MB, latency_s=latency_s), 1000, 8)
    assert max(outcome.limits) == MOST


def test_a_card_is_not_flooded() -> None:
    """Where a few connections have all bytes of the network, few are used."""
    outcome = simulated(Network(60 * MB, 600 * MB), 8 << 20, 60)
    assert outcome.limits[-1] <= 32


def test_nothing_is_learned_without_demand() -> None:
    """Reports of an earlier limit change nothing."""
    limit = RequestLimit()
    for _ in range(100):
        limit.note_part(-1, 1 << 20, 1.0, 3, has_ended=True)
    assert limit.value == FIRST


def test_the_first_responses_let_others_pass() -> None:
    """A request more for each, up to 16, unless one is refused: fewer say little of more."""
    limit = RequestLimit()
    for number in range(20):
        limit.note_response(0.1)
        assert limit.value == min(16, FIRST + 1 + number)
    refused = RequestLimit()
    refused.note_response(0.1)
    refused.refuse(FIRST)
    refused.note_response(0.1)
    assert refused.value == FIRST


def test_an_outage_is_forgotten() -> None:
    """A server that refused everything soon has as many requests as before."""
    limit = RequestLimit()
    for _ in range(20):
        limit.refuse(limit.value - 1)
    assert limit.value == 1
    seconds = 0.0
    while limit.value < 32 and seconds < 20:
        for _ in range(limit.value):
            limit.note_part(limit.generation, MB, 0.1, limit.value, has_ended=False)
        seconds += 0.1
    assert seconds < 10


@pytest.mark.parametrize("most", [2, 8, 40])
def test_no_more_requests_than_a_process_may_have(most: int) -> None:
    """However much more would bring."""
    limit, awaited = RequestLimit(most), AwaitedLimit(most)
    values = set()
    for _ in range(2000):
        limit.note_response(0.05)
        limit.note_part(limit.generation, MB, 0.1, limit.value, has_ended=True)
        awaited.note_request(0.05)
        values |= {limit.value, awaited.value}
    assert max(values) == most


def test_awaited_requests_have_a_limit_without_trials() -> None:
    """It grows with each answer, unless the processor is the limit; chance lowers it by little."""
    limit = AwaitedLimit()
    for _ in range(MOST):
        limit.note_request(0.05)
    assert limit.value == MOST
    for number in range(20_000):
        limit.note_request(0.05)
        if number % 600 == 599:
            limit.refuse(number % 60)
    assert limit.value > MOST * 3 // 4
    quick = AwaitedLimit()
    for number in range(1000):  # in which most wait for the processor
        quick.note_request(0.002 if number % 20 == 0 else 0.04)
    assert quick.value == FIRST_AWAITED


def test_awaited_requests_soon_use_a_small_server() -> None:
    """A reader that was refused beside parts of files has all places after a few batches."""
    limit = AwaitedLimit()
    while limit.value > 1:
        limit.refuse(0)
    for _ in range(4 * 64):
        limit.note_request(0.05)
    assert limit.value == 6


def test_awaited_requests_stay_below_the_limit_of_a_server() -> None:
    """Of a server that takes 20 at a time, few requests are refused, and its places are used."""
    limit, num_refused, num_asked = AwaitedLimit(), 0, 0
    for _ in range(300):  # batches of 64
        left = 64
        while left:
            sent = min(left, limit.value)
            num_asked += sent
            for others in range(sent - 1, 19, -1):
                limit.refuse(others)
                num_refused += 1
            left -= min(sent, 20)
            for _ in range(min(sent, 20)):
                limit.note_request(0.05)
    assert num_refused < 0.05 * num_asked
    assert 15 <= limit.value <= 26
