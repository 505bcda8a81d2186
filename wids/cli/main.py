"""The ``wids`` command: parse, call, print.

Results go to standard output, errors and progress to standard error. The exit status is 0, 1 where
a problem was found, or 2 for wrong usage. Interrupted, nothing half-written stays.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import wids
from wids.errors import SpecError, WidsError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from wids.specs.model import DatasetSpec


_PATIENCE_S: Final = 3.0
"""How long downloads have to notice that they are called off."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; give its exit status."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what a terminal cannot show
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except (WidsError, OSError, ValueError, IndexError, KeyError, RuntimeError) as error:
        from wids.looking.text import printable

        if isinstance(error, BrokenPipeError):
            # Whoever read standard output has seen enough; Python would complain at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        print(f"wids: {printable(str(text))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("wids: interrupted", file=sys.stderr, flush=True)
        if threading.active_count() > 1:  # a server that hangs, which the end would wait for
            os._exit(130)
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wids",
        description="Indexed random access to datasets stored as tar shards.",
        epilog="Begin with `wids demo`; `wids COMMAND --help` has an example for each.",
    )
    parser.add_argument("--version", action="version", version=f"wids {wids.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_create, _add_info, _add_sample, _add_verify, _add_update):
        add(commands)
    for add in (_add_browse, _add_prefetch, _add_cache, _add_demo):
        add(commands)
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str, example: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=textwrap.fill(text[0].upper() + text[1:] + "."),
        epilog="example:\n" + example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def _add_spec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", help="a JSON spec or its URL, a .tar, or a pattern of some")


def _add_remote(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--allow-pipe", action="store_true", help="run commands that a spec names")


def _add_jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-j", "--jobs", type=_positive, default=None, help="processes (default: one per core)"
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, found {number}")
    return number


@contextmanager
def _executor(jobs: int | None, num_tasks: int) -> Iterator[Executor | None]:
    """Give processes to share the work, or None where one has all of it."""
    jobs = min(jobs or os.cpu_count() or 1, num_tasks)
    if jobs < 2:
        yield None
        return
    from concurrent.futures import ProcessPoolExecutor

    executor = ProcessPoolExecutor(jobs, initializer=_in_worker)
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield executor
    except BaseException:
        # What is being read, or fetched, may take long, and nobody wants it any more.
        workers = list((executor._processes or {}).values())  # noqa: SLF001 - public in Python 3.14
        for worker in workers:
            worker.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)
        signal.signal(signal.SIGTERM, before)


def _in_worker() -> None:
    """Leave Ctrl-C to the parent, and clean up when it says to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_worker)


def _end_worker(number: int, frame: object) -> None:
    # The executor takes the exception for a result and goes on with the next task: not for long.
    signal.signal(signal.SIGALRM, lambda number, _: os._exit(128 + number))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    _exit(number, frame)


def _exit(number: int, _: object) -> None:
    raise SystemExit(128 + number)


# create


def _add_create(commands: Any) -> None:
    parser = _command(
        commands,
        "create",
        _create,
        "describe shards in a JSON spec, with an index beside it",
        "  wids create train-*.tar --output train.json\n"
        "  wids create 'https://example.com/train-{000000..000146}.tar' -o train.json\n"
        "  wids create shards/ -o train.json --base https://example.com/train/\n"
        "Interrupted, it goes on where it was when it is run again.",
    )
    parser.add_argument(
        "files",
        nargs="+",
        help="shards, patterns, URLs, folders; - reads names from standard input",
    )
    parser.add_argument("-o", "--output", default="shardindex.json", help="(%(default)s)")
    parser.add_argument("-n", "--name", help="name of the dataset (default: by the first shard)")
    parser.add_argument(
        "-i", "--info", metavar="FILE", help="file with a description, for the spec"
    )
    parser.add_argument("-b", "--base", help="folder or URL where the shards will be found")
    parser.add_argument(
        "--key-split", choices=["first", "last"], help="dot between key and field (first)"
    )
    parser.add_argument("--no-index", action="store_true", help="write the spec only")
    _add_jobs(parser)


def _create(options: argparse.Namespace) -> int:
    from wids.specs.model import save_document
    from wids.transport import urls
    from wids.writing import build

    files = _named_files(options.files)
    _check_output(options.output, files, options.base)
    info = None
    if options.info is not None:
        with open(options.info, encoding="utf-8") as file:
            info = file.read()
    stem = os.path.splitext(os.path.abspath(options.output))[0]
    with _executor(options.jobs, len(files)) as executor:
        spec = build.build_spec(
            [{"url": name} for name in files],
            name=_short_name(files[0]) if options.name is None else options.name,
            key_split=options.key_split,
            pack=None if options.no_index else stem + ".index",
            executor=executor,
            journal=stem + ".partial",
        )
    document = spec.document(os.path.dirname(stem))
    if info is not None:
        document["info"] = info
    if options.base is not None:
        for shard in document["shardlist"]:
            shard["url"] = _last_part(shard["url"])
        document["base"] = options.base
        if "index" in document and urls.is_local(options.base):
            document["index"] = stem + ".index"  # published elsewhere, it lies beside the shards
    save_document(options.output, document)
    with suppress(FileNotFoundError):
        os.unlink(stem + ".partial")
    total = sum(shard.num_samples or 0 for shard in spec.shards)
    print(f"{options.output}: {len(spec.shards):,} shards, {total:,} samples")
    return 0


def _named_files(files: list[str]) -> list[str]:
    """Give the shards that the arguments name, in the order of their names, as always."""
    if files == ["-"]:
        files = [line.strip() for line in sys.stdin if line.strip()]
    from wids.transport import urls

    found: list[str] = []
    for name in files:
        if urls.is_local(name) and os.path.isdir(urls.local_path(name)):
            folder = urls.local_path(name)
            tars = [entry for entry in os.listdir(folder) if entry.endswith(".tar")]
            found += [os.path.abspath(os.path.join(folder, entry)) for entry in tars]
        else:
            found += urls.expand(name)
    found = [os.path.abspath(name) if urls.scheme(name) == "" else name for name in found]
    if not found:
        where = " ".join(files) or "standard input"
        raise FileNotFoundError(f"{where}: expected shards, found none")
    return sorted(dict.fromkeys(found))


def _check_output(output: str, files: list[str], base: str | None) -> None:
    if not output.endswith(".json"):
        raise ValueError(f"--output: expected a name that ends in .json, found {output!r}")
    names = [_last_part(name) for name in files]
    twice = sorted({name for name in names if names.count(name) > 1}) if base is not None else []
    if twice:
        raise ValueError(
            f"--base: expected shards of different names to find in one folder, found {twice[0]} "
            "more than once"
        )


def _last_part(url: str) -> str:
    """Give the name of a file, with the query of a URL: what stands behind its folder."""
    path, mark, query = url.partition("?")
    return path.rpartition("/")[2] + mark + query


def _short_name(path: str) -> str:
    """Give a name for a dataset by that of its first shard: ``train-000000.tar`` → ``train``."""
    import re

    from wids.transport import urls

    stem = os.path.splitext(os.path.basename(urls.path_of(path)))[0]
    words = [word for word in re.split(r"[^A-Za-z0-9_]+", stem) if not word.isdecimal()]
    return "-".join(dict.fromkeys(words)) or stem


# info


def _add_info(commands: Any) -> None:
    parser = _command(
        commands,
        "info",
        _info,
        "show what a spec says",
        "  wids info train.json\n  wids info --json train.json | jq .num_samples\n"
        "  wids info --table *.json",
    )
    parser.add_argument("specs", nargs="+", help="JSON specs or their URLs")
    parser.add_argument("-t", "--table", action="store_true", help="a line for each spec")
    parser.add_argument("--json", action="store_true", help="for a script: a JSON object a line")
    _add_remote(parser)


def _info(options: argparse.Namespace) -> int:
    from wids.looking.text import shortened, spec_rows, spec_text, table

    specs = [(path, _load(path, options)) for path in options.specs]
    found = [(path, spec_rows(spec)) for path, spec in specs]
    if options.json:
        for path, rows in found:
            print(json.dumps({"file": path, **rows}))
    elif options.table:
        columns = ["name", "num_samples", "num_shards", "nbytes", "first", "last"]
        rows_of = ([path, *(rows[column] for column in columns)] for path, rows in found)
        text = table(["file", *columns], rows_of)
        print("\n".join(shortened(line, _width()) for line in text.splitlines()))
    else:
        texts = []
        for (path, rows), (_, spec) in zip(found, specs, strict=True):
            heading = f"{path}\n" if len(found) > 1 else ""
            texts.append(heading + spec_text(rows, _width()) + _fields_text(spec))
        print("\n\n".join(texts))
    return 0


def _width() -> int:
    """Give the columns of the window; what is read by another program is not cut."""
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 10_000


def _fields_text(spec: DatasetSpec) -> str:
    """Give the fields of a dataset as a table, where an index of it is on this machine."""
    from wids.files.sizes import nbytes_text
    from wids.looking.text import table
    from wids.transport import urls

    if spec.index is None or not urls.is_local(spec.index):
        return ""
    from wids.dataset import ShardListDataset
    from wids.looking import preview

    try:
        with ShardListDataset(spec, access="range") as dataset:
            stats = preview.field_stats(dataset)
    except WidsError:
        return ""
    rows = [(s.field, f"{s.share:.0%}", nbytes_text(s.median_nbytes)) for s in stats]
    return "\n\n" + table(["field", "samples", "typical size"], rows) if rows else ""


def _load(path: str, options: argparse.Namespace) -> DatasetSpec:
    from wids.specs.loader import load_spec

    return load_spec(path, allow_pipe=options.allow_pipe)


# sample


def _add_sample(commands: Any) -> None:
    parser = _command(
        commands,
        "sample",
        _sample,
        "show a sample",
        "  wids sample train.json 17\n  wids sample train.json --key n01440764_10026\n"
        "  wids sample train.json 17 --cat .jpg > 17.jpg",
    )
    _add_spec(parser)
    parser.add_argument("index", nargs="?", type=int, help="its number; negative from the end")
    parser.add_argument("-k", "--key", help="its key, in place of the number")
    parser.add_argument("-c", "--cat", metavar="FIELD", help="write the bytes of this field")
    parser.add_argument("-r", "--raw", action="store_true", help="show bytes, not what they mean")
    parser.add_argument("-p", "--python", action="store_true", help="show a Python dict of bytes")
    parser.add_argument("-w", "--width", type=_positive, help="columns (default: the window's)")
    _add_remote(parser)


def _sample(options: argparse.Namespace) -> int:
    from wids.dataset import ShardListDataset
    from wids.looking.text import printable, sample_text, shortened

    if options.index is not None and options.key is not None:
        raise ValueError("expected an index or --key, found both")
    field = options.cat if options.cat is None or options.cat[:1] == "." else "." + options.cat
    with ShardListDataset(
        options.spec,
        transformations=None,
        raw="bytes",
        fields=None if field is None else [field],
        allow_pipe=options.allow_pipe,
    ) as dataset:
        if options.key is None:
            sample = dataset[options.index or 0]
        else:
            sample = dataset.get_by_key(options.key)
    if field is not None:
        if field not in sample:
            raise KeyError(f'{options.spec}: sample "{sample["__key__"]}": it has no field {field}')
        sys.stdout.buffer.write(sample[field])
        return 0
    width = options.width or _width()
    if options.python:
        print(repr(sample))
    elif options.raw:
        for name, value in sample.items():
            print(shortened(f"{printable(name)} {value!r}", width))
    else:
        print(sample_text(sample, width))
    return 0


# verify


def _add_verify(commands: Any) -> None:
    parser = _command(
        commands,
        "verify",
        _verify,
        "compare shards with what their spec says; a line for each problem",
        "  wids verify train.json\n  wids verify --decode train.json || echo do not train on this",
    )
    _add_spec(parser)
    parser.add_argument("--decode", action="store_true", help="decode every field too")
    _add_jobs(parser)
    _add_remote(parser)


def _verify(options: argparse.Namespace) -> int:
    from wids.looking.text import printable
    from wids.writing import verify

    spec = _load(options.spec, options)
    with _executor(options.jobs, len(spec.shards)) as executor:
        problems = verify.verify_spec(spec, decode=options.decode, executor=executor)
    for problem in problems:
        print(printable(str(problem)))
    if not problems:
        counts = [shard.num_samples for shard in spec.shards if shard.num_samples is not None]
        samples = f", {sum(counts):,} samples" if len(counts) == len(spec.shards) else ""
        print(f"{options.spec}: {len(spec.shards):,} shards{samples}: no problems", file=sys.stderr)
    return 1 if problems else 0


# update


def _add_update(commands: Any) -> None:
    parser = _command(
        commands,
        "update",
        _update,
        "change what a spec says of its dataset; the file as it was stays beside it as .bak",
        "  wids update train.json --name train-2026 --base https://example.com/train/\n"
        "  wids update train.json --rebase",
    )
    parser.add_argument("filename", help="a JSON spec on this machine")
    parser.add_argument("-n", "--name", default="", help="set the name of the dataset")
    parser.add_argument("-i", "--info", default="", help="set its description")
    parser.add_argument("-b", "--base", default="", help="set the folder or URL of its shards")
    parser.add_argument(
        "-B",
        "--rebase",
        action="store_true",
        help="make the folder that all shards are in the base",
    )
    parser.add_argument("-d", "--dir", default="", help="put the shards into this folder or URL")
    parser.add_argument("-D", "--nodir", action="store_true", help="leave names of shards only")
    parser.add_argument("-k", "--keep", action="store_true", help="set the keep flag")
    parser.add_argument("-K", "--nokeep", action="store_true", help="clear the keep flag")


def _update(options: argparse.Namespace) -> int:
    from wids.specs.loader import load_spec
    from wids.specs.model import save_document
    from wids.transport import urls

    load_spec(options.filename, allow_pipe=True)  # or it says what is wrong with it
    with open(options.filename, encoding="utf-8") as file:
        document = json.load(file)
    if not isinstance(document.get("shardlist"), list):
        raise SpecError(f"{options.filename}: expected a shardlist of its own to change")
    for name in ("name", "info", "base"):
        if getattr(options, name):
            document[name] = getattr(options, name)
    if options.keep or options.nokeep:
        document["keep"] = options.keep
    entries = [{"url": e} if isinstance(e, str) else e for e in document["shardlist"]]
    if options.rebase:
        folders = {entry["url"].partition("?")[0].rpartition("/")[0] for entry in entries}
        if len(folders) != 1:
            raise ValueError(
                f"{options.filename}: expected all shards in one folder to rebase to, found "
                f"{len(folders)}: {', '.join(sorted(map(urls.redact, folders))[:3])}"
            )
        folder = folders.pop() + "/"
        before_it = document.get("base") or document.get("base_path") or ""
        is_whole = folder == "/" or urls.scheme(folder) or folder.startswith("/")
        if folder != "/":
            document["base"] = folder if is_whole else os.path.join(before_it, folder)
    if options.rebase or options.nodir or options.dir:
        names = [_last_part(entry["url"]) for entry in entries]
        if len(set(names)) < len(names):
            raise ValueError(
                f"{options.filename}: expected shards of different names, found some twice"
            )
        for entry, name in zip(entries, names, strict=True):
            entry["url"] = os.path.join(options.dir, name) if options.dir else name
        document["shardlist"] = sorted(entries, key=lambda entry: str(entry["url"]))
    document.setdefault("name", os.path.splitext(os.path.basename(options.filename))[0])
    load_spec(document, allow_pipe=True)  # or it says what is wrong with the change
    path = os.path.realpath(options.filename)
    shutil.copy2(path, path + ".bak")
    save_document(path, document, os.stat(path).st_mode & 0o777)
    return 0


# browse


def _add_browse(commands: Any) -> None:
    parser = _command(
        commands,
        "browse",
        _browse,
        "look at a dataset in a browser; the page is for this machine, and ends with Ctrl-C",
        "  wids browse train.json\n"
        "  wids browse https://example.com/train.json   # fetches what is shown, and no shard",
    )
    _add_spec(parser)
    parser.add_argument("-p", "--port", type=int, default=0, help="(default: one that is free)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    _add_remote(parser)


def _browse(options: argparse.Namespace) -> int:
    from wids.dataset import ShardListDataset
    from wids.looking.browse import Browser

    with ShardListDataset(options.spec, access="range", allow_pipe=options.allow_pipe) as dataset:
        browser = Browser(dataset, options.port)
        print(browser.url, flush=True)
        print("Whoever has this address can look; Ctrl-C ends it.", file=sys.stderr)
        leads_there = _page_that_leads_to(browser.url) if options.open else ""
        if leads_there:
            import webbrowser

            webbrowser.open(f"file://{leads_there}")
        try:
            browser.serve()
        except KeyboardInterrupt:
            print(file=sys.stderr)  # below the ^C
        finally:
            browser.close()
            if leads_there:
                os.unlink(leads_there)
    return 0


def _page_that_leads_to(url: str) -> str:
    """Write a page for this user alone: an address on a command line can be seen by others."""
    import tempfile

    with tempfile.NamedTemporaryFile("w", prefix="wids-", suffix=".html", delete=False) as file:
        file.write(f'<meta http-equiv="refresh" content="0;url={url}">')
        return file.name


# prefetch and cache


def _add_prefetch(commands: Any) -> None:
    parser = _command(
        commands,
        "prefetch",
        _prefetch,
        "fetch the shards of a dataset into the cache",
        "  wids prefetch https://example.com/train.json --limit 200GB\n"
        "  wids prefetch train.json --rank 3 --num-replicas 8   # the share of one rank",
    )
    _add_spec(parser)
    parser.add_argument("--cache-dir", help="the cache folder (default: $WIDS_CACHE)")
    parser.add_argument("--limit", metavar="SIZE", help="most bytes of shards, such as 200GB")
    parser.add_argument("--rank", type=int, help="the fixed share of this rank only")
    parser.add_argument("--num-replicas", type=_positive, help="… of so many")
    parser.add_argument("-j", "--jobs", type=_positive, default=4, help="downloads at a time (4)")
    _add_remote(parser)


def _prefetch(options: argparse.Namespace) -> int:
    from concurrent.futures import ThreadPoolExecutor, wait

    from wids.cache.store import BackgroundFetch
    from wids.dataset import ShardListDataset
    from wids.files.progress import Bar
    from wids.files.sizes import parse_nbytes

    if (options.rank is None) != (options.num_replicas is None):
        raise ValueError("expected --rank and --num-replicas together")
    limit = parse_nbytes(options.limit, "--limit")
    spec = _load(options.spec, options)
    if any(shard.num_samples is None for shard in spec.shards):
        raise ValueError(
            f"{options.spec}: expected the number of samples of each shard, or all of them would "
            "be fetched to count; `wids create` states it"
        )
    fetches: dict[int, BackgroundFetch] = {}
    with ShardListDataset(spec, cache_dir=options.cache_dir, progress=False) as dataset:
        numbers: list[int] = list(range(len(dataset.lengths)))
        if options.rank is not None:
            from wids.sampling import order
            from wids.sampling.distributed import DistributedChunkedSampler

            sampler = DistributedChunkedSampler(
                dataset, num_replicas=options.num_replicas, rank=options.rank
            )
            runs = order.visits(sampler.settings, sampler.seed, 0)
            numbers = sorted(set(next(islice(runs, options.rank, None)).tolist()))
        wanted, left = _within(dataset, numbers, limit)
        fetches = {number: BackgroundFetch() for number in wanted}

        def fetch(number: int) -> None:
            if not fetches[number].cancelled.is_set():
                dataset.fetch_shard(number, fetches[number])

        threads = ThreadPoolExecutor(options.jobs)
        tasks = [threads.submit(fetch, number) for number in wanted]
        with Bar("fetching", len(wanted), "shard") as bar:
            try:
                for number, task in enumerate(tasks, start=1):
                    task.result()
                    bar.reach(number)
            except BaseException:
                for background in fetches.values():
                    background.cancelled.set()
                threads.shutdown(wait=False, cancel_futures=True)
                wait(tasks, timeout=_PATIENCE_S)
                raise
    print(f"{len(numbers) - left:,} shards are here, {len(wanted):,} of them fetched now")
    if left:
        print(f"wids: {left:,} shards do not fit into {options.limit}", file=sys.stderr)
    return 1 if left else 0


def _within(dataset: Any, numbers: list[int], limit: int | None) -> tuple[list[int], int]:
    """Give the shards that are not here and fit, and how many do not."""
    total, wanted, left = 0, [], 0
    for number in numbers:
        nbytes = dataset.shard_nbytes(number)
        if limit is not None and nbytes is None:
            raise ValueError(
                f"--limit: expected a spec that states the length of each shard, found none for "
                f"number {number}; `wids create` states it"
            )
        total += nbytes or 0
        if limit is not None and total > limit:
            left += 1
        elif not dataset.is_here(number):
            wanted.append(number)
    return wanted, left


def _add_cache(commands: Any) -> None:
    parser = _command(
        commands,
        "cache",
        _cache,
        "show, clear or check the copies of remote shards",
        "  wids cache show\n  wids cache clear\n  wids cache check train.json",
    )
    parser.add_argument("action", choices=["show", "clear", "check"])
    parser.add_argument("spec", nargs="?", help="the spec whose copies to check")
    parser.add_argument("--cache-dir", help="the cache folder (default: $WIDS_CACHE)")
    _add_remote(parser)


def _cache(options: argparse.Namespace) -> int:
    from wids.cache import eviction, names
    from wids.files.sizes import nbytes_text
    from wids.looking.text import printable

    folder = os.path.abspath(options.cache_dir or names.default_folder())
    if options.action == "check":
        return _check_cache(options, folder)
    if options.action == "clear":
        num_files, nbytes, num_used = eviction.clear(folder)
        print(f"{folder}: deleted {num_files:,} files, {nbytes_text(nbytes)}")
        if num_used:
            print(f"wids: {num_used:,} files are in use and stay", file=sys.stderr)
        return 0
    files = eviction.contents(folder)
    for file in sorted(files, key=lambda file: file.used_ns):
        print(f"{nbytes_text(file.nbytes):>8}  {printable(file.name)}")
    total = sum(file.nbytes for file in files)
    print(f"{nbytes_text(total):>8}  in {len(files):,} files in {folder}")
    return 0


def _check_cache(options: argparse.Namespace, folder: str) -> int:
    from wids.cache.store import Cache
    from wids.looking.text import printable
    from wids.reading.opener import remote_file
    from wids.transport import fetch
    from wids.writing import verify

    if options.spec is None:
        raise ValueError("wids cache check: expected a spec whose copies to check, found none")
    store = Cache(folder, fetch.Fetcher())
    spec = _load(options.spec, options)
    copies = {shard.url: store.find(remote_file(shard)) for shard in spec.shards}
    problems = verify.verify_spec(spec, locate=lambda about: copies[about.url])
    for problem in problems:
        print(printable(str(problem)))
    num_copies = sum(path is not None for path in copies.values())
    print(f"{num_copies:,} copies of {len(spec.shards):,} shards checked", file=sys.stderr)
    return 1 if problems else 0


# demo


def _add_demo(commands: Any) -> None:
    parser = _command(
        commands,
        "demo",
        _demo,
        "make a small dataset and run one exact epoch over it in two processes",
        "  wids demo",
    )
    parser.description = textwrap.fill(
        "Make a small dataset of pictures, captions and labels, show one sample, and run one exact "
        "epoch over it in two processes. Ends with status 1 if the epoch was not exact."
    )
    parser.add_argument(
        "folder", nargs="?", default="wids-demo", help="where to write (%(default)s)"
    )
    parser.add_argument(
        "--sampler",
        metavar="MODULE:NAME",
        help="try this sampler instead: a callable that takes the dataset",
    )


def _demo(options: argparse.Namespace) -> int:
    from subprocess import TimeoutExpired

    from wids import demo

    spec_path = demo.write_dataset(options.folder)
    print(f"wrote {demo.NUM_SHARDS} shards and {spec_path}\n")
    print(demo.describe_sample(spec_path, 123), end="\n\n")
    print("one epoch, two processes, a DataLoader with two workers in each …", flush=True)
    try:
        report = demo.run_epoch(spec_path, options.sampler or demo.DEFAULT_SAMPLER)
    except (RuntimeError, TimeoutExpired) as error:
        print(f"wids: {error}", file=sys.stderr)
        return 1
    print(report.table())
    if not (report.is_complete and report.is_even):
        print("\nThis epoch was not exact: look at the sampler.")
        return 1
    print(
        "\nNext, in Python:\n"
        "    import wids\n"
        f"    dataset = wids.ShardListDataset({spec_path!r})\n"
        "    dataset[123]"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
