"""A law is a property that the default run checks in some cases and the long run in many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

REPEATS = pytest.mark.filterwarnings(
    "ignore:.*a second full pass", "ignore:.*two passes of epoch .* ended early"
)
"""Laws repeat whole and broken passes of an epoch, which programs do not (ORDER-14, ORDER-48)."""


def cases(count: int) -> settings:
    # Drawing is slow on a busy machine, which is no reason to fail.
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def law(
    few: int, many: int, *strategies: SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """Make a test of a function of drawn values: `few` cases by default, `many` in a long run."""

    def decorate(check: Callable[..., None]) -> Callable[[int], None]:
        # In halves, which two processes check at the same time: ten thousand cases take minutes.
        halves = [
            pytest.param(number, marks=pytest.mark.seeds, id=f"{name} half of {many}")
            for name, number in (("first", many // 2), ("second", many - many // 2))
        ]

        @pytest.mark.parametrize("count", [few, *halves])
        def test(count: int) -> None:
            cases(count)(given(*strategies)(check))()

        test.__doc__, test.__name__ = check.__doc__, check.__name__
        return test

    return decorate
