"""Make cards of samples, for notebooks and pages alike.

Fields and their sizes come from indexes. Of a sample only small pictures and texts are read, by
byte range if the shard is remote. No whole shard is downloaded.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from wids.errors import WidsError, printable
from wids.look import field_facts
from wids.look.html import card_html
from wids.look.text import class_names, shortened
from wids.shards.field_file import open_field
from wids.shards.fields.codecs import CAPTION_EXTENSIONS, extension, media_kind, played_type
from wids.shards.glimpse import Glimpse
from wids.shards.policy import Wanted
from wids.shards.sample_access import ReadableDataset, compute_field_stats, index_of
from wids.shards.tars.headers import BLOCK_NBYTES
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import read_or_errors

MAX_PAGE_NBYTES: Final = 8_000_000
"""Bytes to read for a page of a shard that may have no index."""
_MAX_HEADER_NBYTES: Final = 1_000_000
"""Most bytes of audio or video to read for its length and rate; videos have them at their end."""
_LENGTHS_S: Final = 1.0
"""Longest time for the lengths of audio and video on a page of cards."""
_BEGINNING_NBYTES: Final = 3_000
"""Bytes of a long caption that fill a card in any language."""


class Peekable(ReadableDataset, Protocol):
    """What notebooks and pages need of a shard that may have no index: a dataset of its samples."""

    number: int
    title: str

    @property
    def num_shards(self) -> int:
        """Number of shards in the dataset."""

    @property
    def url(self) -> str:
        """The URL of the shard."""

    @property
    def create_command(self) -> str:
        """The command that makes an index of all shards."""

    @property
    def is_complete(self) -> bool:
        """Whether these are all samples of the shard."""

    @property
    def glimpse(self) -> Glimpse | None:
        """What was found in the shard; None if it has an index."""

    @property
    def num_read_nbytes(self) -> int:
        """Bytes that were read to find samples; 0 if the shard has an index."""

    def shard(self, number: int) -> Peekable:
        """Return the samples of another shard."""

    def read_on(self, num_samples: int) -> int:
        """Find more samples, at a limited cost, and return how many are known."""

    def make_index(self) -> None:
        """Make the index of the shard, and leave it in the cache folder."""


def num_affordable(
    peek: Peekable, start: int, count: int, limit_nbytes: int = MAX_PAGE_NBYTES
) -> int:
    """Return how many samples from a start on can be shown within a limit of bytes to read.

    It is at least one, if there is one.
    """
    index, glimpse = peek.reader.index(0), peek.glimpse
    if index is None or (glimpse is None and peek.reader.is_local(0)):
        return count
    order = [each.field for each in compute_field_stats([index])]
    stop, nbytes = min(start + count, len(index)), 0
    for local_index in range(start, stop):
        members = index.members(local_index)
        for field in field_facts.card_fields(field_facts.field_sizes(index, local_index), order):
            size = int(index.sizes[members[field]])
            at = int(index.blocks[members[field]]) * BLOCK_NBYTES
            if glimpse is None or not glimpse.has(at, at + size):
                nbytes += size
        if nbytes > limit_nbytes and local_index > start:
            return local_index - start
    return max(stop - start, 0)


@dataclass(frozen=True)
class Card:
    """A sample as HTML.

    Attributes:
        html: The card.
        problem: Why the sample cannot be read, or what is damaged, in a sentence that the card
            leaves out; or ``""``.
        audio: The field with audio that a browser can play; or ``""``.
    """

    html: str
    problem: str = ""
    audio: str = ""


def cards(
    dataset: ReadableDataset,
    indices: Sequence[int],
    order: Sequence[str],
    *,
    picture: str = "",
    pixels: int = field_facts.THUMBNAIL_PIXELS,
    poster_of: Callable[[int, Iterable[str]], str] = lambda *_: "",
) -> list[Card]:
    """Return samples as cards, in order. Only what a card shows is read.

    Args:
        dataset: The dataset.
        indices: The samples.
        order: All fields of the dataset, those to prefer first.
        picture: The picture to prefer to all others.
        pixels: Maximum width and height of pictures.
        poster_of: Returns the URL of a picture for a sample without one, from its index and the
            fields that are not read; ``""`` for none.
    """
    card_of: dict[int, Card] = {}
    classes = class_names(dataset.spec)
    groups: dict[tuple[str, ...], list[int]] = {}
    other_fields: dict[int, dict[str, int]] = {}
    for index in indices:
        try:
            sizes = sample_sizes(dataset, index) or {}
        except WidsError as error:
            card_of[index] = _problem_card(index, error)
            continue
        shown = tuple(field_facts.card_fields(sizes, order, picture))
        other_fields[index] = {f: size for f, size in sizes.items() if f not in shown}
        groups.setdefault(shown, []).append(index)
    deadline_s = time.monotonic() + _LENGTHS_S
    # One batch for all samples that show the same fields, so that near ranges are read together.
    for shown, group in groups.items():
        with dataset.only(shown) as selection:
            samples = read_or_errors(selection.__getitems__, group, WidsError)
            for index, sample in zip(group, samples, strict=True):
                if isinstance(sample, Exception):
                    card_of[index] = _problem_card(index, sample)
                    continue
                damaged, others = damage_of(dataset, index, sample), other_fields[index]
                media = next(filter(media_kind, others), "")
                is_in_time = bool(media) and time.monotonic() < deadline_s
                facts, reason = "", ""
                try:
                    facts = facts_of_field(dataset, index, media) if is_in_time else ""
                except ValueError as error:
                    reason = shortened(printable(f"{media} {error}"), 200)
                html = card_html(
                    {**sample, **_beginning(dataset, index, others, shown)},
                    others,
                    f"damaged: {', '.join(damaged)}" if damaged else reason,
                    pixels=pixels,
                    classes=classes,
                    poster=poster_of(index, others),
                    lengths={media: facts.partition(",")[0]} if facts else {},
                )
                audio = next((f for f in others if (played_type(f) or "").startswith("audio")), "")
                card_of[index] = Card(html, field_facts.damage_text(damaged), audio)
    return [card_of[index] for index in indices]


def _beginning(
    dataset: ReadableDataset, index: int, others: Iterable[str], shown: Iterable[str]
) -> dict[str, bytes]:
    """Return the beginning of a caption that is too long to be read, if there is no other one."""
    has_caption = any(extension(field) in CAPTION_EXTENSIONS for field in shown)
    long = next((field for field in others if extension(field) in CAPTION_EXTENSIONS), None)
    if has_caption or long is None:
        return {}
    try:
        with dataset.only([long]) as selection:
            number, local_index = selection.locate(index)
            shard = selection.reader.open(number, Wanted.PART)
            data = shard.read_part(local_index, long, 0, _BEGINNING_NBYTES)
    except WidsError:  # what can be read of the sample is shown
        return {}
    return {long: data.decode("utf-8", "ignore").encode()}  # it may end within a character


def facts_of_field(dataset: ReadableDataset, index: int, field: str) -> str:
    """Return the length and rate of audio or video by its header; ``""`` for others.

    Also ``""`` if its shard is not local, which would cost requests, or if its decoder is not
    installed.

    Raises:
        ValueError: It cannot be decoded, with the reason.
    """
    if not (media_kind(field) and dataset.reader.is_local(dataset.locate(index)[0])):
        return ""
    with dataset.only([field]) as selection:
        place = selection.locate(index)
        return field_facts.facts_of_file(
            field, lambda: open_field(selection.reader.open, place, field, _MAX_HEADER_NBYTES)
        )


def damage_of(dataset: ReadableDataset, index: int, sample: Any) -> list[str]:
    """Return the fields of an undecoded sample that do not match the index of its shard."""
    _, local_index, shard_index = located(dataset, index)
    return (
        [] if shard_index is None else field_facts.damaged_fields(shard_index, local_index, sample)
    )


def problems_of(shown: Iterable[Card]) -> dict[str, int]:
    """Return the problems of cards, each once, with the number of samples that have it."""
    return Counter(card.problem for card in shown if card.problem)


def sample_sizes(dataset: ReadableDataset, index: int) -> dict[str, int] | None:
    """Return the fields of a sample with their lengths; None if its shard has no index."""
    _, local_index, shard_index = located(dataset, index)
    return None if shard_index is None else field_facts.field_sizes(shard_index, local_index)


def located(dataset: ReadableDataset, index: int) -> tuple[int, int, ShardIndex | None]:
    """Return the number of a sample's shard, its position there, and the index of the shard."""
    number, local_index = dataset.locate(index)
    return number, local_index, index_of(dataset, number, [local_index])


def _problem_card(index: int, error: Exception) -> Card:
    html = card_html({"__index__": index}, problem="cannot be read")
    return Card(html, shortened(printable(str(error)), 500))
