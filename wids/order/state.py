"""Check the state of a sampler, a JSON object, before the sampler resumes from it.

ORDER-9 to ORDER-11 in specs/sampler-order.md specify it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from wids.errors import StateError
from wids.order.arguments import at_least
from wids.order.epoch_order import Settings
from wids.order.history import Part
from wids.storage.array_types import IntArray


@dataclass(frozen=True)
class State:
    """The position of a sampler. Its attributes are the keys of the JSON object.

    Attributes:
        epoch: The epoch.
        is_fixed: Whether ``set_epoch`` was called, so that the epoch does not advance by itself.
        position: Samples, or batches, that all ranks together have consumed: in this epoch, or
            since the number of ranks changed.
        num_replicas: Number of ranks.
        fingerprint: Everything else that the order depends on; ``history`` has the parts of the
            epoch that were read on other numbers of ranks, if there are any.
    """

    epoch: int
    is_fixed: bool
    position: int
    num_replicas: int
    fingerprint: Mapping[str, Any]

    @property
    def parts(self) -> list[Part]:
        """What was read of the epoch, on each number of ranks."""
        earlier = self.fingerprint.get("history", [])
        if not isinstance(earlier, list):
            raise ValueError(f"history: expected a list, found {earlier!r:.80}")  # noqa: TRY004 - becomes a StateError
        steps = self.position // self.num_replicas
        latest = Part(self.num_replicas, self.fingerprint["num_canonical"], steps)
        return [*map(Part.from_json, earlier), latest]


def lengths_digest(lengths: IntArray) -> str:
    """Return a digest of shard lengths, which may be too many to store in a state."""
    # In one byte order, since a state may be restored on another machine.
    little_endian = np.ascontiguousarray(lengths, "<i8").tobytes()
    return hashlib.sha256(little_endian).hexdigest()[:16]


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


def fingerprint(settings: Settings, seed: int, digest: str) -> dict[str, Any]:
    """Return what an order depends on besides epoch, position and ranks; JSON-able.

    Args:
        settings: The settings of the order.
        seed: Its seed.
        digest: The `lengths_digest` of the shard lengths.
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


def checked_state(
    state: Any, expected: Mapping[str, Any], most_items: Callable[[int], int], *, is_cut: bool
) -> State:
    """Return a state that belongs to the order of a sampler.

    Args:
        state: The argument of ``load_state_dict``.
        expected: The sampler's own fingerprint.
        most_items: Returns a number that no position exceeds with so many runs.
        is_cut: Whether the number of runs is fixed, so that the state needs the same.

    Raises:
        StateError: The state is damaged, or belongs to another order.
    """
    fingerprint = _checked_fingerprint(state, expected, is_cut=is_cut)
    try:
        position, epoch = (at_least(0, state.get(k), k) for k in ("position", "epoch"))
        num_replicas = at_least(1, state.get("num_replicas"), "num_replicas")
        found = State(epoch, bool(state.get("is_fixed")), position, num_replicas, fingerprint)
        _check_positions(found, most_items)
    except ValueError as error:
        raise StateError(f"the state is damaged: {error}") from error
    return found


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


def other_runs(state: State, num_replicas: int, num_canonical: int | None) -> StateError:
    """Return the error for an order that continues only with the runs of the state."""
    runs, saved_on = state.fingerprint["num_canonical"], state.num_replicas
    possible = divisors(runs) if state.position % runs == 0 else [saved_on]
    return StateError(
        f"the state was saved on {saved_on} ranks at position {state.position}, of a mix of {runs} "
        f"runs, which resumes there on {either(possible)} ranks with num_canonical={runs}; found "
        f"{num_replicas} ranks and num_canonical={num_canonical}"
    )


def divisors(number: int) -> list[int]:
    """Return the numbers that divide a number, ascending."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def either(numbers: Collection[int]) -> str:
    """Return numbers as text, such as ``1, 2 or 4``."""
    *others, last = map(str, numbers)
    return f"{', '.join(others)} or {last}" if others else last


def _checked_fingerprint(
    state: Any, expected: Mapping[str, Any], *, is_cut: bool
) -> Mapping[str, Any]:
    """Return the fingerprint of a state, if it is that of the sampler."""
    found = state.get("fingerprint") if isinstance(state, Mapping) else None
    found = found if isinstance(found, Mapping) else {}
    num_runs = found.get("num_canonical")
    if not is_cut and type(num_runs) is int and num_runs > 0:  # of any number of ranks
        expected = {**expected, "num_canonical": num_runs}
    compared = {name: value for name, value in found.items() if name != "history"}
    if compared == expected:
        return found
    differences = [
        f"{name}: expected {value!r}, found "
        f"{repr(found[name]) if name in found else 'nothing'} in the state"
        for name, value in expected.items()
        if found.get(name) != value
    ] + [
        f"{name}: found {value!r} in the state, which this sampler does not have"
        for name, value in compared.items()
        if name not in expected
    ]
    raise StateError(
        f"the state belongs to another order: {'; '.join(differences)}; create the sampler with "
        "the settings that the state was saved with"
    )
