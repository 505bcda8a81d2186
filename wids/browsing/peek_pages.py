"""A path and a query → the answer of the pages of shards that nobody has indexed.

Samples are addressed by the number of a shard and the position in it, since nothing is known of the
shards before. Each shard is shown like a dataset of its own, by the same code. A request to a shard
reads its beginning, or as much more as one look may cost.
"""

from __future__ import annotations

import json
import threading
from typing import Any, Final

from wids.browsing.answers import (
    STATIC_ROUTES,
    Answer,
    Query,
    Route,
    json_answer,
    number_in,
    routed,
)
from wids.browsing.conditions import parse_conditions
from wids.browsing.pages import MAX_PAGE, Pages, field_rows, picture_fields
from wids.browsing.questions import PageScans, Questions
from wids.errors import printable
from wids.files.sizes import count_text, nbytes_text
from wids.looking.notebook import known_text
from wids.looking.preview import MAX_PAGE_NBYTES, Peekable, num_affordable
from wids.opening.glimpse import Glimpse
from wids.transport import urls

_MAX_KEPT: Final = 8
"""Shards whose searches are kept."""


class PeekPages:
    """The answers for shards of which some have no index. Safe to use from any thread.

    Args:
        peek: Any shard of them.
        python: What names the shards in Python, for people to copy.
    """

    def __init__(self, peek: Peekable, python: str = "shards") -> None:
        self._peek = peek
        self._python = python
        self._routes: dict[str, Route] = {
            **STATIC_ROUTES,
            "about": self._about,
            "shard": self._shard,
        }
        # One at a time: each may download a shard.
        self._indexing = threading.Lock()
        self._scans = PageScans()
        self._questions: dict[int, Questions] = {}
        self._lock = threading.Lock()

    def answer(self, path: str, query: Query) -> Answer:
        """Return status, media type and body for a path. Every error becomes an answer."""
        return routed(self._routes, path, query)

    def act(self, path: str, query: Query) -> Answer:
        """Do what a path such as ``shard/3/index`` names, to one shard."""
        return routed({"shard": self._act}, path, query)

    def close(self) -> None:
        """Stop what was started."""
        self._scans.close()

    def _act(self, rest: str, query: Query) -> Answer:
        digits, _, path = rest.partition("/")
        peek = self._numbered(digits)
        if path != "index":
            return self._pages(peek).act(path, query)
        with self._indexing:
            peek.make_index()
        return self._about_shard(peek)

    def _pages(self, peek: Peekable) -> Pages:
        # Made for each request, since more samples may be known each time.
        with self._lock:
            questions = self._questions.pop(peek.number, None) or Questions(peek, self._scans)
            self._questions[peek.number] = questions  # as the latest
            if len(self._questions) > _MAX_KEPT:
                del self._questions[next(iter(self._questions))]
        return Pages(peek, f"shard/{peek.number}/", questions=questions)

    def _about(self, _: str, __: Query) -> Answer:
        """Answer with what is known of all shards, from which nothing is read."""
        peek = self._peek
        return json_answer(
            {
                "name": peek.title,
                "num_samples": None,
                "num_shards": peek.num_shards,
                "size": None,
                "fields": [],
                "shard": peek.number,
                "command": peek.create_command,
            }
        )

    def _shard(self, rest: str, query: Query) -> Answer:
        """Answer for one shard, as for a dataset of its samples."""
        digits, _, path = rest.partition("/")
        peek = self._numbered(digits)
        name, _, more = path.partition("/")
        if name == "about":
            return self._about_shard(peek)
        if name == "samples":
            return self._samples(peek, query)
        if name == "sample" and more.isdecimal():
            return self._sample(peek, int(more), query)
        return self._pages(peek).answer(path, query)

    def _sample(self, peek: Peekable, index: int, query: Query) -> Answer:
        """Answer with a sample, after which others may follow that are not known yet."""
        peek.read_on(index + 1)
        status, kind, body = self._pages(peek).answer(f"sample/{index}", query)
        glimpse = peek.glimpse
        is_last = index == len(peek) - 1 and glimpse is not None and glimpse.can_continue
        if status != 200 or not isinstance(body, bytes) or not is_last or _selects(query):
            return status, kind, body
        return json_answer({**json.loads(body), "next": index + 1})

    def _about_shard(self, peek: Peekable) -> Answer:
        """Answer with what is known of a shard, after its beginning was read."""
        glimpse, stats = peek.glimpse, self._pages(peek).stats
        return json_answer(
            {
                "url": printable(urls.redact(peek.url)),
                **_what_is_known(peek),
                "cost": "" if glimpse is None else cost_text(glimpse),
                "fields": field_rows(stats) if peek.is_complete else [],
                "pictures": picture_fields(stats),
                "python": f"wids.peek({self._python}, {peek.number})",
            }
        )

    def _samples(self, peek: Peekable, query: Query) -> Answer:
        """Answer with cards from a position on, as many as can be shown without reading much."""
        start = max(number_in(query, "start", 0), 0)
        count = min(max(number_in(query, "count", 24), 1), MAX_PAGE)
        before = peek.num_read_nbytes
        peek.read_on(start + count)
        if _selects(query):
            return self._pages(peek).answer("samples", query)
        rest_nbytes = MAX_PAGE_NBYTES - (peek.num_read_nbytes - before)
        shown = max(num_affordable(peek, start, count, rest_nbytes), 1)
        status, kind, body = self._pages(peek).answer("samples", {**query, "count": str(shown)})
        if status != 200 or not isinstance(body, bytes):
            return status, kind, body
        answer: dict[str, Any] = json.loads(body)
        glimpse = peek.glimpse
        if glimpse is not None and glimpse.can_continue:
            answer["next"] = start + len(answer["cards"])
        # By the usual length: how many samples fit on that page is decided when it is shown.
        answer["previous"] = max(start - count, 0) if start else None
        return json_answer({**answer, **_what_is_known(peek)})

    def _numbered(self, digits: str) -> Peekable:
        if not digits.isdecimal() or len(digits) > 9 or int(digits) >= self._peek.num_shards:
            raise IndexError(
                f"expected a shard from 0 to {self._peek.num_shards - 1}, found {digits:.20}"
            )
        return self._peek.shard(int(digits))


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
