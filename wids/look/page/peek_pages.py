"""Answer the requests of the pages of shards that need not have an index, by path and query.

Samples are addressed by the number of a shard and the position in it, since the lengths of the
previous shards are unknown. Each shard is shown like a dataset, by the same code. A request to a
shard reads its beginning, or as much more as one look may cost.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from wids.errors import printable
from wids.look.latest import latest
from wids.look.notebook import known_text
from wids.look.page.answers import Query, Site, parsed_number
from wids.look.page.hits import parse_conditions
from wids.look.page.pages import Pages, field_rows, page_in, picture_fields
from wids.look.page.questions import PageScans, Questions
from wids.look.preview import MAX_PAGE_NBYTES, Peekable, num_affordable
from wids.shards.glimpse import Glimpse
from wids.storage.sizes import count_text, nbytes_text
from wids.storage.transport import urls

_MAX_KEPT: Final = 8
"""Shards whose searches are kept."""


class PeekPages(Site):
    """The answers for shards of which some have no index. Safe to use from any thread.

    Args:
        peek: Any of the shards.
        python: Code that names the shards in Python, for people to copy.
    """

    def __init__(self, peek: Peekable, python: str = "shards") -> None:
        self._peek = peek
        self._python = python
        super().__init__(
            {
                "about": self._about,
                "shard": lambda rest, query: self._pages(rest).answer(_path_in(rest), query),
            },
            {"shard": lambda rest, query: self._pages(rest).act(_path_in(rest), query)},
        )
        # One at a time: each may download a shard.
        self._indexing = threading.Lock()
        self._scans = PageScans()
        self._questions = latest(self._new_questions, _MAX_KEPT)

    def close(self) -> None:
        """Stop what was started."""
        self._scans.close()

    def _about(self, _: str, __: Query) -> dict[str, Any]:
        """Answer with what is known of all shards, without reading any."""
        peek = self._peek
        return {
            "name": peek.title,
            "num_samples": None,
            "num_shards": peek.num_shards,
            "size": None,
            "fields": [],
            "shard": peek.number,
            "command": peek.create_command,
        }

    def _pages(self, rest: str) -> _ShardPages:
        """Return the pages of the shard whose number a path begins with."""
        digits = rest.partition("/")[0]
        if not digits.isdecimal() or len(digits) > 9 or int(digits) >= self._peek.num_shards:
            raise IndexError(
                f"expected a shard from 0 to {self._peek.num_shards - 1}, found {digits:.20}"
            )
        number = int(digits)
        python = f"wids.peek({self._python}, {number})"
        # Made for each request, since more samples may be known each time.
        peek, questions = self._peek.shard(number), self._questions(number)
        return _ShardPages(peek, python, questions, self._indexing)

    def _new_questions(self, number: int) -> Questions:
        return Questions(self._peek.shard(number), self._scans)


class _ShardPages(Pages):
    """The answers for one shard, as for a dataset of the samples that are known of it."""

    def __init__(
        self, peek: Peekable, python: str, questions: Questions, indexing: threading.Lock
    ) -> None:
        actions = {"index": self._index_shard}
        super().__init__(peek, f"shard/{peek.number}/", python, questions, actions)
        self._peek = peek
        self._indexing = indexing

    def _index_shard(self, rest: str, query: Query) -> dict[str, Any]:
        with self._indexing:
            self._peek.make_index()
        return self._about(rest, query)

    def _about(self, _: str, __: Query) -> dict[str, Any]:
        """Answer with what is known of the shard, after its beginning was read."""
        peek, glimpse = self._peek, self._peek.glimpse
        return {
            "url": printable(urls.redact(peek.url)),
            **_what_is_known(peek),
            "cost": "" if glimpse is None else cost_text(glimpse),
            "fields": field_rows(self.stats) if peek.is_complete else [],
            "pictures": picture_fields(self.stats),
            "python": self._python,
        }

    def sample(self, rest: str, query: Query) -> dict[str, Any]:
        """Return a sample; others that are not known yet may follow it."""
        peek, index = self._peek, parsed_number(rest, "sample")
        peek.read_on(index + 1)
        answer = super().sample(rest, query)
        is_last = index == len(peek) - 1 and _can_continue(peek)
        return {**answer, "next": index + 1} if is_last and not _selects(query) else answer

    def samples(self, query: Query) -> dict[str, Any]:
        """Return cards from a position on, as many as can be shown without reading much."""
        peek, (start, count) = self._peek, page_in(query)
        before = peek.num_read_nbytes
        peek.read_on(start + count)
        if _selects(query):
            return super().samples(query)
        rest_nbytes = MAX_PAGE_NBYTES - (peek.num_read_nbytes - before)
        shown = max(num_affordable(peek, start, count, rest_nbytes), 1)
        answer = super().samples({**query, "count": str(shown)})
        if _can_continue(peek):
            answer["next"] = start + len(answer["cards"])
        # By the usual length: how many samples fit on that page is decided when it is shown.
        answer["previous"] = max(start - count, 0) if start else None
        return {**answer, **_what_is_known(peek)}


def _path_in(rest: str) -> str:
    """Return the path that follows the number of a shard."""
    return rest.partition("/")[2]


def _can_continue(peek: Peekable) -> bool:
    """Return whether a shard may have more samples than those that are known."""
    glimpse = peek.glimpse
    return glimpse is not None and glimpse.can_continue


def _selects(query: Query) -> bool:
    """Return whether a query asks for other samples than all, or in another order."""
    return bool(parse_conditions(query) or query.get("seed"))


def _what_is_known(peek: Peekable) -> dict[str, Any]:
    """Return the number of samples of a shard, None if that is not known yet, and remarks."""
    glimpse = peek.glimpse
    return {
        "num_samples": len(peek) if peek.is_complete else None,
        "known": known_text(peek),
        "remark": "" if glimpse is None else printable(glimpse.remark()),
    }


def cost_text(glimpse: Glimpse) -> str:
    """Return what making the index of a shard is expected to cost; ``""`` if that is unknown."""
    if glimpse.is_complete:
        return ""
    if not glimpse.has_ranges:
        whole = "the shard" if glimpse.nbytes is None else nbytes_text(glimpse.nbytes)
        return f"downloads {whole}"
    requests = count_text(glimpse.cost.num_requests, "request")
    return f"reads about {nbytes_text(glimpse.cost.nbytes)} in {requests}"
