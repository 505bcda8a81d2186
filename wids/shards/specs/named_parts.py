"""Combine the shards and weights of datasets that become parts of another one.

SPEC-5 in specs/shard-spec.md specifies weights.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wids.errors import SpecError
from wids.shards.specs.model import DatasetSpec, PackedShards
from wids.shards.specs.shard_sequences import dataset_names, joined, with_defaults
from wids.shards.tars.member_names import KeySplit

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """A dataset that becomes a part of another one.

    Attributes:
        spec: Its shards, and the weights of the datasets that it consists of.
        weight: Its stated weight, or None.
        label: Its place in the document, for messages.
    """

    spec: DatasetSpec
    weight: float | None = None
    label: str = ""


def as_component(
    spec: DatasetSpec, name: str | None, key_split: KeySplit | None = None
) -> DatasetSpec:
    """Return a dataset as a part of another one; shards without a dataset name get its name."""
    shards = with_defaults(spec.shards, name or spec.name or None, key_split)
    # The packs have keys by their own rule, which is the first dot if none is stated.
    is_as_packed = key_split != "last" or all(shard.key_split for shard in spec.shards)
    packs = spec.all_packs() if is_as_packed else ()
    return DatasetSpec(shards, weights=spec.weights, packs=packs)


def weight_of(component: Mapping[str, Any], label: str) -> float | None:
    """Return the weight of one of a document's datasets, or None.

    Raises:
        SpecError: It is not a number of at least 0.
    """
    weight = component.get("weight")
    return None if weight is None else _checked(weight, f"{label}: weight")


def weights_of(document: Mapping[str, Any], label: str) -> dict[str, float]:
    """Return the weights that a document states by name.

    Raises:
        SpecError: They are not numbers of at least 0.
    """
    weights = document.get("weights")
    if weights is None:
        return {}
    if not isinstance(weights, Mapping):
        raise SpecError(
            f"{label}: weights: expected an object with a number for each name, "
            f"found {weights!r:.80}"
        )
    return {name: _checked(value, f"{label}: weights[{name!r}]") for name, value in weights.items()}


def assembled(parts: Sequence[Part]) -> DatasetSpec:
    """Return a dataset that consists of parts."""
    shards = joined(part.spec.shards for part in parts)
    return DatasetSpec(shards, weights=combined(parts), packs=packs_of(parts))


def packs_of(parts: Sequence[Part], start: int = 0) -> tuple[PackedShards, ...]:
    """Return the packs of consecutive parts, of which the first begins at shard ``start``."""
    packs: list[PackedShards] = []
    for part in parts:
        packs += part.spec.all_packs(start)
        start += len(part.spec.shards)
    return tuple(packs)


def combined(parts: Sequence[Part]) -> dict[str, float]:
    """Return the weight of each name in the parts of a dataset; empty if no weight is stated."""
    if all(part.weight is None and not part.spec.weights for part in parts):
        return {}
    weights: dict[str, float] = {}
    for part in parts:
        names, _ = dataset_names(part.spec.shards, None)
        weight = 1 if part.weight is None else part.weight
        if None in names and part.weight is not None:
            _logger.warning("%s: the weight %r is not used: it has no name", part.label, weight)
        own = {name: part.spec.weights.get(name, 1) for name in names if name is not None}
        total = sum(own.values()) or 1
        for name, value in own.items():
            share = value / total if len(own) > 1 else 1
            weights[name] = weights.get(name, 0) + weight * share
    return weights


def _checked(value: Any, label: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= sys.float_info.max:
        raise SpecError(f"{label}: expected a number of at least 0, found {value!r:.80}")
    number: float = value
    return number
