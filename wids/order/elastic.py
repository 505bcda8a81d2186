"""Resume from a state: check it, and divide the rest of its epoch among any number of ranks.

An epoch is read in *parts*: a new one begins when a job resumes on another number of ranks. What a
part has left, in order, is cut into the runs of the next part. So what is left after any parts is a
few ranges of positions in the order with which the epoch began, whatever its length, and no index
is listed. The rest is cut into runs that end like any others.

In specs/sampler-order.md, ORDER-50 to ORDER-52 specify this, and ORDER-9 to ORDER-11 states.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wids.errors import StateError
from wids.order.arguments import at_least
from wids.order.epoch_order import (
    ChunkPiece,
    OrderSettings,
    SlicedRuns,
    WholeEpoch,
    run_edges,
)
from wids.storage.arrays import IntArray

_PIECE: Final = 1 << 20
"""Numbers of which a digest is computed at a time."""


@dataclass(frozen=True)
class EpochPart:
    """What a job has read of an epoch on one number of ranks.

    Attributes:
        num_replicas: Number of ranks.
        num_runs: Number of runs that the part was cut into, a multiple of the ranks.
        steps: Number of items that each rank has read.
    """

    num_replicas: int
    num_runs: int
    steps: int

    @classmethod
    def from_json(cls, entry: Any) -> EpochPart:
        """Return a part from its entry in a state.

        Raises:
            ValueError: It is not such an entry.
        """
        if not isinstance(entry, list | tuple) or not 2 <= len(entry) <= 3:
            raise ValueError(f"history: expected [ranks, steps] of each part, found {entry!r:.80}")
        num_replicas = at_least(1, entry[0], "number of ranks in the history")
        num_runs = at_least(1, (*entry, num_replicas)[2], "number of runs in the history")
        if num_runs % num_replicas:
            raise ValueError(f"history: expected a multiple of {num_replicas} runs in {entry!r}")
        return cls(num_replicas, num_runs, at_least(0, entry[1], "steps in the history"))

    @property
    def json(self) -> list[int]:
        """Its entry in a state; the number of runs is stated where it is not that of the ranks."""
        same = self.num_runs == self.num_replicas
        return [self.num_replicas, self.steps, *([] if same else [self.num_runs])]

    @property
    def position(self) -> int:
        """Number of items that all ranks together have read."""
        return self.steps * self.num_replicas

    def num_read(self, lengths: IntArray | None = None) -> IntArray:
        """Return how many items of each run were read; a rank reads its runs in turn.

        Args:
            lengths: Length of each run, where a run that is shorter has no turn in the last round;
                None if all runs have the same number of turns.
        """
        width = self.num_runs // self.num_replicas
        turns = np.arange(self.num_runs) % width
        num_read = self.steps // width + (turns < self.steps % width)
        if lengths is None or not len(lengths):
            return num_read
        rounds = int(lengths.min())
        if self.steps > width * rounds:
            is_long = (lengths > rounds).reshape(self.num_replicas, width)
            has_had_turn = is_long & (np.cumsum(is_long, axis=1) <= self.steps - width * rounds)
            num_read = rounds + has_had_turn.ravel()
        return num_read


History = tuple[EpochPart, ...]
"""The parts of an epoch that were read before, on other numbers of ranks."""


@dataclass(frozen=True)
class EpochPlace:
    """A place in an epoch, from which a rank reads on.

    Attributes:
        epoch: The epoch.
        position: Number of items that the rank has read of its latest part.
        history: The parts before it.
    """

    epoch: int
    position: int = 0
    history: History = ()

    def __add__(self, num_items: int) -> EpochPlace:
        """Return the place after some more items."""
        return replace(self, position=self.position + num_items)

    @property
    def num_earlier(self) -> int:
        """Number of items that a rank has read in the parts before."""
        return sum(part.steps for part in self.history)


def resumed(epoch: int, parts: Iterable[EpochPart], num_replicas: int, num_runs: int) -> EpochPlace:
    """Return the place from which a rank continues an epoch.

    Args:
        epoch: The epoch.
        parts: What was read of it; the last part may continue.
        num_replicas: Number of ranks that there are now.
        num_runs: Number of runs that they cut a part into.
    """
    read = [part for part in parts if part.steps]
    if not read:
        return EpochPlace(epoch)
    last = read[-1]
    # Runs that all were read equally far are the same runs on any number of ranks that divides
    # them.
    is_same = last.num_replicas == num_replicas or last.position % num_runs == 0
    if last.num_runs == num_runs and is_same:
        return EpochPlace(epoch, last.position // num_replicas, tuple(read[:-1]))
    return EpochPlace(epoch, 0, tuple(read))


class Piece(NamedTuple):
    """Neighbouring items of a sequence, by its number and theirs."""

    sequence: int
    start: int
    stop: int


def length_of(pieces: Iterable[Piece]) -> int:
    """Return the number of items in pieces."""
    return sum(stop - start for _, start, stop in pieces)


def between(pieces: Iterable[Piece], start: int, stop: int) -> Iterator[Piece]:
    """Yield what is at the positions ``start`` to ``stop`` of pieces, one after another."""
    for sequence, first, last in pieces:
        if stop <= 0:
            return
        if max(start, 0) < min(stop, last - first):
            yield Piece(sequence, first + max(start, 0), min(first + stop, last))
        start, stop = start - (last - first), stop - (last - first)


def cut(pieces: Collection[Piece], num_runs: int) -> list[list[Piece]]:
    """Return pieces, one after another, as runs (ORDER-50)."""
    edges = run_edges(length_of(pieces), num_runs).tolist()
    runs: list[list[Piece]] = [[] for _ in range(num_runs)]
    position, run = 0, 0
    for sequence, first, stop in pieces:
        at = first
        while at < stop:
            while position == edges[run + 1]:
                run += 1
            count = min(stop - at, edges[run + 1] - position)
            runs[run].append(Piece(sequence, at, at + count))
            at, position = at + count, position + count
    return runs


def remaining(runs: list[list[Piece]], history: History, *, uneven: bool = False) -> list[Piece]:
    """Return what is left after parts, in order.

    Args:
        runs: Those of the first part.
        history: The parts; at least one.
        uneven: Whether runs that are shorter have no turn in the last round of a part.
    """
    left: list[Piece] = []
    for number, part in enumerate(history):
        runs = cut(left, part.num_runs) if number else runs
        lengths = np.array(list(map(length_of, runs))) if uneven else None
        pairs = zip(runs, part.num_read(lengths).tolist(), strict=True)
        left = [piece for run, read in pairs for piece in between(run, read, sys.maxsize)]
    return left


@dataclass(frozen=True, eq=False)
class RestOfEpoch:
    """What is left of an epoch, cut into runs; it takes the place of the settings of a whole epoch.

    Attributes:
        whole: The settings of the epoch, with the runs with which it began.
        rest: Those of a range that is as long as the rest, with the current runs.
        pieces: Positions of the rest in the order with which the epoch began.
    """

    whole: OrderSettings
    rest: OrderSettings
    pieces: list[Piece]

    @property
    def num_runs(self) -> int:
        """Number of runs that the rest is cut into."""
        return self.rest.num_runs

    def run_length(self, run: int) -> int:
        """Return the number of indices that a run yields."""
        return self.rest.run_length(run)

    def of_epoch(self, seed: int, epoch: int) -> SlicedRuns:
        """Return the runs of the rest of an epoch."""
        return SlicedRuns(self.rest, _Remaining(WholeEpoch(self.whole, seed, epoch), self.pieces))


def rest_of_epoch(settings: OrderSettings, history: History) -> RestOfEpoch:
    """Return what is left of an epoch after the parts of a history.

    Args:
        settings: The settings, with the runs into which the rest is cut.
        history: What was read; at least one part.
    """
    # Padded runs repeat an index in the last round; only uneven ones have no turn there.
    pieces = _left_of(settings.num_indices, history, settings.ending == "uneven")
    return RestOfEpoch(
        replace(settings, num_runs=history[0].num_runs),
        replace(settings, start=0, stop=length_of(pieces)),
        pieces,
    )


@lru_cache(maxsize=8)  # a loader takes a state at every step
def _left_of(num_indices: int, history: History, uneven: bool) -> list[Piece]:
    runs = cut([Piece(0, 0, num_indices)], history[0].num_runs)
    return remaining(runs, history, uneven=uneven)


@dataclass(frozen=True, eq=False)
class _Remaining:
    """The indices that are left, in order."""

    whole: WholeEpoch
    left: list[Piece]

    def pieces(self, start: int, stop: int) -> Iterator[ChunkPiece]:
        """Yield what has the positions ``start`` to ``stop`` of the rest."""
        for _, first, last in between(self.left, start, stop):
            yield from self.whole.pieces(first, last)

    def position(self, index: int) -> int | None:
        """Return the position of an index in the rest; None if it is not there."""
        position = self.whole.position(index)
        if position is None:
            return None
        num_before = 0
        for _, start, stop in self.left:
            if start <= position < stop:
                return num_before + position - start
            num_before += stop - start
        return None


@dataclass(frozen=True)
class State:
    """The position of a sampler.

    Attributes:
        epoch: The epoch.
        is_fixed: Whether ``set_epoch`` was called, so that the epoch does not advance by itself.
        position: Samples, or batches, that all ranks together have consumed: in this epoch, or
            since the number of ranks changed.
        num_replicas: Number of ranks.
        history: The parts of the epoch that were read on other numbers of ranks.
        fingerprint: Everything else that the order depends on.
        spec: Digests of the dataset, on which the order does not depend.
    """

    epoch: int
    is_fixed: bool
    position: int
    num_replicas: int
    history: History
    fingerprint: Mapping[str, Any]
    spec: Mapping[str, str]

    @property
    def json(self) -> dict[str, Any]:
        """The state as a JSON object.

        It has the same keys for all settings, and no value is an object: a distributed checkpoint
        reads only the keys, at any depth, that a fresh sampler's state has.
        """
        return {
            **vars(self),
            "history": [part.json for part in self.history],
            "fingerprint": canonical(self.fingerprint),
            "spec": canonical(self.spec),
        }

    @classmethod
    def from_json(cls, state: Any) -> State:
        """Return a state that was saved, the argument of ``load_state_dict``.

        Raises:
            StateError: It is none, or damaged.
        """
        check_keys(state, [field.name for field in fields(cls)])
        try:
            position, epoch = (at_least(0, state[key], key) for key in ("position", "epoch"))
            num_replicas = at_least(1, state["num_replicas"], "num_replicas")
            if not isinstance(state["history"], list | tuple):
                raise ValueError(f"history: expected a list, found {state['history']!r:.80}")  # noqa: TRY004, TRY301 - becomes a StateError
            history = tuple(map(EpochPart.from_json, state["history"]))
            fingerprint, spec = (_object(state[key], key) for key in ("fingerprint", "spec"))
            at_least(1, fingerprint.get("num_canonical"), "num_canonical")
        except ValueError as error:
            raise _damaged(error) from error
        is_fixed = bool(state["is_fixed"])
        return cls(epoch, is_fixed, position, num_replicas, history, fingerprint, spec)

    @property
    def parts(self) -> list[EpochPart]:
        """What was read of the epoch, on each number of ranks."""
        steps = self.position // self.num_replicas
        latest = EpochPart(self.num_replicas, self.fingerprint["num_canonical"], steps)
        return [*self.history, latest]


def check_keys(state: Any, keys: Collection[str]) -> None:
    """Raise a `StateError` unless a state has these keys."""
    if not isinstance(state, Mapping):
        raise StateError(
            f"state: expected the dict that state_dict() returned, found {type(state).__name__} "
            f"{state!r:.80}"
        )
    if missing := [key for key in keys if key not in state]:
        raise StateError(
            f"state: expected what state_dict() returned, with {', '.join(keys)}, found no "
            f"{' and no '.join(missing)}; a part of it was lost, or another version of wids saved "
            "it: save what state_dict() returns as it is"
        )


def canonical(value: Any) -> str:
    """Return a value as JSON, the same for equal ones."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _object(text: Any, name: str) -> dict[str, Any]:
    """Return an object of a state, which has it as JSON."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{name}: expected an object as JSON, found {text!r:.80}")  # noqa: TRY004 - becomes a StateError
    return found


def _damaged(error: ValueError) -> StateError:
    return StateError(f"the state is damaged: {error}")


def digest_of(values: npt.NDArray[Any]) -> str:
    """Return a digest of numbers, of which there may be too many to store in a state.

    It is the same for all types of integers, and of floats, and on every machine.
    """
    kind = "<f8" if values.dtype.kind == "f" else "<i8"
    digest = hashlib.sha256()
    for at in range(0, len(values), _PIECE):
        digest.update(values[at : at + _PIECE].astype(kind).tobytes())
    return digest.hexdigest()[:16]


def stated(settings: Any, otherwise: Collection[str], always: Collection[str]) -> dict[str, Any]:
    """Return the settings of an order that are in its fingerprint, by their names.

    A setting that is added after version 1.0 is in it only where it differs from its default, so
    that versions can exchange states that use no setting that one of them lacks. A later setting
    needs a default that keeps the order, and this default never changes.

    Args:
        settings: A dataclass of settings.
        otherwise: The fields that the fingerprint states in another way.
        always: The fields that are in every fingerprint: those of version 1.0.
    """
    return {
        field.name: value
        for field in fields(settings)
        if field.name not in otherwise
        and ((value := getattr(settings, field.name)) != field.default or field.name in always)
    }


def fingerprint(settings: OrderSettings, seed: int, digest: str) -> dict[str, Any]:
    """Return what an order depends on besides epoch, position and ranks; JSON-able.

    Args:
        settings: The settings of the order.
        seed: Its seed.
        digest: The `digest_of` the shard lengths.
    """
    return {
        "lengths": digest,
        "num_shards": len(settings.lengths),
        "range": [settings.start, settings.stop],
        "seed": seed,
        **stated(
            settings,
            otherwise=("lengths", "start", "stop", "num_runs"),
            always=("chunksize", "shuffle", "shufflefirst", "redeal", "ending"),
        ),
        "num_canonical": settings.num_runs,
    }


def check_state(
    state: State, expected: Mapping[str, Any], most_items: Callable[[int], int], *, is_cut: bool
) -> None:
    """Check that a state belongs to the order of a sampler.

    Args:
        state: The state.
        expected: The sampler's own fingerprint.
        most_items: Returns a number that no position exceeds with so many runs.
        is_cut: Whether the number of runs is fixed, so that the state needs the same.

    Raises:
        StateError: It belongs to another order, or states what cannot be.
    """
    _check_fingerprint(state.fingerprint, expected, is_cut=is_cut)
    try:
        _check_positions(state, most_items)
    except ValueError as error:
        raise _damaged(error) from error


def _check_positions(state: State, most_items: Callable[[int], int]) -> None:
    if state.position % state.num_replicas:
        raise ValueError(
            f"expected a multiple of its {state.num_replicas} ranks as position, found "
            f"{state.position}"
        )
    for part in state.parts:
        if part.num_runs % part.num_replicas:
            raise ValueError(
                f"expected a multiple of num_replicas={part.num_replicas} runs, found "
                f"{part.num_runs}"
            )
        if part.position > (most := most_items(part.num_runs)):
            raise ValueError(f"expected at most {most} as position, found {part.position}")


def other_runs(name: str, state: State, num_replicas: int, num_canonical: int | None) -> StateError:
    """Return the error for an order that continues only with the runs of the state."""
    runs, saved_on = state.fingerprint["num_canonical"], state.num_replicas
    possible = divisors(runs) if state.position % runs == 0 else [saved_on]
    return StateError(
        f"{name}: expected the {runs} runs of the state, which was saved on {saved_on} ranks at "
        f"position {state.position}, found {num_replicas} ranks and num_canonical={num_canonical}; "
        f"resume on {either(possible)} ranks with num_canonical={runs}, and change to others "
        "between epochs"
    )


def divisors(number: int) -> list[int]:
    """Return the numbers that divide a number, ascending."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def either(numbers: Collection[int]) -> str:
    """Return numbers as text, such as ``1, 2 or 4``."""
    *others, last = map(str, numbers)
    return f"{', '.join(others)} or {last}" if others else last


def _check_fingerprint(
    found: Mapping[str, Any], expected: Mapping[str, Any], *, is_cut: bool
) -> None:
    """Raise unless the fingerprint of a state is that of the sampler."""
    if not is_cut:  # of any number of ranks
        expected = {**expected, "num_canonical": found["num_canonical"]}
    if found == expected:
        return
    differences = [
        f"{name}: expected {value!r}, found "
        f"{repr(found[name]) if name in found else 'nothing'} in the state"
        for name, value in expected.items()
        if found.get(name) != value
    ] + [
        f"{name}: found {value!r} in the state, which this sampler does not have"
        for name, value in found.items()
        if name not in expected
    ]
    advice = "create the sampler with the settings that the state was saved with"
    if "lengths" in found.keys() & expected.keys() and found["lengths"] != expected["lengths"]:
        advice = (
            "the dataset has changed since the state was saved, or is another one, since its "
            "shards have other lengths: open the one of the state, or begin an epoch without it"
        )
    raise StateError(f"the state belongs to another order: {'; '.join(differences)}; {advice}")
