"""Programs that serve on loopback, each for the time of a block."""

from __future__ import annotations

import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest


def free_port() -> int:
    """Return a port that is free, and stays so: the system gives connections higher ones."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def running(command: list[str], port: int, **about: Any) -> Iterator[None]:
    """Run a server until the block ends, which begins when the server answers."""
    with tempfile.TemporaryFile() as log:  # not a pipe, which fills up if nobody reads it
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **about)
        try:
            until_s = time.monotonic() + 150
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > until_s:
                        log.seek(0)
                        pytest.fail(f"{command[0]} does not answer: {log.read()!r}")
                    time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait(timeout=60)
