"""What the tests of commands share: running one, and shards to run it on."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from select import select
from typing import Any

import pytest
from conftest import write_shards
from events import LONG_S, wait_for

from wids.cli import main as cli


def run(
    *arguments: object, stdin: str | None = None, cwd: Path | None = None
) -> tuple[int, str, str]:
    """Run the command in this process, which saves the start; return status, output and errors.

    Streams are of the type that a process has, without a terminal; warnings are printed.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    before = Path.cwd()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")
        for kind in (DeprecationWarning, ImportWarning, ResourceWarning):  # as Python starts
            warnings.simplefilter("ignore", kind)
        patch.setattr(warnings, "showwarning", _show_warning)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((stdin or "").encode()), "utf-8"))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        try:
            os.chdir(cwd or before)
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as exit_:  # argparse
            status = int(exit_.code or 0)
        finally:
            os.chdir(before)
    return status, *(_written(stream) for stream in (out, err))


def _show_warning(message: Warning | str, category: type[Warning], *others: Any) -> None:
    sys.stderr.write(warnings.formatwarning(message, category, *others[:2]))


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.buffer.seek(0)
    return stream.buffer.read().decode()


def run_process(
    *arguments: object, stdin: str | None = None, cwd: Path | None = None
) -> tuple[int, str, str]:
    """Run the command as a user does; return status, output and errors."""
    result = subprocess.run(
        [sys.executable, "-m", "wids", *map(str, arguments)],
        input=stdin,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout, result.stderr


def interrupted(
    *arguments: object, cwd: Path | None = None, is_at_work: Callable[[], bool]
) -> tuple[int, str] | None:
    """Run the command as a user does, and press Ctrl-C while it is at work.

    Returns:
        Status and errors; None if it ended before.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "wids", *map(str, arguments)],
        cwd=cwd,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: is_at_work() or process.poll() is not None, "the work of the command")
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=LONG_S)
    return None if process.returncode == 0 else (process.returncode, err)


def has_record(journal: Path) -> bool:
    """Whether a journal has the record of a shard."""
    return any(path.suffix == "" and len(path.name) == 32 for path in journal.glob("*"))


def run_in_terminal(arguments: list[str], answer: str) -> tuple[int, str]:
    """Run a command in a terminal where it is answered; return status and what the terminal shows.

    The command is one that asks.
    """
    master, slave = pytest.importorskip("pty").openpty()
    with (
        pytest.MonkeyPatch.context() as patch,
        open(slave, encoding="utf-8", closefd=False) as stdin,
        open(slave, "w", encoding="utf-8", closefd=False) as stderr,
    ):
        patch.setattr(sys, "stdin", stdin)
        patch.setattr(sys, "stderr", stderr)
        patch.setenv("WIDS_PROGRESS", "0")
        os.write(master, answer.encode() + b"\n")
        try:
            status = cli.main(arguments)
        except SystemExit as error:
            status = int(str(error))
        stderr.flush()
    shown = ""
    while "[y/N]" not in shown:  # the echo of the answer may come alone
        assert select([master], [], [], LONG_S)[0], shown
        shown += os.read(master, 10_000).decode()
    os.close(master)
    os.close(slave)
    return status, shown


def write_bare_shards(folder: Path) -> Path:
    """Write shards of 8, 5 and 7 samples without a spec; return their folder."""
    write_shards(folder, [8, 5, 7]).unlink()
    return folder
