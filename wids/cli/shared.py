"""What commands share: arguments, printed forms, consent and named objects.

Every command imports this module, so it imports little itself.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

import wids
from wids.cli.server_options import add_storage, storage_options, without_quoting
from wids.errors import printable
from wids.storage.sizes import count_text
from wids.storage.transport import urls

if TYPE_CHECKING:
    from wids.dataset.peeking import Peek
    from wids.dataset.shard_list import ShardListDataset
    from wids.publish.job import Job
    from wids.publish.journal import JobPart
    from wids.publish.problems import Problem
    from wids.shards.costs import DownloadCost
    from wids.shards.specs.loader import Shards
    from wids.shards.specs.model import DatasetSpec, ShardSpec


def add_spec(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the dataset."""
    parser.add_argument(
        "spec", help="a JSON spec or its URL, a .tar, a pattern of tars, or a folder"
    )


class Once(argparse.Action):
    """Stores the value of an option, which may be given once; argparse would keep the last."""

    is_given = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - as argparse calls it
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store a value."""
        if option_string and self.is_given:
            raise argparse.ArgumentError(self, f"expected once, found again, with {values!r}")
        self.is_given = True
        setattr(namespace, self.dest, values)


def add_where(parser: argparse.ArgumentParser) -> None:
    """Add the option for conditions; see `selected`."""
    parser.add_argument(
        "--where",
        metavar="CONDITION",
        action="append",
        help="only samples that meet it: .json/height >= 256 and .cls == 3; columns are paths, or "
        "those of the dataset's table; if it is repeated, all conditions hold",
    )


def selected(dataset: ShardListDataset, options: argparse.Namespace) -> ShardListDataset:
    """Return the samples that meet all conditions of the arguments."""
    from wids.tables.conditions import met_in

    for condition in options.where or ():
        dataset = dataset[met_in(dataset, condition)]
    return dataset


def add_flag(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Add an option without a value."""
    parser.add_argument(name, action="store_true", help=text)


def refuse(options: argparse.Namespace, names: Iterable[str], text: str) -> None:
    """Raise `ValueError` with a text if one of some options was passed."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value is not False and value != "":  # 0 is a value
            raise ValueError(f"--{name.replace('_', '-')}: {text}")


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add the options for reading a dataset: see `loaded_spec` and `opened`."""
    parser.add_argument("--allow-pipe", action="store_true", help="run commands that a spec names")
    add_storage(parser)


def add_state(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the options for the steps of an epoch: see `order_command`."""
    parser.add_argument(
        "--state",
        metavar="FILE",
        required=required,
        help="JSON, or a file of torch.save, with what state_dict of the sampler has returned: "
        "alone, in the state of a loader, or in a checkpoint",
    )
    parser.add_argument(
        "--batch-size",
        metavar="LIST",
        type=_sizes,
        help="samples of a rank in a step; one number for each part of an epoch that was resumed "
        "on other numbers of ranks, if they differ",
    )
    parser.add_argument("--epoch", type=not_negative, help="(default: that of the state)")


def _sizes(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Add the option for the number of processes."""
    parser.add_argument(
        "-j", "--jobs", type=positive, default=None, help="processes (default: one per core)"
    )


def add_parts(parser: argparse.ArgumentParser) -> None:
    """Add the options for one part of the work, and for merging all parts."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--part",
        metavar="K/N",
        type=_part,
        help="do part K of N, such as 3/16, which other machines may do at the same time",
    )
    group.add_argument(
        "--merge",
        action="store_true",
        help="publish what all parts have made; give the same arguments as for each part",
    )


def _part(text: str) -> JobPart:
    from wids.publish.journal import JobPart

    return without_quoting(JobPart.parse, text)


def done(job: Job, options: argparse.Namespace) -> Sequence[ShardSpec]:
    """Do a job, or a part of it, or merge its parts; return the shards of that."""
    from wids.publish.executors import process_pool

    if options.merge:
        return job.merge().shards
    with process_pool(options.jobs) as executor:
        if options.part is None:
            return job.run(executor).shards
        return job.run_part(options.part, executor)


def named_columns(texts: list[str]) -> dict[str, str]:
    """Return the paths of columns by their names; a path without a name is its own.

    Raises:
        ValueError: A name is repeated.
    """
    columns: dict[str, str] = {}
    for item in filter(None, ",".join(texts).split(",")):
        name, mark, path = item.partition("=")
        if name in columns:
            raise ValueError(f"--columns: expected names that differ, found {name!r} twice")
        columns[name] = path if mark else name
    return columns


def positive(text: str, least: int = 1) -> int:
    """Return the number in an argument; it must be at least 1."""
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"expected at least {least}, found {number}")
    return number


def not_negative(text: str) -> int:
    """Return the number in an argument; it must be at least 0."""
    return positive(text, 0)


def loaded_spec(path: str, options: argparse.Namespace) -> DatasetSpec:
    """Load the spec at a path or URL."""
    servers = storage_options(options)
    return wids.load_spec(path, allow_pipe=options.allow_pipe, storage_options=servers)


def opened(shards: Shards, options: argparse.Namespace, **more: Any) -> ShardListDataset:
    """Open the dataset that a command reads; its samples are left as they are stored by default."""
    arguments = {"transformations": None, "storage_options": storage_options(options), **more}
    return wids.ShardListDataset(shards, allow_pipe=options.allow_pipe, **arguments)


def spec_and_peek(
    options: argparse.Namespace, *, wanted: bool = False
) -> tuple[DatasetSpec, Peek | None]:
    """Load the spec that a command names; return it, and a look at its shards.

    Without an index of each shard, a dataset could only be opened by downloading whole shards.

    Args:
        options: The arguments of the command.
        wanted: Whether to look at the shards in any case; otherwise None is returned if a dataset
            can be opened without downloading a shard.
    """
    from wids.dataset.peeking import create_command, peek

    spec = loaded_spec(options.spec, options)
    # Dataset indexes are trusted, so that the command opens them only once.
    num_indexed = sum(part.stop - part.start for part in spec.all_dataset_indexes())
    if num_indexed == len(spec.shards) and not wanted:
        return spec, None
    shards = peek(
        spec,
        transformations=None,
        allow_pipe=options.allow_pipe,
        storage_options=storage_options(options),
    )
    shards.create_command = create_command(options.spec, spec)
    return spec, shards if wanted or not shards.has_all_indexes else None


Style = Literal["bold", "red", "yellow"]
_CODES: Final[dict[Style, int]] = {"bold": 1, "red": 31, "yellow": 33}


def styled(text: str, style: Style, stream: TextIO) -> str:
    """Return text with a colour, for a terminal that has colours and a user who wants them."""
    wanted = stream.isatty() and not os.environ.get("NO_COLOR")
    if not wanted or os.environ.get("TERM", "dumb") == "dumb":
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def with_bold_header(table: str) -> str:
    """Return a table for standard output whose first line is bold in a terminal."""
    header, *rows = table.split("\n")
    return "\n".join([styled(header, "bold", sys.stdout), *rows])


def print_error(text: str) -> None:
    """Print an error in one line, on standard error."""
    print(f"{styled('wids:', 'red', sys.stderr)} {printable(text)}", file=sys.stderr)


def output_width() -> int:
    """Return the width of the terminal in columns; output to another program is not cut."""
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 10_000


def print_note(text: object) -> None:
    """Print a line that is not a result, on standard error."""
    print(f"{styled('wids:', 'yellow', sys.stderr)} {printable(str(text))}", file=sys.stderr)


def print_problem(problem: Problem) -> None:
    """Print what is wrong with a dataset, or a remark on it, beside the results."""
    print_note(f"note: {problem}" if problem.severity == "remark" else problem)


def print_counts(output: str, shards: Sequence[ShardSpec], part: JobPart | None = None) -> None:
    """Print how many shards and samples were written or described."""
    samples = count_text(sum(shard.num_samples or 0 for shard in shards), "sample")
    label = "" if part is None else f"part {part}: "
    print(f"{urls.redact(output)}: {label}{count_text(len(shards), 'shard')}, {samples}")


_WRONG_USAGE: Final = 2


def add_yes(parser: argparse.ArgumentParser, text: str = "download more than 1 GB") -> None:
    """Add the option to consent in advance."""
    parser.add_argument("--yes", action="store_true", help=f"{text} without asking")


def ask_consent(cost: DownloadCost, options: argparse.Namespace, purpose: str) -> None:
    """State what will be downloaded, and ask if it is more than a gigabyte.

    Args:
        cost: What will be downloaded.
        options: Arguments, with that of `add_yes`.
        purpose: What it is for, and what may reduce it; a part of a sentence.

    Raises:
        SystemExit: The answer was no (status 1), or the command could not ask (status 2).
    """
    if not cost.nbytes_of:
        return
    text = f"wids: {purpose}: {cost}"
    if not cost.is_large:
        print(text, file=sys.stderr)
        return
    ask(text, options, "wids: these bytes were not downloaded")


def ask(text: str, options: argparse.Namespace, after_no: str) -> None:
    """State what a command will do, and ask unless ``--yes`` was passed.

    Args:
        text: What it will do.
        options: Arguments, with that of `add_yes`.
        after_no: What to print after the answer no.

    Raises:
        SystemExit: As for `ask_consent`.
    """
    if options.yes:
        print(text, file=sys.stderr)
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        print(f"{text}; pass --yes to do it without a terminal to ask in", file=sys.stderr)
        raise SystemExit(_WRONG_USAGE)
    print(f"{text}. Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        print(after_no, file=sys.stderr)
        raise SystemExit(1)


def ask_to_fetch(dataset: ShardListDataset, options: argparse.Namespace) -> None:
    """Ask before fetching shards whose columns cannot be read in any other way.

    They are remote, and have neither a local copy nor an index to read parts of them.
    """
    from wids.shards.costs import DownloadCost

    reader, shards = dataset.reader, dataset.spec.shards
    missing = [
        shards[number]
        for number in range(len(shards))
        if not reader.is_local(number) and reader.index(number) is None
    ]
    cost = DownloadCost({shard.url: shard.nbytes for shard in missing})
    ask_consent(cost, options, "reading columns of shards without an index")


def is_name(text: str) -> bool:
    """Return whether a text is ``module:name``, and no URL and no file that exists."""
    is_command = text.startswith(("pipe:", "file:"))
    is_name = re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", text) is not None
    return is_name and not is_command and not os.path.exists(text)


def named_object(text: str, option: str, kind: str) -> Any:
    """Return the object that ``module:name`` stands for, also of a module in this folder.

    Args:
        text: The name.
        option: The argument, for messages.
        kind: What the object is, for messages.

    Raises:
        ValueError: There is no such object.
    """
    from importlib import import_module

    module, mark, name = text.partition(":")
    # As for `python -m`: a script that is installed has its own folder there instead.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value: Any = import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError, ValueError) as error:
        reason = f": {error}" if mark else ""
        raise ValueError(
            f"{option}: expected MODULE:{kind.upper()}, found {text!r}{reason}"
        ) from None
    return value
