"""Stream the output of the command of a ``pipe:`` URL.

This is the only module that starts a shell; specs/security.md says who may name a command.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from wids.storage.transport import urls
from wids.storage.transport.local import Local
from wids.storage.transport.stream import (
    CHUNK_NBYTES,
    Content,
    Data,
    Stream,
    TransientError,
    Transport,
)


def transport_for(options: Mapping[str, Any], scratch: str | None) -> Transport:  # noqa: ARG001
    """Return the transport of ``pipe:`` URLs; there are no options for them."""
    return Pipe(scratch)


class Pipe(Transport):
    """Runs the commands of ``pipe:`` URLs.

    A command writes to its standard output, or to the path that replaces ``{local}`` in it.

    Args:
        scratch: Folder for the files that replace ``{local}``; None for the system's.
    """

    states_nbytes = False  # a command would run

    def __init__(self, scratch: str | None = None) -> None:
        self.scratch = scratch

    def open(self, url: str, start: int, stop: int | None, tag: str | None) -> Stream:  # noqa: ARG002
        """Return the stream of a command, which starts when the first bytes are read."""
        command = url[len("pipe:") :]
        if "{local}" in command:
            chunks = _output_to_file(url, command, self.scratch)
        else:
            chunks = _output(url, command)
        # Closing a generator runs its `finally`, which kills the command.
        return Stream(Content(), chunks, chunks.close)


def _output(url: str, command: str) -> Generator[bytes, None, None]:
    with _running(url, command, subprocess.PIPE) as output:
        yield from iter(lambda: output.read(CHUNK_NBYTES), b"")


def _output_to_file(url: str, command: str, scratch: str | None) -> Generator[Data, None, None]:
    if scratch is not None:
        # One level after the other: the mode of `makedirs` is that of the last folder only.
        os.makedirs(os.path.dirname(scratch), mode=0o700, exist_ok=True)
        os.makedirs(scratch, mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pipe-", suffix=".tmp", dir=scratch) as folder:
        path = os.path.join(folder, "shard.tar")
        with _running(url, command.replace("{local}", _quoted(path)), subprocess.DEVNULL):
            pass
        with Local().open(path, 0, None, None) as stream:
            yield from stream.chunks


def _quoted(path: str) -> str:
    """Return a path as one word for the system's shell."""
    return subprocess.list2cmdline([path]) if os.name == "nt" else shlex.quote(path)


@contextmanager
def _running(url: str, command: str, stdout: int) -> Iterator[Any]:
    """Run a command; yield its output; wait for its end, or kill it after an error.

    Raises:
        TransientError: It failed.
    """
    with subprocess.Popen(  # noqa: S602 - `pipe:` means a shell; security.md says who may use it
        command,
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        start_new_session=True,  # so that one signal reaches every process of a pipeline
    ) as process:
        try:
            yield process.stdout
            if status := process.wait():
                raise TransientError(
                    f"{urls.redact(url)}: expected the command to exit with status 0, found "
                    f"{status}; see its own messages on stderr"
                )
        finally:
            # Before its output is closed, and even if the shell has ended: what it started may
            # still run. The system does not reuse the number of the group until somebody waits.
            if process.returncode is None:
                with suppress(OSError):
                    if hasattr(os, "killpg"):
                        os.killpg(process.pid, signal.SIGKILL)
                    else:  # Windows has no groups: what the shell started ends with its pipe
                        process.kill()
