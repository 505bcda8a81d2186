"""The cache as a state machine: in any order of events, copies are complete and correct."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from loopback import Fault, Server

from wids.errors import FetchError
from wids.storage import fetch
from wids.storage.cache.cache_names import RemoteFile, copy_path
from wids.storage.cache.store import Cache, CachedCopy

SIZE = 20_000
LIMIT = 5 * SIZE
FAULTS = [
    Fault(404),
    Fault(500),
    Fault(after_nbytes=5000),
    Fault(after_nbytes=5000, how="short"),
    Fault(200, body=b"<html>log in</html>"),
]
NUMBERS = st.integers(0, 7)


class CacheMachine(RuleBasedStateMachine):
    """Several caches over one folder, a server that fails, and a user who deletes things."""

    copies: Bundle[tuple[int, int, CachedCopy]] = Bundle("copies")

    @initialize(limits=st.sampled_from([None, LIMIT]))
    def begin(self, limits: int | None) -> None:
        self.server = Server()
        self.folder = Path(tempfile.mkdtemp())
        self.versions = dict.fromkeys(range(8), 0)
        self.limit = limits
        self.open_copies: dict[int, CachedCopy] = {}
        self.caches = [
            # Waits are not waited for, so that each of them is another request at once.
            Cache(str(self.folder / "c"), fetch.Fetcher({"retry_s": 5}), limit_nbytes=limits)
            for _ in range(3)
        ]
        for number in range(8):
            self.server.page(self.path(number), self.body(number))

    def path(self, number: int) -> str:
        return f"/{number}.tar"

    def body(self, number: int) -> bytes:
        return f"{number}:{self.versions[number]};".encode().ljust(SIZE, b"x")

    def file(self, number: int) -> RemoteFile:
        url = self.server.url + self.path(number)
        return RemoteFile(url, SIZE, version=str(self.versions[number]))

    @rule(target=copies, store=st.integers(0, 2), number=NUMBERS)
    def open(self, store: int, number: int) -> tuple[int, int, CachedCopy]:
        """An opened copy is the right one and complete."""
        remote_file = self.file(number)
        num_requests = len(self.server.log)
        copy = self.caches[store].open(remote_file, lambda file: os.pread(file.fileno(), 10, 0))
        assert os.pread(copy.file.fileno(), SIZE + 1, 0) == self.body(number)
        self.open_copies[copy.file.fileno()] = copy
        if self.limit is not None and len(self.server.log) > num_requests:
            # Space was made for what was fetched: only leases may exceed the limit.
            files = (self.folder / "c" / "shards").glob("*.tar")
            used = {copy.path for copy in self.open_copies.values()}
            assert sum(path.stat().st_size for path in files) <= max(LIMIT, len(used) * SIZE)
        return number, self.versions[number], copy

    @rule(store=st.integers(0, 2), number=NUMBERS, fault=st.sampled_from(FAULTS))
    def open_badly(self, store: int, number: int, fault: Fault) -> None:
        """A server that fails causes an error or another try, never a wrong copy."""
        self.server.pages[self.path(number)].always = fault
        try:
            copy = self.caches[store].open(self.file(number))
        except (FetchError, ValueError):
            pass
        else:
            assert os.pread(copy.file.fileno(), SIZE + 1, 0) == self.body(number)
            copy.file.close()
        finally:
            self.server.pages[self.path(number)].always = None

    @rule(copy=consumes(copies))
    def close(self, copy: tuple[int, int, CachedCopy]) -> None:
        """An opened copy does not change until it is closed."""
        number, version, opened = copy
        expected = f"{number}:{version};".encode().ljust(SIZE, b"x")
        assert os.pread(opened.file.fileno(), SIZE + 1, 0) == expected
        del self.open_copies[opened.file.fileno()]
        opened.file.close()

    @rule(number=NUMBERS)
    def publish_new_version(self, number: int) -> None:
        """The server has a new file, and the spec says so."""
        self.versions[number] += 1
        self.server.page(self.path(number), self.body(number))

    @rule(number=NUMBERS, nbytes=st.integers(0, SIZE - 1))
    def truncate(self, number: int, nbytes: int) -> None:
        """A user cuts a copy short that nobody uses."""
        path = copy_path(self.caches[0].folder, self.file(number))
        if os.path.exists(path) and path not in {c.path for c in self.open_copies.values()}:
            os.truncate(path, nbytes)

    @rule()
    def delete_everything(self) -> None:
        """The user deletes the folder."""
        shutil.rmtree(self.folder / "c", ignore_errors=True)

    @invariant()
    def nothing_unfinished_is_left(self) -> None:
        """No temporary file outlives its download."""
        if not hasattr(self, "folder") or not (self.folder / "c" / "shards").exists():
            return
        files = list((self.folder / "c" / "shards").iterdir())
        assert not [path for path in files if path.name.startswith(".")]

    def teardown(self) -> None:
        if hasattr(self, "server"):
            for copy in self.open_copies.values():
                copy.file.close()
            self.server.close()
            shutil.rmtree(self.folder)


def run(count: int) -> None:
    options: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "deadline": None}
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        CacheMachine, settings=settings(max_examples=count, stateful_step_count=25, **options)
    )


@pytest.mark.usefixtures("quick_retries")
def test_the_cache_in_any_order_of_events() -> None:
    """Thirty histories keep all rules and invariants."""
    run(30)


@pytest.mark.seeds
@pytest.mark.usefixtures("quick_retries")
def test_the_cache_in_many_orders_of_events() -> None:
    """Five hundred histories do."""
    run(500)
