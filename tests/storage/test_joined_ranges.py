"""Ranges that are near each other become one request: nothing is lost, and little is added."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from wids.storage.ranges import GAP_NBYTES, Span, frugal_gap_nbytes, joined

SPANS = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(1, 10**5)).map(lambda s: (s[0], s[0] + s[1])),
    max_size=30,
).map(sorted)
GAPS = st.integers(0, 10**5)


def nbytes(spans: list[Span]) -> int:
    return sum(stop - start for start, stop in spans)


@given(SPANS, GAPS, st.integers(1, 10**6))
def test_each_range_is_inside_one_request(spans: list[Span], gap: int, limit: int) -> None:
    """Requests ascend, and each wanted range is in one of them, which begins and ends with some."""
    requests = joined(spans, gap, limit)
    assert requests == sorted(requests)
    for start, stop in spans:
        assert any(first <= start and stop <= last for first, last in requests)
    assert {start for start, _ in requests} <= {start for start, _ in spans}
    assert {stop for _, stop in requests} <= {stop for _, stop in spans}


@given(SPANS, GAPS, st.integers(1, 10**6))
def test_a_request_is_long_only_if_a_range_is(spans: list[Span], gap: int, limit: int) -> None:
    """Only what is longer than the limit by itself makes a longer request."""
    for first, last in joined(spans, gap, limit):
        assert last - first <= limit or (first, last) in spans


@given(SPANS, GAPS)
def test_near_ranges_share_a_request(spans: list[Span], gap: int) -> None:
    """Two requests are further apart than the largest gap, if their length has no limit."""
    requests = joined(spans, gap, 10**9)
    for (_, last), (start, _) in pairwise(requests):
        assert start - last > gap


@given(SPANS, GAPS)
def test_joining_again_changes_nothing(spans: list[Span], gap: int) -> None:
    """Without a limit of length, requests are joined already."""
    requests = joined(spans, gap, 10**9)
    assert joined(requests, gap, 10**9) == requests


@given(SPANS)
def test_a_frugal_gap_at_most_doubles_the_bytes(spans: list[Span]) -> None:
    """What is read along is never more than what is wanted."""
    apart, stop = [], 0
    for start, end in spans:  # members of a tar do not overlap
        if start >= stop:
            apart.append((start, end))
            stop = end
    gap = frugal_gap_nbytes(apart)
    assert gap <= GAP_NBYTES
    assert nbytes(joined(apart, gap)) <= 2 * nbytes(apart)
