"""Things that are made when they are first wanted."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from events import LONG_S

from wids.storage.reading_threads import latest


def test_the_latest_are_kept() -> None:
    """A thing that was used lately is not made again; one that was not is."""
    made: list[str] = []
    get = latest(lambda name: made.append(name) or name.upper(), 2)
    for name in "abacab":
        assert get(name) == name.upper()
    assert made == ["a", "b", "c", "b"]


def test_threads_make_it_once() -> None:
    """Threads that want the same thing at the same time get the same one."""
    everybody = threading.Barrier(4)
    get = latest(lambda _: object(), 2)

    def want(_: int) -> object:
        everybody.wait(LONG_S)
        return get("a")

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(want, range(4)))) == 1


def test_what_fails_is_tried_again() -> None:
    """An error is not kept."""
    answers = [ValueError("not yet"), 3]

    def make(_: str) -> int:
        answer = answers.pop(0)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    get = latest(make, 2)
    with pytest.raises(ValueError, match="not yet"):
        get("a")
    assert get("a") == get("a") == 3
