"""``wids order``: print which samples are in a step of training, from the state of its sampler."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final
from zipfile import is_zipfile

from wids.cli.shared import (
    add_flag,
    add_reading,
    add_state,
    is_name,
    named_object,
    not_negative,
    opened,
)
from wids.errors import StateError, message_of, printable
from wids.storage.transport import urls

EXAMPLE: Final = (
    "  wids order train.json --state sampler.json --batch-size 32 --step 48210\n"
    "  wids order train.json --state last.ckpt --batch-size 32 --steps 48200:48220 --json\n"
    "  wids order train.json --state sampler.json --batch-size 32 --key n01440764_10026\n"
    "  wids order mytraining:make_loader --state loader.pt --step 210   # of mytraining.py: a\n"
    "                                         # loader, a sampler, a dataset, or what makes one"
)

_MARKS: Final = {"epoch", "position", "num_replicas", "fingerprint"}
"""Keys by which the state of a sampler is found in that of a loader, or in a checkpoint."""

_COLUMNS: Final = ("step", "rank", "place", "index", "key", "shard")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "spec", help="a JSON spec or its URL, a .tar, a pattern, a folder; or MODULE:SAMPLER"
    )
    add_state(parser, required=True)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--step", type=not_negative, help="number in the epoch, from 0 (that of the state)"
    )
    chosen.add_argument("--steps", metavar="A:B", type=_range, help="steps A to B - 1")
    chosen.add_argument("--key", help="every step of the sample with this key")
    add_flag(parser, "--json", "print one JSON object")
    add_reading(parser)


def _range(text: str) -> range:
    start, mark, stop = text.partition(":")
    found = range(not_negative(start), int(stop) if mark else 0)
    if not found:
        raise argparse.ArgumentTypeError(f"expected A:B with A less than B, found {text}")
    return found


def run(options: argparse.Namespace) -> int:
    """Print a line for each sample, or one JSON object."""
    with ExitStack() as stack:
        dataset, epoch = asked(options, stack)
        if options.key is not None:
            found = epoch.steps_of(_index_of(dataset, options.key))
        else:
            step = epoch.next_step if options.step is None else options.step
            found = epoch.samples(options.steps or range(step, step + 1))
        rows = (_row(dataset, *each) for each in found)
        if options.json:
            print(json.dumps({**epoch.facts, "samples": list(rows)}))
            return 0
        table = [_COLUMNS, *([str(row[name]) for name in _COLUMNS] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for line in table:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            print("  ".join(cells).rstrip())
        print(epoch, file=sys.stderr)
    return 0


def _index_of(dataset: Any, key: str) -> int:
    try:
        return int(dataset.find_key(key))
    except KeyError as error:
        raise KeyError(
            f"--key: expected the key of a sample, found {key!r}: {message_of(error)}; keys are as "
            "`wids sample` and `wids browse` show them"
        ) from None


def _row(dataset: Any, step: int, rank: int, place: int, index: int) -> dict[str, Any]:
    """Return a sample as it is printed; one of another library has no key and no shard."""
    key = shard = None
    if hasattr(dataset, "locate"):
        key = printable(dataset.keys()[index])
        shard = urls.redact(dataset.spec.shards[dataset.locate(index)[0]].url)
    return dict(zip(_COLUMNS, (step, rank, place, index, key, shard), strict=True))


@dataclass(frozen=True)
class _Stretch:
    """Steps that the same ranks read.

    Attributes:
        sampler: The sampler of any of the ranks.
        place: The beginning of a part of an epoch.
        items: Those of each rank in this part, of the stretch; of uneven ranks some may lack one.
        size: Number of items in a step.
        first: Number of the first step.
    """

    sampler: Any
    place: Any
    items: range
    size: int
    first: int

    @property
    def num_replicas(self) -> int:
        return int(self.sampler.replica()[1])

    @property
    def steps(self) -> range:
        return range(self.first, self.first - (-len(self.items) // self.size))

    def samples(self, steps: range) -> Iterator[tuple[int, int, int, int]]:
        """Yield step, rank, place and index of the samples in some of the steps."""
        orders = [self.of_rank(rank).sequence(self.place) for rank in range(self.num_replicas)]
        for step in steps:
            places = self.items[(step - self.first) * self.size :][: self.size]
            for rank, order in enumerate(orders):
                items = order[places.start : places.stop]
                for place, item in zip(places, items, strict=False):
                    for index in item if isinstance(item, list) else [item]:
                        yield step, rank, place, index

    def steps_of(self, index: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the same of one sample."""
        for rank, place in self.sampler.steps_at(index, self.place):
            if place in self.items:
                yield self.first + (place - self.items.start) // self.size, rank, place, index

    def of_rank(self, rank: int) -> Any:
        """Return the sampler of a rank."""
        return self.sampler.of_rank(rank, self.num_replicas, self.sampler.num_runs)


class ReadEpoch:
    """The steps of an epoch, as all ranks read them, those of earlier resumptions too.

    Args:
        name: The file of the state, for messages.
        sampler: The sampler, for any rank.
        state: Its state.
        sizes: Number of items in a step: one for all parts of the epoch, or one for each.
        epoch: The epoch; None for that of the state.
    """

    def __init__(
        self, name: str, sampler: Any, state: Mapping[str, Any], sizes: list[int], epoch: int | None
    ) -> None:
        from wids.order.elastic import Place

        self._name = name
        try:
            num_runs = state["fingerprint"].get("num_canonical")
            job = _of_ranks(sampler, state["num_replicas"], num_runs)
            job.load_state_dict(state)
        except ValueError as error:
            raise StateError(f"{name}: {error}") from None
        place = job.place_of(job.epoch) if epoch in (None, job.epoch) else Place(epoch)
        self.epoch: int = place.epoch
        _, num_replicas = job.replica()
        if len(sizes) not in (1, len(place.history) + 1):
            raise ValueError(
                f"--batch-size: expected one number, or one for each of the "
                f"{len(place.history) + 1} parts of epoch {self.epoch} in {name}, found "
                f"{len(sizes)}"
            )
        self._stretches: list[_Stretch] = []
        for at, part in enumerate(place.history):
            of_part = _of_ranks(sampler, part.num_replicas, part.num_runs)
            begun = Place(place.epoch, 0, place.history[:at])
            self._add(of_part, begun, range(part.steps), sizes[at % len(sizes)])
        begun, size = Place(place.epoch, 0, place.history), sizes[-1]
        # A step begins at the state, also where the batch size has changed.
        before = place.position if place.position % size else 0
        self._add(job, begun, range(before), size)
        self.next_step = self._num_steps + (place.position - before) // size
        ranks = (job.of_rank(rank, num_replicas, job.num_runs) for rank in range(num_replicas))
        last = max(len(each.sequence(begun)) for each in ranks)
        self._add(job, begun, range(before, last), size)

    def _add(self, sampler: Any, place: Any, items: range, size: int) -> None:
        if items:
            self._stretches.append(_Stretch(sampler, place, items, size, self._num_steps))

    @property
    def _num_steps(self) -> int:
        return self._stretches[-1].steps.stop if self._stretches else 0

    @property
    def facts(self) -> dict[str, Any]:
        """The epoch, and which of its steps were read, or will be, on which number of ranks."""
        parts = [
            {"num_replicas": each.num_replicas, "steps": [each.steps.start, each.steps.stop]}
            for each in self._stretches
        ]
        return {"epoch": self.epoch, "parts": parts}

    def __str__(self) -> str:
        parts = (
            f"steps {each.steps.start:,} to {each.steps[-1]:,} on {each.num_replicas} ranks"
            for each in self._stretches
        )
        steps = ", ".join(parts) or "no steps"
        return f"epoch {self.epoch}: {steps}; step {self.next_step:,} is next"

    def samples(self, steps: range) -> Iterator[tuple[int, int, int, int]]:
        """Yield step, rank, place and index of each sample in some steps.

        Raises:
            ValueError: The epoch has no such step.
        """
        total = self._num_steps
        if steps.stop > total:
            later, step = divmod(steps[-1], total) if total else (0, 0)
            raise ValueError(
                f"{self._name}: expected one of the {total:,} steps of epoch {self.epoch}, found "
                f"{steps[-1]:,}; steps count from 0 in each epoch, so that in a run of such epochs "
                f"it is --epoch {later} --step {step}"
            )
        return chain.from_iterable(
            each.samples(range(max(steps.start, each.first), min(steps.stop, each.steps.stop)))
            for each in self._stretches
        )

    def steps_of(self, index: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the same of one sample, wherever it comes."""
        for each in self._stretches:
            yield from sorted(each.steps_of(index))


def _of_ranks(sampler: Any, num_replicas: int, num_runs: int) -> Any:
    """Return a sampler as the first of so many ranks has it."""
    from wids.order.arguments import at_least

    at_least(1, num_runs, "num_canonical")
    found = sampler.of_rank(0, at_least(1, num_replicas, "num_replicas"), num_runs)
    if found.replica() != (0, num_replicas):
        raise ValueError(
            f"expected the sampler of a job, since {num_replicas} ranks have read the epoch, found "
            f"{type(sampler).__name__}, which is for one process; make a "
            "DistributedChunkedSampler with the same arguments"
        )
    return found


def asked(options: argparse.Namespace, stack: ExitStack) -> tuple[Any, ReadEpoch]:
    """Return the dataset of the arguments, and the epoch of the state, whose steps can be asked."""
    from wids.dataset.benchmark import made
    from wids.dataset.prefetch import with_method

    state, sampler = state_in(options.state), None
    if is_name(options.spec):
        dataset = made(named_object(options.spec, "spec", "sampler"))
        places = (getattr(dataset, name, None) for name in ("batch_sampler", "dataset"))
        found = (with_method(each, "steps_at") for each in (dataset, *places))
        sampler = next((each for each in found if each is not None), None)
    else:
        dataset = opened(options.spec, options, access="range")
    if sampler is None:
        sampler = _sampler_of(dataset, state, options)
    if sampler.yields_indices and options.batch_size is None:
        raise ValueError("--batch-size: expected the samples of a rank in a step, found none")
    if not sampler.yields_indices and options.batch_size is not None:
        raise ValueError(
            f"--batch-size: expected none, since a step is a batch of the {type(sampler).__name__}"
        )
    sizes = options.batch_size or [1]
    epoch = ReadEpoch(options.state, sampler, state, sizes, options.epoch)
    while hasattr(sampler, "sampler"):
        sampler = sampler.sampler
    stack.callback(getattr(sampler.dataset, "close", int))
    return sampler.dataset, epoch


def _sampler_of(dataset: Any, state: Mapping[str, Any], options: argparse.Namespace) -> Any:
    """Return a sampler of a dataset with the settings in a state."""
    from wids.order.samplers import DistributedChunkedSampler

    settings, whole = state["fingerprint"], DistributedChunkedSampler(dataset)
    own = whole.fingerprint()
    if odd := own.keys() ^ (settings.keys() - {"history"}):
        raise StateError(
            f"{options.state}: expected a sampler of samples, found settings of another one "
            f"({', '.join(sorted(odd))}); pass MODULE:SAMPLER, or MODULE:LOADER, in place of "
            f"{urls.redact(options.spec)}"
        )
    wanted, found = (
        f"{each['num_shards']} shards with lengths {each['lengths']}" for each in (settings, own)
    )
    if wanted != found:
        raise StateError(
            f"{urls.redact(options.spec)}: expected the dataset of {options.state}, {wanted}, "
            f"found {found}; pass the spec that training has read, or for a view MODULE:DATASET"
        )
    names = ("seed", "shuffle", "shufflefirst", "redeal")
    try:
        sampler = DistributedChunkedSampler(
            dataset,
            num_samples=tuple(settings["range"]),
            drop_last=settings["ending"] == "drop",
            even=settings["ending"] != "uneven",
            **{name: settings[name] for name in names},
        )
    except (TypeError, ValueError) as error:
        raise StateError(f"{options.state}: the state is damaged: {error}") from None
    sampler.chunksize = settings["chunksize"]  # None, if each shard is a chunk
    return sampler


def state_in(path: str) -> Mapping[str, Any]:
    """Return the state of a sampler that is in a file, at any depth.

    Raises:
        StateError: There is none, or there are several that differ.
    """
    found = dict(_states(_loaded(path), ""))
    orders = {json.dumps([s[k] for k in sorted(_MARKS - {"position"})]) for s in found.values()}
    if len(orders) != 1:
        raise StateError(
            f"{path}: expected the state of one sampler, with {', '.join(sorted(_MARKS))}, found "
            f"{', '.join(found) or 'none'}; save it alone: json.dump(sampler.state_dict(…), file)"
        )
    return next(iter(found.values()))


def _states(value: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the states in a value, with their places."""
    if isinstance(value, Mapping):
        if value.keys() >= _MARKS and isinstance(value["fingerprint"], Mapping):
            yield place or "one", value
            return
        for name, item in value.items():
            yield from _states(item, f"{place}[{name!r}]")
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for number, item in enumerate(value):
            yield from _states(item, f"{place}[{number}]")


def _loaded(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError:  # of torch
        import torch
    try:
        # Mapped, since a checkpoint has the weights of a model beside.
        is_zip = is_zipfile(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # noqa: BLE001 - whatever torch raises, the file is none of these
        raise StateError(
            f"{path}: expected JSON, or a file of torch.save without classes of a program, found "
            f"{message_of(error).splitlines()[0]:.200}; save the state alone: "
            "json.dump(sampler.state_dict(…), file)"
        ) from None
