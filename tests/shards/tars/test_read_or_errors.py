"""Members that are read together, or one by one where that fails."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from conftest import raises

from wids.errors import FetchError, ShardFormatError
from wids.shards.tars.raw_samples import read_or_errors


def test_those_that_can_be_read_are_returned() -> None:
    """One request has all of them; after a failure each has its own value or error."""
    requests = []

    def read(wanted: Sequence[int]) -> list[int]:
        requests.append(list(wanted))
        if 3 in wanted:
            raise ShardFormatError("3 is damaged")
        return [10 * number for number in wanted]

    assert read_or_errors(read, range(3), ShardFormatError) == [0, 10, 20]
    assert requests == [[0, 1, 2]]
    first, error, last = read_or_errors(read, np.array([2, 3, 4]), ShardFormatError)
    assert (first, str(error), last) == (20, "3 is damaged", 40)
    assert requests[1:] == [[2, 3, 4], [2], [3], [4]]
    with raises(ShardFormatError, "3 is damaged"):
        read_or_errors(read, [3], FetchError)


def test_a_failure_of_all_ends_the_reading() -> None:
    """The caller decides after the first failure, as where the file has changed."""

    def read(_: Sequence[int]) -> list[int]:
        raise ShardFormatError("damaged")

    def stop(error: ShardFormatError) -> None:
        raise FetchError(f"changed, and {error}")

    with pytest.raises(FetchError, match="changed, and damaged"):
        read_or_errors(read, [1], ShardFormatError, stop)
