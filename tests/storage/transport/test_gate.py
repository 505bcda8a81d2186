"""The gate through which all requests pass: turns, memory, cancellation, forks."""

from __future__ import annotations

import gc
import io
import logging
import math
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import repeat
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from conftest import in_child, optional
from events import LONG_S, after, wait_for
from loopback import Fault, Page, Request, Server
from transfers import saved

from wids.storage import stages
from wids.storage.fetch import Fetcher
from wids.storage.reading_threads import in_threads
from wids.storage.transport.gate import (
    NODE_NBYTES,
    PROCESS_NBYTES,
    Gate,
    Turn,
    _Server,
    _share_nbytes,
    gate,
    num_threads,
    part_nbytes,
    through_gate,
)
from wids.storage.transport.request_limit import FIRST, FIRST_AWAITED
from wids.storage.transport.retry import CancelledError, cancelled_by, server_at
from wids.storage.transport.stream import Stream

SERVER = "https://server"
NOTE_SPEED = _Server.note_speed
"""Other tests have parts that are as long on a machine that stops."""


def fill(gate: Gate, count: int = FIRST, nbytes: int = 0) -> list[Turn]:
    """Take turns in threads that end: this thread holds none of them."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(lambda _: gate.enter(SERVER, nbytes), range(count)))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long nothing happens, the server is not taken for silent."""
    monkeypatch.setattr("wids.storage.transport.gate._SILENT_S", math.inf)


@pytest.mark.usefixtures("patient")
def test_as_many_pass_as_the_limit_allows() -> None:
    """The next request waits until one has ended."""
    gate = Gate()
    turns = fill(gate)
    passed = threading.Event()

    def wait() -> None:
        turn = gate.enter(SERVER, 0)
        passed.set()
        turn.leave()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not passed.wait(0.2)
    turns.pop().leave()
    assert passed.wait(LONG_S)
    thread.join()
    for turn in turns:
        turn.leave()


def test_servers_are_met_while_turns_end() -> None:
    """A thread that meets a server does not disturb one that lets others pass."""
    gate, errors, is_over = Gate(), list[Exception](), threading.Event()
    interval_s = sys.getswitchinterval()

    def work() -> None:
        try:
            while not is_over.is_set():
                gate.enter(SERVER, 0).leave()
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for number in range(3000):
            gate.server(f"{SERVER}{number}")
    finally:
        sys.setswitchinterval(interval_s)
        is_over.set()
        for thread in threads:
            thread.join()
    assert errors == []


@pytest.mark.usefixtures("patient")
def test_a_wait_is_cancelled() -> None:
    """A thread that waits for its turn ends soon after its event was set."""
    gate = Gate()
    turns = fill(gate)
    event = threading.Event()
    thread = after(lambda: gate.server(SERVER).waiting, event.set)

    with cancelled_by(event), pytest.raises(CancelledError):
        gate.enter(SERVER, 0)
    thread.join()
    for turn in turns:
        turn.leave()
    assert gate.server(SERVER).num_in_flight == 0


@pytest.mark.usefixtures("patient")
def test_a_cancelled_wait_is_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its turn comes at that moment: nothing was sent."""
    gate, num_before = Gate(), stages.counted()["requests"]
    turns = fill(gate)

    def cancel() -> NoReturn:
        for turn in turns:
            turn.leave()
        raise CancelledError("")

    monkeypatch.setattr("wids.storage.transport.gate.check_waits", cancel)
    with pytest.raises(CancelledError):
        gate.enter(SERVER, 0)
    assert stages.counted()["requests"] == num_before + FIRST
    assert gate.server(SERVER).num_in_flight == 0


@pytest.mark.usefixtures("patient")
def test_a_thread_with_a_turn_passes() -> None:
    """It may be what the others wait for, so it never waits itself."""
    gate = Gate()
    event = threading.Event()
    timer = threading.Timer(LONG_S, event.set)
    timer.start()
    with cancelled_by(event):
        turns = [gate.enter(SERVER, 0) for _ in range(2 * FIRST)]
    timer.cancel()
    timer.join()
    for turn in turns:
        turn.leave()


def test_idle_turns_do_not_block_others() -> None:
    """After two seconds in which nothing happened, one more passes."""
    gate = Gate()
    started_s = time.monotonic()
    turns = fill(gate)
    turn = gate.enter(SERVER, 0)
    assert 2 < time.monotonic() - started_s < LONG_S
    for held in [*turns, turn]:
        held.leave()


def test_a_forgotten_turn_is_returned() -> None:
    """A turn that Ctrl-C separated from its request does not count for ever."""
    gate = Gate()
    for _ in range(3 * FIRST):
        fill(gate, 1)
    turn = gate.enter(SERVER, 0)
    assert gate.server(SERVER).num_in_flight == 1
    turn.leave()


@pytest.mark.usefixtures("patient")
def test_bytes_in_flight_are_limited() -> None:
    """Responses that are kept in memory wait for each other; one always passes."""
    gate = Gate()
    large = fill(gate, 1, 10 * PROCESS_NBYTES)
    passed = threading.Event()

    def wait() -> None:
        turn = gate.enter("https://another", 1 << 20)
        passed.set()
        turn.leave()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not passed.wait(0.2)
    large.pop().leave()
    assert passed.wait(LONG_S)
    thread.join()
    assert gate.most_nbytes == 10 * PROCESS_NBYTES


def test_processes_share_the_memory_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of eight ranks has a GB for all of them."""
    assert _share_nbytes() == PROCESS_NBYTES
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert _share_nbytes() == 128 << 20
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    assert _share_nbytes() == PROCESS_NBYTES


class Limits:
    """A dataset of what the process that reads it may keep in memory."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, _: int) -> int:
        gate().enter(SERVER, 0).leave()
        return gate()._limit_nbytes


def test_workers_share_the_memory_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a loader too, which do not know of each other when they are forked."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    loader = optional("torch.utils.data").DataLoader(
        Limits(), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    assert list(loader) == [NODE_NBYTES // 8] * 2


def test_a_child_has_a_gate_of_its_own() -> None:
    """Turns of the parent, and its locks, are not those of the child."""
    turns = fill(gate())
    with gate().lock:
        assert in_child(lambda: [turn.leave() for turn in fill(gate())] == [None] * FIRST)
    for turn in turns:
        turn.leave()


def test_requests_pass_the_gate(server: Server) -> None:
    """Documents and ranges hold a turn while they are in flight, and none afterwards."""
    url = server.page("/a", bytes(100_000))
    server.pages["/b"] = Together(bytes(100_000), threading.Barrier(2))
    fetcher = Fetcher()
    assert gate().server(server.url).limit.value == FIRST
    assert fetcher.read(url, 1 << 20) == bytes(100_000)
    read = fetcher.range_reader(f"{server.url}/b", 100_000)
    gate().most_nbytes = 0
    in_threads([lambda: read(0, 50_000)] * 100, "test")

    assert gate().server(server.url).num_in_flight == 0
    assert len(server.log) == 101
    assert gate().most_nbytes > 50_000  # more than one at a time


@pytest.mark.usefixtures("quick_retries")
def test_a_refusal_lowers_the_limit(server: Server) -> None:
    """A server that answers 503 gets fewer requests."""
    url = server.page("/a", b"abc", faults=[Fault(503)] * 3)
    Fetcher().save(url, io.BytesIO())
    assert gate().server(server.url).limit.value == max(1, FIRST // 8)
    assert len(server.log) == 4


def test_those_that_wait_are_not_refused_one_after_the_other(server: Server) -> None:
    """While a server has no room at all, single requests find out when it has."""
    server.max_requests = 0
    reader = Fetcher().range_reader(server.page("/small", bytes(1000)), 1000)
    reader_thread = threading.Thread(target=reader, args=(0, 10))
    reader_thread.start()
    wait_for(lambda: gate().server(server.url, is_awaited=True).num_rejected)
    threads = [threading.Thread(target=reader, args=(n, n + 10)) for n in range(100)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(server.log) >= 4)
    server.max_requests = 6
    for thread in [reader_thread, *threads]:
        thread.join(LONG_S)
        assert not thread.is_alive()
    assert sum(request.is_refused for request in server.log) <= 30


@pytest.mark.parametrize("is_awaited", [True, False])
def test_who_is_refused_gets_half_of_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch, *, is_awaited: bool
) -> None:
    """What is fetched ahead makes room, also in the process that started the one that reads.

    So do processes of the program for one whose only request was refused, whatever it was for.
    """
    monkeypatch.setattr("wids.storage.transport.gate._HELD_S", LONG_S)
    server.max_requests = 0
    url = server.page("/small", bytes(1000))

    def ahead(address: str = server.url) -> bool:
        return gate().server(address).takes_another()

    def is_refused() -> bool:
        fetcher = Fetcher()
        save = lambda *_: fetcher.save(url, io.BytesIO())  # noqa: E731
        read = fetcher.range_reader(url, 1000) if is_awaited else save
        threading.Thread(target=read, args=(0, 10), daemon=True).start()
        wait_for(lambda: gate().server(server.url, is_awaited=is_awaited).num_rejected)
        return True

    turns = [gate().enter(server.url, 0) for _ in range(FIRST // 2)]
    assert ahead()
    assert in_child(is_refused)
    assert not ahead()
    assert ahead(SERVER)
    turns.pop().leave()
    assert ahead()
    turns.append(gate().enter(server.url, 0))
    assert not ahead()
    stages.here.common[server_at(server.url, stages.REFUSALS)] = 0.0  # the time is over
    assert ahead()
    for turn in turns:
        turn.leave()


@pytest.mark.usefixtures("quick_retries")
def test_each_request_is_one_line_of_the_log(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Method, host, status, bytes and times are in it, and no secret (SEC-4)."""
    url = server.page("/a", bytes(1000), faults=[Fault(503), Fault(after_nbytes=100)])
    signed = url.replace("http://", "http://me:SECRET@") + "?signature=SECRET"
    fetcher = Fetcher({"headers": {"Authorization": "SECRET"}})
    with caplog.at_level(logging.DEBUG, "wids"):
        assert fetcher.read(signed, 1000) == bytes(1000)
        assert fetcher.nbytes(signed) == 1000
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    parts = ["expected HTTP status 200, found 503, 0 bytes in ", " bytes arrived, 100 bytes in ",
             "status 206, 900 bytes in ", "status 200, 0 bytes in "]  # fmt: skip
    assert len(lines) == 4
    for line, method, part in zip(lines, ["GET", "GET", "GET", "HEAD"], parts, strict=True):
        assert line.startswith(f"{method} {url}?…: ")
        assert part in line
        assert line.endswith(" ms for its turn")
    assert "SECRET" not in caplog.text


@pytest.mark.usefixtures("quick_retries")
def test_requests_are_counted(server: Server) -> None:
    """Requests, bytes and attempts after a failed one; a child begins at zero."""
    faults = [Fault(503), Fault(after_nbytes=100)]
    url = server.page("/a", bytes(1000), faults=faults)
    Fetcher().read(server.page("/b", b"b"), 1)

    def counts() -> bool:
        assert Fetcher().read(url, 1000) == bytes(1000)
        found = stages.counted()
        return [found[name] for name in ("requests", "retries", "nbytes")] == [3, 2, 1000]

    assert in_child(counts)  # where nothing else reads


def test_a_stream_that_is_closed_early_teaches_no_time() -> None:
    """All of the answer would have taken longer. That of HEAD has no more."""
    gate = Gate()
    limit = gate.server(SERVER, is_awaited=True).limit

    def teaches(method: str, num_pieces: int) -> bool:
        value = limit.value
        turn = gate.enter(SERVER, 0, (method, ""), is_awaited=True)
        with through_gate(turn, Stream(repeat(b"", num_pieces))) as stream:
            next(stream.chunks, None)
        # However long it took, one more is in flight, or the processor is the limit.
        return limit.value > value or limit.is_prompt

    assert not teaches("GET", 1)
    assert teaches("HEAD", 1)
    gate.servers.clear()
    limit = gate.server(SERVER, is_awaited=True).limit
    assert teaches("GET", 0)


@pytest.mark.usefixtures("patient")
def test_a_higher_limit_lets_requests_pass_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before any of the others ends."""
    monkeypatch.setattr("wids.storage.transport.gate._POLL_S", threading.TIMEOUT_MAX)
    gate = Gate()
    turns = fill(gate)
    thread = threading.Thread(target=lambda: gate.enter(SERVER, 0).leave(), daemon=True)
    thread.start()
    known = gate.server(SERVER)
    wait_for(lambda: known.waiting)
    streams = [through_gate(turn, Stream(repeat(bytes(1000)))) for turn in turns]
    assert known.limit.value > FIRST
    thread.join(LONG_S)
    assert not thread.is_alive()
    for stream in streams:
        stream.close()


def test_a_turn_that_is_interrupted_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C then is no other error, and counts no request."""
    gate = Gate()
    monkeypatch.setattr(gate, "num_held", interrupt)
    with pytest.raises(KeyboardInterrupt):
        gate.enter(SERVER, 0)
    monkeypatch.undo()
    gc.collect()  # an error in a finalizer fails the test
    gate.enter(SERVER, 0).leave()
    assert gate.server(SERVER).num_in_flight == 0


def interrupt() -> NoReturn:
    raise KeyboardInterrupt


def test_threads_wait_unless_requests_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as many as may be in flight, for the server that is worth most of them."""
    monkeypatch.setattr("wids.storage.transport.gate._gates", [Gate()])
    assert num_threads() == FIRST_AWAITED * 3 // 2
    gate().server(SERVER).limit.note_request(0.001)
    assert num_threads() == FIRST
    gate().server("https://another").limit.note_request(1.0)
    assert num_threads() == FIRST * 3 // 2
    gate().server("https://another", is_awaited=True)
    assert num_threads() == FIRST_AWAITED * 3 // 2


def test_a_part_is_what_a_request_brings_in_half_a_second(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the latest requests; short ones say nothing of the speed."""
    monkeypatch.setattr(_Server, "note_speed", NOTE_SPEED)
    assert len(saved(server.page("/a", bytes(300_000)))) == 300_000
    assert gate().server(server.url).speed > 0
    clock = SimpleNamespace(monotonic=lambda: 100.0)
    monkeypatch.setattr("wids.storage.transport.gate.time", clock)
    lengths = []
    for nbytes in (1000, 8 << 20, 1 << 20):
        lengths.append(part_nbytes(SERVER))
        gate().server(SERVER).note_speed(nbytes, since_s=98.0)
    assert [*lengths, part_nbytes(SERVER)] == [1 << 20, 1 << 20, 2 << 20, 6 << 18]


def test_parts_grow_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request has the network for itself, which says little about many."""
    monkeypatch.setattr(_Server, "note_speed", NOTE_SPEED)
    lengths = [1 << 18]
    for _ in range(3):
        gate().server(SERVER).note_speed(lengths[-1], since_s=time.monotonic() - 1e-9)
        lengths.append(part_nbytes(SERVER))
    assert lengths[1] == 1 << 20
    assert lengths == sorted(lengths)
    assert lengths[-1] < 4 << 20


@pytest.mark.usefixtures("patient")
def test_what_is_awaited_does_not_wait_for_what_is_fetched_ahead() -> None:
    """It passes though others wait, until as many pass as may be awaited."""
    gate = Gate()
    turns = fill(gate)
    threads = [threading.Thread(target=lambda: turns.append(gate.enter(SERVER, 0)))]
    threads[0].start()
    wait_for(lambda: gate.server(SERVER).waiting)
    awaited = gate.server(SERVER, is_awaited=True)
    for _ in range(FIRST_AWAITED + 1):
        threads.append(
            threading.Thread(target=lambda: turns.append(gate.enter(SERVER, 0, is_awaited=True)))
        )
        threads[-1].start()
    wait_for(lambda: len(turns) == FIRST + FIRST_AWAITED)
    wait_for(lambda: awaited.waiting)
    assert (len(awaited.waiting), len(gate.server(SERVER).waiting)) == (1, 1)
    for _ in range(2):  # the second time, those that waited
        for turn in turns:
            turn.leave()
        for thread in threads:
            thread.join(LONG_S)


class Together(Page):
    """A page that is served to so many requests at a time, and to no fewer."""

    def __init__(self, body: bytes, barrier: threading.Barrier) -> None:
        super().__init__(body)
        self.barrier = barrier

    def answer(self, request: Request, fault: Fault | None) -> Any:
        self.barrier.wait(LONG_S)
        time.sleep(0.02)  # shorter ones would be limited by the processor
        return super().answer(request, fault)


def test_all_ranges_of_a_batch_are_in_flight_at_once(server: Server) -> None:
    """None waits for another, once a smaller batch was answered."""
    read = Fetcher().range_reader(f"{server.url}/a", 1000)
    for count in (FIRST_AWAITED, 2 * FIRST_AWAITED, 4 * FIRST_AWAITED):
        server.pages["/a"] = Together(bytes(1000), threading.Barrier(count))
        found = in_threads([partial(read, n, n + 10) for n in range(count)], "test")
        assert found == [bytes(10)] * count
