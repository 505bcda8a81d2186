"""A law is a property that the default run checks in some cases and the long run in many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

_LONGER: Final = 20
"""How many times as long as the default run, which takes up to 3 s, a part of a long run takes."""

REPEATS = pytest.mark.filterwarnings(
    "ignore:.*a second full pass", "ignore:.*two passes of epoch .* ended early"
)
"""Laws repeat whole and broken passes of an epoch, which programs do not (ORDER-14)."""


def law(
    few: int, many: int, *strategies: SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """Make a test of a function of drawn values: `few` cases by default, `many` in a long run.

    A profile with fewer than a hundred cases has a smaller part of `few`.
    """

    def decorate(check: Callable[..., None]) -> Callable[[int], None]:
        # In parts, which processes check at the same time: each ends within the limit of a test.
        num_parts = max(2, -(-many // (few * _LONGER)))
        parts = [
            pytest.param(
                (many + part) // num_parts, marks=pytest.mark.seeds, id=f"part {part} of {many}"
            )
            for part in range(num_parts)
        ]
        by_default = -(-few * settings().max_examples // 100)

        @pytest.mark.parametrize("count", [by_default, *parts])
        def test(count: int) -> None:
            settings(max_examples=count)(given(*strategies)(check))()

        test.__doc__, test.__name__ = check.__doc__, check.__name__
        return test

    return decorate
