"""The ``wids`` command: all commands in one parser, and what happens after an error.

Results go to standard output, errors and progress to standard error. The exit status is 0, 1 if a
problem was found, 2 for wrong usage, or 130 after Ctrl-C, which leaves no incomplete file.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import threading
from collections.abc import Sequence
from typing import Final

import wids
from wids.cli import (
    browse_command,
    cache_command,
    create_command,
    demo_command,
    info_command,
    pack_command,
    prefetch_command,
    rewrite_command,
    sample_command,
    table_command,
    update_command,
    verify_command,
)
from wids.errors import WidsError

_COMMANDS: Final = (
    pack_command,
    create_command,
    info_command,
    sample_command,
    verify_command,
    update_command,
    table_command,
    rewrite_command,
    browse_command,
    prefetch_command,
    cache_command,
    demo_command,
)
_INTERRUPTED: Final = 130
_EXPECTED: Final = (
    *(WidsError, OSError, ValueError, IndexError, KeyError, RuntimeError),
    ImportError,  # of an extra; its text says how to install it
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what a terminal cannot show
    try:
        status: int = options.run(options)
        # Flushed here, so that a pipe that the reader closed is an error inside the `try`.
        sys.stdout.flush()
    except _EXPECTED as error:
        return _failed(error)
    except KeyboardInterrupt:
        print("wids: interrupted", file=sys.stderr, flush=True)
        others = set(threading.enumerate()) - {threading.current_thread()}
        if not all(thread.daemon for thread in others):  # exit would wait for a server that hangs
            os._exit(_INTERRUPTED)
        return _INTERRUPTED
    return status


def _failed(error: Exception) -> int:
    """Print an error on one line and return the exit status."""
    from wids.errors import message_of, printable

    if isinstance(error, BrokenPipeError):
        # The reader of standard output has closed it, as `head` does. Python would complain when
        # it flushes standard output at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    print(f"wids: {printable(message_of(error))}", file=sys.stderr)
    return 1


class _Version(argparse.Action):
    """Prints the version; looks it up only then, which takes 30 ms."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:  # noqa: A002
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"wids {wids.__version__}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wids",
        description="Indexed random access to datasets stored as tar shards.",
        epilog="Begin with `wids demo`; `wids COMMAND --help` shows an example of each command.",
    )
    parser.add_argument("--version", action=_Version, help="show program's version number and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
