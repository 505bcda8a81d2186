"""Answer the requests of the pages of `wids browse`, by path and query.

Only what is shown is read: the small fields of the samples on a page, the fields of one sample, or
the one field that is requested. A scan reads more, but only after a user has started it.

In shards without an index, samples are addressed by the number of a shard and the position in it,
since the lengths of the previous shards are unknown. Each shard is shown like a dataset, by the
same code. A request to a shard reads its beginning, or as much more as one look may cost.
"""

from __future__ import annotations

import threading
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from operator import itemgetter
from typing import Any, Final
from urllib.parse import quote

from wids.errors import message_of, printable
from wids.look import preview
from wids.look.field_facts import (
    THUMBNAIL_PIXELS,
    Thumbnail,
    damage_text,
    damaged_fields,
    decoded,
    field_sizes,
    poster,
    preferred,
    thumbnail,
)
from wids.look.html import data_url, escaped, field_html, paragraph_html
from wids.look.notebook import known_text
from wids.look.page.answers import Answer, FieldBytes, Query, Route, Site, number_in, parsed_number
from wids.look.page.questions import PageScans, Questions, conditions_in
from wids.look.text import class_names, share_text, shortened, value_text
from wids.shards.field_file import open_field
from wids.shards.fields.codecs import IMAGE_EXTENSIONS, extension, media_kind, played_type
from wids.shards.glimpse import Glimpse
from wids.shards.policy import Wanted
from wids.shards.sample_access import FieldStats, ReadableDataset, field_stats
from wids.shards.tars.headers import to_bytes
from wids.shards.tars.index import ShardIndex
from wids.storage.reading_threads import latest
from wids.storage.remote_lengths import known_sum
from wids.storage.sizes import count_text, nbytes_text
from wids.storage.transport import urls

_PICTURE_PIXELS: Final = 1200


def _player(field: str, link: str, poster: str, save: str) -> str:
    """Return the player of audio or video, with what the page shows where it cannot play it."""
    tag, label = media_kind(field), escaped(printable(field))
    if not tag:
        return ""
    is_played = played_type(field) is not None
    picture = f'<img alt="" loading="lazy" src="{poster}">' if poster else ""
    unplayed = (
        f'<div class="unplayed"{" hidden" * is_played}>{picture}<p>This browser cannot '
        f"play {label}. <a {save}>Save it</a> to play it with another program.</p></div>"
    )
    shown = f' poster="{poster}"' if poster else ""
    player = f'<{tag} controls preload="none" src="{link}"{shown} aria-label="{label}"></{tag}>'
    return player * is_played + unplayed


def _body(field: str, data: bytes | None, classes: Sequence[str]) -> str:
    if data is None:
        return "<small>too large to show</small>"
    try:
        if extension(field) in IMAGE_EXTENSIONS:  # which is shown elsewhere
            text, size = value_text(field, data), nbytes_text(len(data))
            return f"<small>{escaped(text.removesuffix(f', {size}'))}</small>"  # which is above it
        return field_html(field, data, with_size=False, classes=classes)
    except Exception as error:  # noqa: BLE001 - one odd field must not hide the others
        text = shortened(printable(f"cannot be shown: {message_of(error)}"), 300)
        return f'<span class="bad">{escaped(text)}</span>'


MAX_PAGE: Final = 120
"""Maximum number of samples on a page."""
_MAX_SHOWN_NBYTES: Final = 30_000_000
_MAX_SAMPLE_NBYTES: Final = 60_000_000
"""Bytes of the fields of a sample that are shown, the small ones first."""
_FEW_NBYTES: Final = 1_000_000
"""Samples with more bytes to show are made one at a time."""
_MAX_POSTER_NBYTES: Final = 5_000_000
_NO_PICTURE: Final = b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")
"""A GIF of one transparent pixel."""
_MAX_CARD_PIXELS: Final = 1024
_MAX_ZOOM_PIXELS: Final = 4096


_one_large: Final = threading.Lock()
"""Held while a large sample is in memory."""


def _shown_fields(sizes: Mapping[str, int]) -> list[str]:
    """Return the fields of a sample that are shown with it, in its order, within limits of bytes.

    Audio and video are left to the player, which requests the parts that it plays.
    """
    left, shown = _MAX_SAMPLE_NBYTES, set[str]()
    for field, nbytes in sorted(sizes.items(), key=itemgetter(1)):
        if nbytes <= min(left, _MAX_SHOWN_NBYTES) and not media_kind(field):
            shown.add(field)
            left -= nbytes
    return [field for field in sizes if field in shown]


class Pages(Site):
    """The answers for a dataset. Safe to use from any thread.

    Args:
        dataset: The dataset, which is not a view.
        prefix: What the paths of its fields begin with, in links.
        python: Code that opens the dataset in Python, for people to copy.
        questions: The searches and counts that were started; None for none so far.
    """

    def __init__(
        self,
        dataset: ReadableDataset,
        prefix: str = "",
        python: str = "",
        questions: Questions | None = None,
    ) -> None:
        self._dataset = dataset
        self._prefix = prefix
        self._python = python
        self._questions = questions or Questions(dataset)
        self._stats: list[FieldStats] | None = None
        routes: dict[str, Route] = {
            "about": self._about,
            "samples": lambda _, query: self.samples(query),
            "sample": self.sample,
            "find": lambda _, query: {"index": dataset.find_key(query.get("key", ""))},
            "field": self._field,
            "picture": self._picture,
            "poster": self._poster,
            "hits": lambda _, query: self._questions.hits(query),
            "columns": lambda _, __: self._questions.column_names(),
            "column": lambda _, query: self._questions.column(query),
        }
        actions: dict[str, Route] = {
            "hits": lambda _, query: self._questions.search(query),
            "column": lambda _, query: self._questions.column(query, starts=True),
            "stop": lambda kind, _: self._questions.stop(kind),
        }
        super().__init__(routes, actions)

    def close(self) -> None:
        """Stop all scans."""
        self._questions.close()

    @property
    def stats(self) -> list[FieldStats]:
        """The fields of the dataset, computed once."""
        # Two requests may both compute them at the start; the results are equal, so no lock is
        # needed.
        if self._stats is None:
            self._stats = field_stats(self._dataset)
        return self._stats

    def _about(self, _: str, __: Query) -> dict[str, Any]:
        """Answer with the name, size and fields of the dataset."""
        shards = self._dataset.spec.shards
        nbytes = known_sum(shard.nbytes for shard in shards)
        return {
            "name": printable(self._dataset.dataset_name or "dataset"),
            "num_samples": len(self._dataset),
            "num_shards": len(shards),
            "size": None if nbytes is None else nbytes_text(nbytes),
            "fields": field_rows(self.stats),
            "pictures": picture_fields(self.stats),
            "python": self._python,
        }

    def samples(self, query: Query) -> dict[str, Any]:
        """Return cards from a position on: of all samples, or of those that were found."""
        start, count = page_in(query)
        selection = self._questions.selection(query)
        indices = selection.page(start, count)
        pixels = number_in(query, "pixels", THUMBNAIL_PIXELS)
        cards = preview.cards(
            self._dataset,
            indices,
            [each.field for each in self.stats],
            picture=query.get("picture", ""),
            pixels=min(max(pixels, 32), _MAX_CARD_PIXELS),
            poster_of=self._poster_of,
        )
        stop = start + len(indices)
        return {
            "cards": [
                {
                    "index": index,
                    "html": card.html,
                    "audio": card.audio and self._link("field", index, card.audio),
                }
                for index, card in zip(indices, cards, strict=True)
            ],
            "problems": preview.problems_of(cards),
            "names": self._questions.names(query),
            "python": self._questions.code(query),
            "num_found": len(selection),
            "next": stop if stop < len(selection) else None,
            "previous": max(0, start - count) if start else None,
        }

    def sample(self, rest: str, query: Query) -> dict[str, Any]:
        """Return one sample: its pictures, and its fields as rows of a table."""
        index = self._index(rest)
        number, local_index, shard_index = self._located(index)
        sizes = field_sizes(shard_index, local_index)
        shown = _shown_fields(sizes)
        is_large = sum(sizes[field] for field in shown) > _FEW_NBYTES
        with _one_large if is_large else nullcontext(), self._dataset.only(shown) as selection:
            sample = selection[index]
            key = printable(shard_index.key(local_index))
            damage = damage_text(damaged_fields(shard_index, local_index, sample))
            place = self._questions.selection(query).place(index)
            return {
                "index": index,
                "key": key,
                "shard": printable(urls.redact(self._dataset.spec.shards[number].url)),
                "local_index": local_index,
                **self._shown(index, key, sizes, sample, damage, query.get("picture", "")),
                **place._asdict(),
            }

    def _shown(
        self,
        index: int,
        key: str,
        sizes: Mapping[str, int],
        sample: Mapping[str, Any],
        damage: str,
        picture: str,
    ) -> dict[str, Any]:
        """Return the fields of a sample as rows of a table, and its pictures, a preferred first."""
        stem = key.rpartition("/")[2]
        images = [field for field in sizes if extension(field) in IMAGE_EXTENSIONS]
        order = [each.field for each in self.stats]
        rows = "".join(
            self._field_row(index, field, nbytes, sample.get(field), stem)
            for field, nbytes in sizes.items()
        )
        return {
            "html": f'{paragraph_html("bad", damage)}<table class="fields">{rows}</table>',
            "pictures": [
                self._picture_entry(index, field, sizes[field], sample.get(field))
                for field in preferred(images, order, picture)
            ],
        }

    def _field_row(self, index: int, field: str, nbytes: int, data: bytes | None, stem: str) -> str:
        """Return a field as a row of a table: its name, its size, a link to save it, and its value.

        Args:
            index: The sample.
            field: The name of the field.
            nbytes: Its length.
            data: Its bytes; None if they were not read.
            stem: The beginning of the name of the file that it is saved as.
        """
        link, poster = self._link("field", index, field), self._poster_of(index, [field])
        reason = facts = ""
        try:
            facts = preview.facts_of_field(self._dataset, index, field)
        except ValueError as error:
            reason = f'<p class="bad">{escaped(printable(str(error)))}</p>'
        label = escaped(printable(field))
        size = escaped(", ".join(filter(None, (nbytes_text(nbytes), facts))))
        save = f'href="{link}?save=1" download="{escaped(stem + printable(field))}"'
        shown = reason + _player(field, link, poster, save)
        shown = shown or _body(field, data, class_names(self._dataset.spec))
        return (
            f'<tr><th scope="row"><code>{label}</code><small>{size}</small>'
            f'<a {save} aria-label="save {label}">save</a></th><td>{shown}</td></tr>'
        )

    def _picture_entry(
        self, index: int, field: str, nbytes: int, data: bytes | None
    ) -> dict[str, Any]:
        """Return a picture of a sample as the page shows it, or why it cannot be shown.

        Args:
            index: The sample.
            field: The name of the field.
            nbytes: Its length.
            data: Its bytes; None if they were not read.
        """
        entry: dict[str, Any] = {"field": field, "label": printable(field), "problem": ""}
        if data is None:
            text = f"{nbytes_text(nbytes)}: too large to show; save it instead"
            return {**entry, "problem": text}
        try:
            small = thumbnail(data, _PICTURE_PIXELS)
        except ValueError as error:
            reason = shortened(printable(str(error)), 300)
            text = f"not a picture that can be shown, {nbytes_text(nbytes)}"
            return {**entry, "problem": f"{text}: {reason}"}
        is_whole = max(small.width, small.height) <= _PICTURE_PIXELS
        larger = f"{self._link('picture', index, field)}?pixels={_MAX_ZOOM_PIXELS}"
        return {
            **entry,
            "src": data_url(small.data, small.media_type),
            "larger": "" if is_whole else larger,
            "width": small.width,
            "height": small.height,
            "text": small.description,
        }

    def _picture(self, rest: str, query: Query) -> Answer:
        """Answer with a picture, encoded again, larger than on a card."""
        index, field = self._sample_and_field(rest)
        _, local_index, shard_index = self._located(index)
        nbytes = field_sizes(shard_index, local_index).get(field)
        if extension(field) not in IMAGE_EXTENSIONS or nbytes is None or nbytes > _MAX_SHOWN_NBYTES:
            raise KeyError(f"sample {index} has no picture {field} to show")
        pixels = min(max(number_in(query, "pixels", _MAX_ZOOM_PIXELS), 32), _MAX_ZOOM_PIXELS)

        def small() -> Thumbnail:
            # Read when its turn has come: those that wait have no bytes in memory.
            with self._dataset.only([field]) as selection:
                return thumbnail(bytes(selection[index][field]), pixels)

        picture = decoded(small)
        return 200, picture.media_type, picture.data

    def _poster_of(self, index: int, fields: Iterable[str]) -> str:
        """Return where the picture of the first video among some fields is served, or ``""``."""
        video = next((field for field in fields if media_kind(field) == "video"), "")
        has_poster = video and find_spec("av") is not None
        return self._link("poster", index, video) if has_poster else ""

    def _link(self, kind: str, index: int, field: str) -> str:
        """Return the relative URL of a field of a sample."""
        # From the stored bytes, since `quote` refuses lone surrogates; and with no safe characters,
        # because a slash in a field would end the name.
        return f"{self._prefix}{kind}/{index}/{quote(to_bytes(field), safe='')}"

    def _poster(self, rest: str, _: Query) -> Answer:
        """Answer with a picture of a video, made from a few megabytes of it at most."""
        index, field = self._sample_and_field(rest)
        if media_kind(field) != "video":
            raise KeyError(f"{field}: expected a field with video")
        with self._dataset.only([field]) as selection:
            place = selection.locate(index)
            video = open_field(selection.reader.open, place, field, _MAX_POSTER_NBYTES)
            try:
                picture = poster(video, _MAX_CARD_PIXELS)
            except ValueError:  # the browser asked for a picture: an empty one, and no error
                return 200, "image/gif", _NO_PICTURE
        return 200, picture.media_type, picture.data

    def _field(self, rest: str, query: Query) -> Answer:
        """Answer with the bytes of a field: audio and video to play, all others to save."""
        index, field = self._sample_and_field(rest)
        number, local_index = self._dataset.locate(index)
        sizes = preview.sample_sizes(self._dataset, index) or {}
        if field not in sizes:
            raise KeyError(f"sample {index} has no field {field} to show")

        def read(start: int, stop: int) -> bytes:
            # Opened for each piece: a player can pause for minutes between two of them, and a copy
            # that is open cannot be evicted (CACHE-7).
            with self._dataset.only([field]) as selection:
                shard = selection.reader.open(number, Wanted.PART)
                return shard.read_part(local_index, field, start, stop)

        # Only audio and video get a type of their own. Anything else, HTML or SVG for example,
        # would be run by a browser under this origin (SEC-13).
        kind = None if "save" in query else played_type(field)
        return 200, kind or "application/octet-stream", FieldBytes(sizes[field], read)

    def _sample_and_field(self, rest: str) -> tuple[int, str]:
        digits, _, field = rest.partition("/")
        return self._index(digits), field

    def _located(self, index: int) -> tuple[int, int, ShardIndex]:
        number, local_index, shard_index = preview.located(self._dataset, index)
        if shard_index is None:
            raise ValueError(f"shard {number} has no index; `wids create` makes an index")
        return number, local_index, shard_index

    def _index(self, text: str) -> int:
        index = parsed_number(text, "sample")
        if not 0 <= index < len(self._dataset):
            raise IndexError(f"expected an index from 0 to {len(self._dataset) - 1}, found {index}")
        return index


def page_in(query: Query) -> tuple[int, int]:
    """Return where a page begins, and how many samples it has at most."""
    return max(number_in(query, "start", 0), 0), min(
        max(number_in(query, "count", 24), 1), MAX_PAGE
    )


def field_rows(stats: Iterable[FieldStats]) -> list[dict[str, str]]:
    """Return fields as the page lists them."""
    return [
        {
            "name": each.field,
            "label": printable(each.field),
            "share": share_text(each.share),
            "size": nbytes_text(each.median_nbytes),
        }
        for each in stats
    ]


def picture_fields(stats: Iterable[FieldStats]) -> list[str]:
    """Return the fields that are pictures; a card shows one of them."""
    return [each.field for each in stats if extension(each.field) in IMAGE_EXTENSIONS]


_MAX_KEPT: Final = 8
"""Shards whose searches are kept."""


class PeekPages(Site):
    """The answers for shards, some of which have no index. Safe to use from any thread.

    Args:
        peek: Any of the shards.
        python: Code that names the shards in Python, for people to copy.
    """

    def __init__(self, peek: preview.Peekable, python: str = "shards") -> None:
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
        self, peek: preview.Peekable, python: str, questions: Questions, indexing: threading.Lock
    ) -> None:
        super().__init__(peek, f"shard/{peek.number}/", python, questions)
        self._actions["index"] = self._index_shard
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
        rest_nbytes = preview.MAX_PAGE_NBYTES - (peek.num_read_nbytes - before)
        shown = max(preview.num_affordable(peek, start, count, rest_nbytes), 1)
        answer = super().samples({**query, "count": str(shown)})
        if _can_continue(peek):
            answer["next"] = start + len(answer["cards"])
        # By the usual length: how many samples fit on that page is decided when it is shown.
        answer["previous"] = max(start - count, 0) if start else None
        return {**answer, **_what_is_known(peek)}


def _path_in(rest: str) -> str:
    """Return the path that follows the number of a shard."""
    return rest.partition("/")[2]


def _can_continue(peek: preview.Peekable) -> bool:
    """Return whether a shard may have more samples than those that are known."""
    glimpse = peek.glimpse
    return glimpse is not None and glimpse.can_continue


def _selects(query: Query) -> bool:
    """Return whether a query asks for other samples than all, or in another order."""
    return bool(conditions_in(query) or query.get("seed"))


def _what_is_known(peek: preview.Peekable) -> dict[str, Any]:
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
