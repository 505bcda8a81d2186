"""``wids order``: print which samples are in a step of training, from the state of its sampler."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
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

Row: TypeAlias = "tuple[int, int, int, int]"
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
    start, _, stop = text.partition(":")
    if not (start.isdecimal() and stop.isdecimal()) or not (found := range(int(start), int(stop))):
        raise argparse.ArgumentTypeError(f"expected A:B with A less than B, found {text}")
    return found


def run(options: argparse.Namespace) -> int:
    """Print a line for each sample, or one JSON object."""
    from wids.look.text import table

    with ExitStack() as stack:
        dataset, epoch = asked(options, stack)
        if options.key is not None:
            found = epoch.steps_of(dataset.find_key(options.key))
        else:
            step = epoch.next_step if options.step is None else options.step
            found = epoch.samples(options.steps or range(step, step + 1))
        rows = (_row(dataset, *each) for each in found)
        if options.json:
            print(json.dumps({"epoch": epoch.number, "samples": list(rows)}))
            return 0
        print(table(_COLUMNS, ([row[name] for name in _COLUMNS] for row in rows)))
        print(epoch, file=sys.stderr)
    return 0


def _row(dataset: Any, step: int, rank: int, place: int, index: int) -> dict[str, Any]:
    """Return a sample as it is printed; one of another library has no key and no shard."""
    key = shard = None
    if hasattr(dataset, "locate"):
        key = printable(dataset.keys()[index])
        shard = urls.redact(dataset.spec.shards[dataset.locate(index)[0]].url)
    return dict(zip(_COLUMNS, (step, rank, place, index, key, shard), strict=True))


class _Stretch(NamedTuple):
    """Steps that the same ranks read.

    Attributes:
        sampler: The sampler of any of the ranks.
        place: The beginning of a part of an epoch.
        orders: What each rank reads in this part.
        items: Those of the stretch, of each rank; uneven ranks may lack the last one.
        size: Number of items in a step.
        first: Number of the first step.
    """

    sampler: Any
    place: Any
    orders: Sequence[Sequence[Any]]
    items: range
    size: int
    first: int

    @property
    def steps(self) -> range:
        return range(self.first, self.first - (-len(self.items) // self.size))

    def samples(self, steps: range) -> Iterator[Row]:
        for step in steps:
            places = self.items[(step - self.first) * self.size :][: self.size]
            for rank, order in enumerate(self.orders):
                items = order[places.start : places.stop]
                for place, item in zip(places, items, strict=False):
                    for index in item if isinstance(item, list) else [item]:
                        yield step, rank, place, index

    def steps_of(self, index: int) -> Iterator[Row]:
        for rank, place in self.sampler._steps_at(index, self.place):
            if place in self.items:
                yield self.first + (place - self.items.start) // self.size, rank, place, index


class ReadEpoch:
    """The steps of an epoch, as all ranks read them, those of earlier resumptions too (ORDER-80).

    Args:
        job: The sampler of any rank, restored.
        sizes: Number of items in a step: one for all parts of the epoch, or one for each.
        epoch: The epoch; None for that of the state.

    Attributes:
        number: The epoch.
        next_step: The step at which the state resumes.
        num_steps: Number of all steps.
    """

    def __init__(self, job: Any, sizes: list[int], epoch: int | None = None) -> None:
        self.number: int = job.epoch if epoch is None else epoch
        place = job._place_of(self.number)
        num_parts = len(place.history) + 1
        if len(sizes) not in (1, num_parts):
            raise ValueError(
                f"--batch-size: expected one number, or one for each of the {num_parts} parts of "
                f"epoch {self.number}, found {len(sizes)}"
            )
        self.num_steps, self._stretches = 0, list[_Stretch]()
        for at, part in enumerate(place.history):
            of_part = job._of_rank(0, part.num_replicas, part.num_runs)
            self._add(of_part, place.history[:at], 0, part.steps, sizes[at % len(sizes)])
        # A step begins at the state, also where the batch size has changed.
        before = place.position if place.position % sizes[-1] else 0
        self._add(job, place.history, 0, before, sizes[-1])
        self.next_step = self.num_steps + (place.position - before) // sizes[-1]
        self._add(job, place.history, before, None, sizes[-1])

    def _add(self, sampler: Any, history: Any, start: int, stop: int | None, size: int) -> None:
        from wids.order.elastic import EpochPlace

        place, (_, count) = EpochPlace(self.number, 0, history), sampler._replica()
        sampler._sequence(place)  # so that all ranks share what it looks up
        ranks = (sampler._of_rank(rank, count, sampler._num_runs) for rank in range(count))
        orders = [each._sequence(place) for each in ranks]
        items = range(start, max(map(len, orders)) if stop is None else stop)
        if items:
            self._stretches.append(_Stretch(sampler, place, orders, items, size, self.num_steps))
            self.num_steps = self._stretches[-1].steps.stop

    def __str__(self) -> str:
        parts = (
            f"steps {each.steps[0]:,} to {each.steps[-1]:,} on {len(each.orders)} ranks"
            for each in self._stretches
        )
        steps = ", ".join(parts) or "no steps"
        return f"epoch {self.number}: {steps}; step {self.next_step:,} is next"

    def samples(self, steps: range) -> Iterator[Row]:
        """Yield step, rank, place and index of each sample in some steps.

        Raises:
            ValueError: The epoch has no such step.
        """
        if steps.stop > self.num_steps:
            later, step = divmod(steps[-1], max(self.num_steps, 1))
            raise ValueError(
                f"--step: expected one of the {self.num_steps:,} steps of epoch {self.number}, "
                f"found {steps[-1]:,}; steps count from 0 in each epoch, so that in a run of such "
                f"epochs it is --epoch {later} --step {step}"
            )
        return chain.from_iterable(
            each.samples(range(max(steps.start, each.first), min(steps.stop, each.steps.stop)))
            for each in self._stretches
        )

    def steps_of(self, index: int) -> Iterator[Row]:
        """Yield the same of one sample, wherever it comes."""
        return chain.from_iterable(sorted(each.steps_of(index)) for each in self._stretches)


def asked(options: argparse.Namespace, stack: ExitStack) -> tuple[Any, ReadEpoch]:
    """Return the dataset of the arguments, and the epoch of the state, whose steps can be asked."""
    from wids.dataset.benchmark import made
    from wids.dataset.prefetch import with_method
    from wids.order.arguments import at_least
    from wids.order.elastic import State

    state, sampler = state_in(options.state), None
    if is_name(options.spec):
        dataset = made(named_object(options.spec, "spec", "sampler"))
        places = (getattr(dataset, name, None) for name in ("batch_sampler", "dataset"))
        found = (with_method(each, "steps_of") for each in (dataset, *places))
        sampler = next((each for each in found if each is not None), None)
    else:
        dataset = opened(options.spec, options, access="range")
    try:
        settings = State.from_json(state).fingerprint
        sampler = _sampler_of(dataset, settings) if sampler is None else sampler
        numbers = {"num_replicas": state["num_replicas"], **settings}
        names = ("num_replicas", "num_canonical")
        job = sampler._of_rank(0, *(at_least(1, numbers.get(name), name) for name in names))
        job.load_state_dict(state)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{options.state}: expected the state of what {urls.redact(options.spec)} stands for: "
            f"{error}; pass what training has read: its spec, MODULE:DATASET for a view, or "
            "MODULE:SAMPLER for batches and mixes"
        ) from None
    if job.yields_indices == (options.batch_size is None):
        wanted = "what a rank reads in a step" if job.yields_indices else "none for a step"
        raise ValueError(
            f"--batch-size: expected {wanted} of a {type(job).__name__}, found "
            f"{','.join(map(str, options.batch_size or [])) or 'none'}"
        )
    epoch = ReadEpoch(job, options.batch_size or [1], options.epoch)
    while hasattr(sampler, "sampler"):
        sampler = sampler.sampler
    stack.callback(getattr(sampler.dataset, "close", int))
    return sampler.dataset, epoch


def _sampler_of(dataset: Any, settings: Mapping[str, Any]) -> Any:
    """Return a sampler of a dataset with the settings in a state."""
    from wids.order.samplers import DistributedChunkedSampler

    sampler = DistributedChunkedSampler(
        dataset,
        num_samples=tuple(settings["range"]),
        drop_last=settings["ending"] == "drop",
        even=settings["ending"] != "uneven",
        **{name: settings[name] for name in ("seed", "shuffle", "shufflefirst", "redeal")},
    )
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
        if value.keys() >= _MARKS:
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
        # What torch says first is how to load the file without this check.
        _, _, reason = message_of(error).rpartition("WeightsUnpickler error:")
        found = reason.strip().partition("\n")[0].partition(". ")[0]
        raise StateError(
            f"{path}: expected JSON, or a file of torch.save without classes of a program, found "
            f"{found:.200}; save the state alone: "
            "json.dump(sampler.state_dict(…), file)"
        ) from None
