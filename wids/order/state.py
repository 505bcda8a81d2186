"""Check the state of a sampler, a JSON object, before the sampler resumes from it.

ORDER-9 to ORDER-11 in specs/sampler-order.md specify it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from wids.errors import StateError
from wids.order.arguments import at_least
from wids.order.epoch_order import Settings
from wids.storage.array_types import IntArray


@dataclass(frozen=True)
class State:
    """The position of a sampler. Its attributes are the keys of the JSON object.

    Attributes:
        epoch: The epoch.
        is_fixed: Whether ``set_epoch`` was called, so that the epoch does not advance by itself.
        position: Samples, or batches, that all ranks together have consumed in this epoch.
        num_replicas: Number of ranks.
        fingerprint: Everything else that the order depends on.
    """

    epoch: int
    is_fixed: bool
    position: int
    num_replicas: int
    fingerprint: Mapping[str, Any]


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
    state: Any, expected: Mapping[str, Any], num_runs: int, most_items: int, num_replicas: int
) -> State:
    """Return a state that a sampler can resume from.

    Args:
        state: The argument of ``load_state_dict``.
        expected: The sampler's own fingerprint.
        num_runs: Its number of runs.
        most_items: A number that no position in its epochs exceeds.
        num_replicas: Its number of ranks.

    Raises:
        StateError: The state is damaged, belongs to another order, or was saved on another number
            of ranks at a position that exists only there.
    """
    _check_fingerprint(state, expected)
    try:
        position, epoch = (at_least(0, state.get(k), k) for k in ("position", "epoch"))
        saved_replicas = at_least(1, state.get("num_replicas"), "num_replicas")
    except ValueError as error:
        raise StateError(f"the state is damaged: {error}") from error
    if position % saved_replicas or position > most_items:
        raise StateError(
            f"the state is damaged: expected a multiple of its {saved_replicas} ranks and at most "
            f"{most_items} as position, found {position}"
        )
    # A rank of a job with more ranks reads fewer runs. All jobs agree only after full rounds.
    if saved_replicas != num_replicas and position % num_runs:
        raise StateError(
            f"the state was saved on {saved_replicas} ranks at position {position}; {num_replicas} "
            f"ranks can resume only at a multiple of num_canonical={num_runs}; save states at such "
            "positions"
        )
    return State(epoch, bool(state.get("is_fixed")), position, saved_replicas, expected)


def _check_fingerprint(state: Any, expected: Mapping[str, Any]) -> None:
    found = state.get("fingerprint") if isinstance(state, Mapping) else None
    if found == expected:
        return
    found = found if isinstance(found, Mapping) else {}
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
    raise StateError(
        f"the state belongs to another order: {'; '.join(differences)}; create the sampler with "
        "the settings that the state was saved with"
    )
