"""Admission control of requests by HTTP: permits, memory, cancellation, forks."""

from __future__ import annotations

import gc
import io
import math
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from conftest import in_child, optional
from events import LONG_S, after, wait_for
from loopback import Fault, Page, Request, Server
from transfers import permit_of, saved

from wids.storage import stages
from wids.storage.fetch import Fetcher
from wids.storage.ranges import bytes_of, read_all
from wids.storage.reading_threads import in_threads
from wids.storage.transport.admission import (
    NODE_NBYTES,
    PROCESS_NBYTES,
    Admission,
    Permit,
    _Server,
    _share_nbytes,
    admission,
    has_room,
    part_nbytes,
)
from wids.storage.transport.request_limit import FIRST, FIRST_AWAITED
from wids.storage.transport.retry import CancelledError, cancelled_by, server_at

SERVER = "https://server"
NOTE_SPEED = _Server.note_speed
"""Other tests have parts that are as long on a machine that stops."""


def fill(admission: Admission, count: int = FIRST, nbytes: int = 0) -> list[Permit]:
    """Take permits."""
    return [permit_of(admission, SERVER, nbytes) for _ in range(count)]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long nothing happens, the server is not taken for silent."""
    monkeypatch.setattr("wids.storage.transport.admission._SILENT_S", math.inf)


@pytest.mark.usefixtures("patient")
def test_as_many_pass_as_the_limit_allows() -> None:
    """The next request waits until one has ended."""
    admission = Admission()
    permits = fill(admission)
    passed = threading.Event()

    def wait() -> None:
        permit = permit_of(admission, SERVER)
        passed.set()
        permit.leave()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not passed.wait(0.2)
    permits.pop().leave()
    assert passed.wait(LONG_S)
    thread.join()
    for permit in permits:
        permit.leave()


def test_servers_are_met_while_permits_end() -> None:
    """A thread that meets a server does not disturb one that lets others pass."""
    admission, errors, is_over = Admission(), list[Exception](), threading.Event()
    interval_s = sys.getswitchinterval()

    def work() -> None:
        try:
            while not is_over.is_set():
                permit_of(admission, SERVER).leave()
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for number in range(3000):
            admission.server(f"{SERVER}{number}")
    finally:
        sys.setswitchinterval(interval_s)
        is_over.set()
        for thread in threads:
            thread.join()
    assert errors == []


@pytest.mark.usefixtures("patient")
def test_a_wait_is_cancelled() -> None:
    """A thread that waits for its permit ends soon after its event was set."""
    admission = Admission()
    permits = fill(admission)
    event = threading.Event()
    thread = after(lambda: admission.server(SERVER).waiting, event.set)

    with cancelled_by(event), pytest.raises(CancelledError):
        permit_of(admission, SERVER)
    thread.join()
    for permit in permits:
        permit.leave()
    assert admission.server(SERVER).num_in_flight == 0


@pytest.mark.usefixtures("patient")
def test_a_cancelled_wait_is_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its permit comes at that moment: nothing was sent."""
    admission, num_before = Admission(), stages.counted()["requests"]
    permits = fill(admission)

    def cancel() -> NoReturn:
        for permit in permits:
            permit.leave()
        raise CancelledError("")

    monkeypatch.setattr("wids.storage.transport.admission.check_waits", cancel)
    with pytest.raises(CancelledError):
        permit_of(admission, SERVER)
    assert stages.counted()["requests"] == num_before + FIRST
    assert admission.server(SERVER).num_in_flight == 0


def test_idle_permits_do_not_block_others() -> None:
    """After two seconds in which nothing happened, one more passes."""
    admission = Admission()
    started_s = time.monotonic()
    permits = fill(admission)
    permit = permit_of(admission, SERVER)
    assert 2 < time.monotonic() - started_s < LONG_S
    for held in [*permits, permit]:
        held.leave()


def test_a_forgotten_permit_is_returned() -> None:
    """A permit that Ctrl-C separated from its request does not count for ever."""
    admission = Admission()
    for _ in range(3 * FIRST):
        fill(admission, 1)
    permit = permit_of(admission, SERVER)
    assert admission.server(SERVER).num_in_flight == 1
    permit.leave()


@pytest.mark.usefixtures("patient")
def test_bytes_in_flight_are_limited() -> None:
    """Responses that are kept in memory wait for each other; one always passes."""
    admission = Admission()
    large = fill(admission, 1, 10 * PROCESS_NBYTES)
    passed = threading.Event()

    def wait() -> None:
        permit = permit_of(admission, "https://another", 1 << 20)
        passed.set()
        permit.leave()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not passed.wait(0.2)
    large.pop().leave()
    assert passed.wait(LONG_S)
    thread.join()
    assert admission.most_nbytes == 10 * PROCESS_NBYTES


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
        permit_of(admission(), SERVER).leave()
        return admission()._limit_nbytes


def test_workers_share_the_memory_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a loader too, which do not know of each other when they are forked."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    loader = optional("torch.utils.data").DataLoader(
        Limits(), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    assert list(loader) == [NODE_NBYTES // 8] * 2


def test_a_child_has_an_admission_of_its_own() -> None:
    """Turns of the parent, and its locks, are not those of the child."""
    permits = fill(admission())
    with admission().lock:
        assert in_child(lambda: [permit.leave() for permit in fill(admission())] == [None] * FIRST)
    for permit in permits:
        permit.leave()


def test_requests_pass_admission_control(server: Server) -> None:
    """Documents and ranges hold a permit while they are in flight, and none afterwards."""
    url = server.page("/a", bytes(100_000))
    server.pages["/b"] = Together(bytes(100_000), threading.Barrier(2))
    fetcher = Fetcher()
    assert admission().server(server.url).limit.value == FIRST
    assert fetcher.read(url, 1 << 20) == bytes(100_000)
    read = fetcher.range_reader(f"{server.url}/b", 100_000)
    admission().most_nbytes = 0
    in_threads([lambda: read(0, 50_000)] * 100, "test")

    assert admission().server(server.url).num_in_flight == 0
    assert len(server.log) == 101
    assert admission().most_nbytes > 50_000  # more than one at a time


@pytest.mark.usefixtures("quick_retries")
def test_a_refusal_lowers_the_limit(server: Server) -> None:
    """A server that answers 503 gets fewer requests."""
    url = server.page("/a", b"abc", faults=[Fault(503)] * 3)
    Fetcher().save(url, io.BytesIO())
    assert admission().server(server.url).limit.value == max(1, FIRST // 8)
    assert len(server.log) == 4


def test_those_that_wait_are_not_refused_one_after_the_other(server: Server) -> None:
    """While a server has no room at all, single requests find out when it has."""
    server.max_requests = 0
    reader = Fetcher().range_reader(server.page("/small", bytes(1000)), 1000)
    reader_thread = threading.Thread(target=reader, args=(0, 10))
    reader_thread.start()
    wait_for(lambda: admission().server(server.url, is_awaited=True).num_rejected)
    threads = [threading.Thread(target=reader, args=(n, n + 10)) for n in range(100)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(server.log) >= 4)
    server.max_requests = 6
    for thread in [reader_thread, *threads]:
        thread.join(LONG_S)
        assert not thread.is_alive()
    assert sum(request.is_refused for request in server.log) <= 30


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("is_awaited", [True, False])
def test_pauses_grow_while_the_only_request_is_refused(server: Server, *, is_awaited: bool) -> None:
    """The head of a refusal is no answer; that of a response is one."""
    url = server.page("/small", bytes(1000), faults=[Fault(429)] * 3)
    known = admission().server(server.url, is_awaited=is_awaited)
    counts = list[int]()
    refused = known.note_refusal

    def note_refusal() -> None:
        refused()
        counts.append(known.num_rejected)

    known.note_refusal = note_refusal  # type: ignore[method-assign]
    if is_awaited:
        assert Fetcher().range_reader(url, 1000)(0, 10) == bytes(10)
    else:
        assert len(saved(url)) == 1000
    assert (counts, known.num_rejected) == ([1, 2, 3], 0)


@pytest.mark.parametrize("is_awaited", [True, False])
def test_who_is_refused_gets_half_of_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch, *, is_awaited: bool
) -> None:
    """What is fetched ahead makes room, also in the process that started the one that reads.

    So do processes of the program for one whose only request was refused, whatever it was for.
    """
    monkeypatch.setattr("wids.storage.transport.admission._HELD_S", LONG_S)
    server.max_requests = 0
    url = server.page("/small", bytes(1000))

    def ahead(address: str = server.url) -> bool:
        return admission().server(address).takes_another()

    def is_refused() -> bool:
        fetcher = Fetcher()
        save = lambda *_: fetcher.save(url, io.BytesIO())  # noqa: E731
        read = fetcher.range_reader(url, 1000) if is_awaited else save
        threading.Thread(target=read, args=(0, 10), daemon=True).start()
        wait_for(lambda: admission().server(server.url, is_awaited=is_awaited).num_rejected)
        return True

    permits = [permit_of(admission(), server.url) for _ in range(FIRST // 2)]
    assert ahead()
    assert in_child(is_refused)
    assert not ahead()
    assert ahead(SERVER)
    permits.pop().leave()
    assert ahead()
    permits.append(permit_of(admission(), server.url))
    assert not ahead()
    stages.here.common[server_at(server.url, stages.REFUSALS)] = 0.0  # the time is over
    assert ahead()
    for permit in permits:
        permit.leave()


def test_a_request_that_is_cut_off_teaches_no_time() -> None:
    """All of the answer would have taken longer."""
    admission = Admission()
    limit = admission.server(SERVER, is_awaited=True).limit
    permit, value = permit_of(admission, SERVER, is_awaited=True), limit.value
    permit.answered()
    permit.leave()
    assert (limit.value, limit.is_prompt) == (value, False)
    permit = permit_of(admission, SERVER, is_awaited=True)
    permit.answered()
    permit.leave(nbytes=10, is_whole=True)
    # However long it took, one more is in flight, or the processor is the limit.
    assert limit.value > value or limit.is_prompt


@pytest.mark.usefixtures("patient")
def test_a_higher_limit_lets_requests_pass_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before any of the others ends."""
    monkeypatch.setattr("wids.storage.transport.admission._POLL_S", threading.TIMEOUT_MAX)
    admission = Admission()
    permits = fill(admission)
    thread = threading.Thread(target=lambda: permit_of(admission, SERVER).leave(), daemon=True)
    thread.start()
    known = admission.server(SERVER)
    wait_for(lambda: known.waiting)
    for permit in permits:
        permit.answered()
    assert known.limit.value > FIRST
    thread.join(LONG_S)
    assert not thread.is_alive()
    for permit in permits:
        permit.leave()


def test_a_permit_that_is_interrupted_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C then is no other error, and counts no request."""
    admission = Admission()
    clock = SimpleNamespace(monotonic=interrupt)
    monkeypatch.setattr("wids.storage.transport.admission.time", clock)
    with pytest.raises(KeyboardInterrupt):
        permit_of(admission, SERVER)
    monkeypatch.undo()
    gc.collect()  # an error in a finalizer fails the test
    permit_of(admission, SERVER).leave()
    assert admission.server(SERVER).num_in_flight == 0


def interrupt() -> NoReturn:
    raise KeyboardInterrupt


def test_a_part_is_what_a_request_brings_in_half_a_second(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the latest requests; short ones say nothing of the speed."""
    monkeypatch.setattr(_Server, "note_speed", NOTE_SPEED)
    assert len(saved(server.page("/a", bytes(300_000)))) == 300_000
    assert admission().server(server.url).speed > 0
    clock = SimpleNamespace(monotonic=lambda: 100.0)
    monkeypatch.setattr("wids.storage.transport.admission.time", clock)
    lengths = []
    for nbytes in (1000, 8 << 20, 1 << 20):
        lengths.append(part_nbytes(SERVER))
        admission().server(SERVER).note_speed(nbytes, since_s=98.0)
    assert [*lengths, part_nbytes(SERVER)] == [1 << 20, 1 << 20, 2 << 20, 6 << 18]


def test_parts_grow_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request has the network for itself, which says little about many."""
    monkeypatch.setattr(_Server, "note_speed", NOTE_SPEED)
    lengths = [1 << 18]
    for _ in range(3):
        admission().server(SERVER).note_speed(lengths[-1], since_s=time.monotonic() - 1e-9)
        lengths.append(part_nbytes(SERVER))
    assert lengths[1] == 1 << 20
    assert lengths == sorted(lengths)
    assert lengths[-1] < 4 << 20


@pytest.mark.usefixtures("patient")
def test_what_is_awaited_does_not_wait_for_what_is_fetched_ahead() -> None:
    """It passes though others wait, until as many pass as may be awaited."""
    admission = Admission()
    permits = fill(admission)
    threads = [threading.Thread(target=lambda: permits.append(permit_of(admission, SERVER)))]
    threads[0].start()
    wait_for(lambda: admission.server(SERVER).waiting)
    awaited = admission.server(SERVER, is_awaited=True)
    for _ in range(FIRST_AWAITED + 1):
        threads.append(
            threading.Thread(
                target=lambda: permits.append(permit_of(admission, SERVER, is_awaited=True))
            )
        )
        threads[-1].start()
    wait_for(lambda: len(permits) == FIRST + FIRST_AWAITED)
    wait_for(lambda: awaited.waiting)
    assert (len(awaited.waiting), len(admission.server(SERVER).waiting)) == (1, 1)
    for _ in range(2):  # the second time, those that waited
        for permit in permits:
            permit.leave()
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
    reader = Fetcher().range_reader(f"{server.url}/a", 1000)
    for count in (FIRST_AWAITED, 2 * FIRST_AWAITED, 4 * FIRST_AWAITED):
        server.pages["/a"] = Together(bytes(1000), threading.Barrier(count))
        parts = [(reader, n, n + 10) for n in range(count)]
        assert read_all(parts, lambda _, arrived: bytes_of(arrived)) == [bytes(10)] * count


def test_files_that_arrive_as_streams_are_few() -> None:
    """Where no request is in flight here, so many files may begin; else one for each and more."""
    assert has_room("sftp://host", 7)
    assert not has_room("sftp://host", 8)
    permits = [permit_of(admission(), SERVER) for _ in range(FIRST - 1)]
    assert has_room(SERVER, 7 + len(permits))
    assert not has_room(SERVER, 8 + len(permits))
    permits.append(permit_of(admission(), SERVER))
    assert not has_room(SERVER, FIRST)
    for permit in permits:
        permit.leave()


def test_a_full_server_leaves_room_at_others() -> None:
    """No file begins at a server where a request waits; others, and readers, are not held up."""
    permits = fill(admission())
    waiting = admission().ask(SERVER, 0, ("GET", SERVER))
    assert not has_room(SERVER, FIRST)
    assert has_room("https://other", 0)
    awaited = admission().ask(SERVER, 0, ("GET", SERVER), is_awaited=True)
    assert awaited.is_counted
    permits.pop().leave()
    assert waiting.is_counted
    assert not has_room(SERVER, FIRST)  # whose place it has
    permits.pop().leave()
    assert has_room(SERVER, FIRST - 1)
    for permit in [*permits, waiting, awaited]:
        permit.leave()
