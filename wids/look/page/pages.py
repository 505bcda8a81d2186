"""Answer the requests of the pages of `wids browse`, by path and query, for a dataset.

It reads only what is shown: the small fields of the samples on a page, the fields of one sample, or
the one field that is requested. A scan reads more, but only after a user has started it.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any, Final

from wids.errors import printable
from wids.look import preview
from wids.look.damage import damage_text, damaged_fields
from wids.look.field_stats import FieldStats, field_sizes, preferred
from wids.look.html import paragraph_html
from wids.look.page.answers import (
    Answer,
    FieldBytes,
    Query,
    Route,
    Site,
    number_in,
    parsed_number,
)
from wids.look.page.questions import Questions
from wids.look.page.sample_rows import field_row, link_of, picture_entry
from wids.look.pictures import THUMBNAIL_PIXELS, Thumbnail, decoded, poster, thumbnail
from wids.look.preview import Browsable
from wids.look.text import class_names, share_text, total_of
from wids.shards.field_file import open_field
from wids.shards.fields.codecs import IMAGE_EXTENSIONS, extension
from wids.shards.fields.media import media_kind, played_type
from wids.shards.tars.index import ShardIndex
from wids.storage.sizes import nbytes_text
from wids.storage.transport import urls

MAX_PAGE: Final = 120
"""Maximum number of samples on a page."""
_MAX_SHOWN_NBYTES: Final = 30_000_000
_MAX_POSTER_NBYTES: Final = 5_000_000
_NO_PICTURE: Final = b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")
"""A GIF of one transparent pixel."""
_MAX_CARD_PIXELS: Final = 1024
_MAX_ZOOM_PIXELS: Final = 4096


class Pages(Site):
    """The answers for a dataset. Safe to use from any thread.

    Args:
        dataset: The dataset, which is not a view.
        prefix: What the paths of its fields begin with, in links.
        python: Code that opens the dataset in Python, for people to copy.
        questions: The searches and counts that were started; None for none so far.
        actions: Further actions.
    """

    def __init__(
        self,
        dataset: Browsable,
        prefix: str = "",
        python: str = "",
        questions: Questions | None = None,
        actions: Mapping[str, Route] | None = None,
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
        all_actions: dict[str, Route] = {
            "hits": lambda _, query: self._questions.search(query),
            "column": lambda _, query: self._questions.count(query),
            "stop": lambda kind, _: self._questions.stop(kind),
            **(actions or {}),
        }
        super().__init__(routes, all_actions)

    def close(self) -> None:
        """Stop all scans."""
        self._questions.close()

    @property
    def stats(self) -> list[FieldStats]:
        """The fields of the dataset, computed once."""
        # Two requests may both compute them at the start; the results are equal, so no lock is
        # needed.
        if self._stats is None:
            self._stats = preview.field_stats(self._dataset)
        return self._stats

    def _about(self, _: str, __: Query) -> dict[str, Any]:
        """Answer with the name, size and fields of the dataset."""
        shards = self._dataset.spec.shards
        nbytes = total_of([shard.nbytes for shard in shards])
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
                    "audio": card.audio and link_of(self._prefix, "field", index, card.audio),
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
        # Audio and video are left to the player, which requests the parts that it plays.
        shown = [f for f, n in sizes.items() if n <= _MAX_SHOWN_NBYTES and not media_kind(f)]
        with self._dataset.only(shown) as selection:
            sample = selection[index]
        key = printable(shard_index.key(local_index))
        stem = key.rpartition("/")[2]
        classes = class_names(self._dataset.spec)
        images = [field for field in sizes if extension(field) in IMAGE_EXTENSIONS]
        order = [each.field for each in self.stats]
        rows = "".join(
            field_row(
                field,
                nbytes,
                sample.get(field),
                link=link_of(self._prefix, "field", index, field),
                file_name=stem + printable(field),
                classes=classes,
                poster=self._poster_of(index, [field]),
                facts=preview.facts_of_field(self._dataset, index, field),
            )
            for field, nbytes in sizes.items()
        )
        damage = damage_text(damaged_fields(shard_index, local_index, sample))
        place = self._questions.selection(query).place(index)
        return {
            "index": index,
            "key": key,
            "html": f'{paragraph_html("bad", damage)}<table class="fields">{rows}</table>',
            "pictures": [
                picture_entry(field, sample.get(field), sizes[field], self._zoom_link(index, field))
                for field in preferred(images, order, query.get("picture", ""))
            ],
            "shard": printable(urls.redact(self._dataset.spec.shards[number].url)),
            "local_index": local_index,
            **place._asdict(),
        }

    def _zoom_link(self, index: int, field: str) -> str:
        return f"{link_of(self._prefix, 'picture', index, field)}?pixels={_MAX_ZOOM_PIXELS}"

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
        """Return where the picture of the first film among some fields is served, or ``""``."""
        films = [field for field in fields if media_kind(field) == "video"]
        has_decoder = films and find_spec("av") is not None
        return link_of(self._prefix, "poster", index, films[0]) if has_decoder else ""

    def _poster(self, rest: str, _: Query) -> Answer:
        """Answer with a picture of a film, made from a few megabytes of it at most."""
        index, field = self._sample_and_field(rest)
        if media_kind(field) != "video":
            raise KeyError(f"{field}: expected a field with a film")
        with self._dataset.only([field]) as selection:
            film = open_field(selection.reader, selection.locate(index), field, _MAX_POSTER_NBYTES)
            try:
                picture = poster(film, _MAX_CARD_PIXELS)
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
                shard = selection.reader.open(number, local=False)
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
    """Return the fields that are pictures, of which a card shows one."""
    return [each.field for each in stats if extension(each.field) in IMAGE_EXTENSIONS]
