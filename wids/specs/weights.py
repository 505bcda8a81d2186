"""The weights of a document's datasets → one weight for each name, for samplers that mix.

SPEC-5 in specs/shard-spec.md specifies them. Nothing here knows how datasets are mixed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from wids.errors import SpecError
from wids.specs.model import DatasetSpec

_logger = logging.getLogger("wids")


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


def combined(parts: Iterable[tuple[DatasetSpec, float | None, str]]) -> dict[str, float]:
    """Return the weights of datasets that become parts of one; empty if none is stated.

    Args:
        parts: Each part, the weight that is stated for it, and its place for messages.
    """
    parts = list(parts)
    if all(weight is None and not part.weights for part, weight, _ in parts):
        return {}
    weights: dict[str, float] = {}
    for part, weight, label in parts:
        names = dict.fromkeys(shard.dataset for shard in part.shards)
        if None in names and weight is not None:
            _logger.warning("%s: the weight %r is not used: it has no name", label, weight)
        own = {name: part.weights.get(name, 1) for name in names if name is not None}
        total = sum(own.values()) or 1
        for name, value in own.items():
            share = (1 if weight is None else weight) * (value / total if len(own) > 1 else 1)
            weights[name] = weights.get(name, 0) + share
    return weights


def _checked(value: Any, label: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= sys.float_info.max:
        raise SpecError(f"{label}: expected a number of at least 0, found {value!r:.80}")
    number: float = value
    return number
