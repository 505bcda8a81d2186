"""Parse the shardlist of a JSON document piece by piece, in memory that does not grow with it."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

_PIECE_NBYTES: Final = 4 << 20
_MAX_VALUE_LENGTH: Final = 1 << 20
_SPACE: Final = re.compile(r"[ \t\n\r]*")

_decode: Final = json.JSONDecoder().raw_decode


class StreamedDocument:
    """A JSON object whose `shardlist` is a long list.

    Args:
        read: ``read(nbytes)``: the next bytes of the document in UTF-8, none at its end.

    Attributes:
        rest: The object without its shardlist; complete when all entries have been read.

    Raises:
        ValueError: It is not JSON, not an object with a shardlist, has a key twice, or long values.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self.rest: dict[str, Any] = {}
        self._read = read
        self._codec = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at, self._is_over = "", 0, False
        self._was_tried = False

    def entries(self) -> Iterator[Any]:
        """Yield the items of the shardlist, once."""
        has_shards, rest_length = False, 0
        for _ in self._items("{", "}"):
            key = self._value()
            if self._next() != ":" or not isinstance(key, str):
                raise ValueError("expected a key and its value")
            self._at += 1
            if key in self.rest or (has_shards and key == "shardlist"):
                raise ValueError(f"found the key {key!r} twice")
            if key == "shardlist" and self._next() == "[":
                has_shards = True
                yield from self._list()
            else:
                self.rest[key] = value = self._value()
                rest_length += len(key) + len(json.dumps(value))
                if rest_length > _MAX_VALUE_LENGTH:
                    raise ValueError("expected a document whose shardlist has most of its bytes")
        if self._next():
            raise ValueError("found text after the document")
        if not has_shards:
            raise ValueError("expected a shardlist")

    def _list(self) -> Iterator[Any]:
        for _ in self._items("[", "]"):
            found = self._many()
            if found:
                yield from found
            else:
                yield self._value()

    def _items(self, first: str, last: str) -> Iterator[None]:
        """Yield at the beginning of each item between two brackets."""
        if self._next() != first:
            raise ValueError(f"expected {first}")
        self._at += 1
        if self._next() == last:
            self._at += 1
            return
        while True:
            yield
            mark = self._next()
            self._at += 1
            if mark == last:
                return
            if mark != ",":
                raise ValueError(f"expected a comma or {last}")

    def _many(self) -> list[Any]:
        """Return the next objects of a list that are complete in the piece, or none.

        All at once takes a third of the time. The end of the last one is a guess, which is wrong
        inside nested values; then the text is not a list, and they are parsed one by one.
        """
        cut = -1 if self._was_tried else self._text.rfind("},", self._at)
        self._was_tried = True  # a wrong guess costs the time of a piece, once for each piece
        if cut < 0:
            return []
        try:
            found: list[Any] = json.loads(f"[{self._text[self._at : cut + 1]}]")
        except ValueError:
            return []
        self._at = cut + 1
        return found

    def _value(self) -> Any:
        self._next()
        while True:
            try:
                value, end = _decode(self._text, self._at)
            except ValueError:
                # It may be incomplete, as a number at the end of a piece may be.
                if self._is_over or len(self._text) - self._at > _MAX_VALUE_LENGTH:
                    raise
            else:
                if end < len(self._text) or self._is_over:
                    self._at = end
                    return value
            self._more()

    def _next(self) -> str:
        """Skip white space; return the next character, or none at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = self._at if match is None else match.end()
            if self._at < len(self._text) or self._is_over:
                return self._text[self._at : self._at + 1]
            self._more()

    def _more(self) -> None:
        data = self._read(_PIECE_NBYTES)
        self._is_over = not data
        self._text = self._text[self._at :] + self._codec.decode(data, self._is_over)
        self._at, self._was_tried = 0, False
