"""The ``wids`` command: all commands in one parser, and what happens after an error.

Results go to standard output, errors and progress to standard error. The exit status is 0, 1 if a
problem was found, 2 for wrong usage, or 130 after Ctrl-C, which leaves no incomplete file.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import textwrap
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Final

import wids
from wids.errors import WidsError

_COMMANDS: Final = {
    "pack": "pack a folder of files into shards, with a spec and their index",
    "create": "describe shards in a JSON spec, with their index beside it",
    "info": "show what a spec says, and what is in a first shard",
    "sample": "show a sample",
    "verify": "compare shards with their spec and print a line for each problem",
    "diff": "compare the samples of two datasets by their indexes, without reading shards",
    "update": "change what a spec says of its dataset; the previous file stays beside it as .bak",
    "order": "print which samples are in a step of training, from the state of its sampler",
    "bench": "read a dataset as training would, and show where the time goes",
    "table": "save fields of all samples as the columns of a Parquet file, named in the spec",
    "rewrite": "write a dataset into new shards: shuffled, filtered, cut or mapped",
    "browse": "look at a dataset in a browser on this machine, until Ctrl-C",
    "prefetch": "fetch the shards of a dataset into the cache",
    "cache": "show, clear or check the copies of remote shards",
    "demo": "make a small dataset and run one exact epoch over it in two processes",
}
"""What each command does. ``create`` is the module `create_command`, with ``EXAMPLE``,
``add_arguments`` and ``run``; it is imported if the command is run."""

_INTERRUPTED: Final = 130
_EXPECTED: Final = (
    *(WidsError, OSError, ValueError, IndexError, KeyError, RuntimeError),
    ImportError,  # of an extra; its text says how to install it
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser(arguments)
    if not arguments:
        parser.print_help()
        return 0
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what a terminal cannot show
    try:
        with _log_printed(options):
            status: int = options.run(options)
        # Flushed here, so that a pipe that the reader closed is an error inside the `try`.
        sys.stdout.flush()
    except _EXPECTED as error:
        return _failed(error)
    except KeyboardInterrupt:
        print("wids: interrupted", file=sys.stderr, flush=True)
        from wids.storage import files

        files.delete_unfinished()  # of threads that still wait for a server
        others = set(threading.enumerate()) - {threading.current_thread()}
        if not all(thread.daemon for thread in others):  # exit would wait for a server that hangs
            os._exit(_INTERRUPTED)
        return _INTERRUPTED
    return status


def _log_printed(options: argparse.Namespace) -> AbstractContextManager[None]:
    """Return what prints the log of a command that was called with ``--verbose``."""
    count = options.verbose + getattr(options, "verbose_too", 0)
    if not count:
        return nullcontext()
    import logging

    from wids.cli.log_output import printed

    return printed(logging.INFO if count == 1 else logging.DEBUG, in_full=True)


def _failed(error: Exception) -> int:
    """Print an error on one line and return the exit status."""
    from wids.cli.shared import print_error
    from wids.errors import message_of

    if isinstance(error, BrokenPipeError):
        # The reader of standard output has closed it, as `head` does. Python would complain when
        # it flushes standard output at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    print_error(message_of(error))
    return 1


def _add_verbose(parser: argparse.ArgumentParser, name: str, default: object) -> None:
    parser.add_argument(
        *("-v", "--verbose"),
        action="count",
        dest=name,
        default=default,
        help="print what happens on standard error; twice: each request to a server",
    )


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of all commands, with the arguments of the one that is run."""
    parser = argparse.ArgumentParser(
        prog="wids",
        description="Indexed random access to datasets stored as tar shards.",
        epilog="Begin with `wids demo`; `wids COMMAND --help` shows an example of each command.",
    )
    # Looked up only where it is asked for, perhaps in short, which takes 30 ms.
    is_asked = any(text.startswith("--vers") for text in arguments)
    version = f"wids {wids.__version__}" if is_asked else ""
    parser.add_argument("--version", action="version", version=version)
    _add_verbose(parser, "verbose", 0)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    # No option before a command has a value.
    chosen = next((text for text in arguments if not text.startswith("-")), None)
    for name, text in _COMMANDS.items():
        command: argparse.ArgumentParser = commands.add_parser(
            name,
            help=text,
            description=textwrap.fill(text[0].upper() + text[1:] + "."),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == chosen:
            from wids.cli.shared import Once

            module = import_module(f"wids.cli.{name}_command")
            command.epilog = "example:\n" + module.EXAMPLE
            command.set_defaults(run=module.run)
            for action in (None, "store"):  # of options that name none
                command.register("action", action, Once)
            module.add_arguments(command)
            # Another name than before the command, since argparse would forget that count.
            _add_verbose(command, "verbose_too", argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
