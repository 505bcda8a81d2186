"""Describe values of fields, samples, specs and datasets as text for a person at a terminal.

Nothing is read here: bytes go in, text comes out. Whatever the bytes are, the text has no character
that a terminal would interpret as a command.
"""

from __future__ import annotations

import io
import json
import math
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from wids.errors import SampleError, printable
from wids.look.field_facts import description_of, facts_of_file
from wids.shards.fields.codecs import IMAGE_EXTENSIONS, extension
from wids.shards.fields.decode import Decoder
from wids.shards.fields.images import opened_image
from wids.shards.specs.model import DatasetSpec, class_name
from wids.storage.remote_lengths import known_sum
from wids.storage.sizes import first_of, nbytes_text
from wids.storage.transport import urls

MAX_SHOWN_NBYTES: Final = 2_000_000
"""Longer values, compressed or decompressed, are not decoded for display."""

PREVIEW_DECODER: Final = Decoder(images="PIL", max_nbytes=MAX_SHOWN_NBYTES)
"""Decodes what is displayed. It refuses fields that decompress to more than the limit."""

_MIN_VALUE_WIDTH: Final = 20
"""Columns that a value always gets, even in a window too narrow for its field name."""

_EIGHTHS: Final = "▏▎▍▌▋▊▉█"
_NUM_EIGHTHS: Final = len(_EIGHTHS)

_MAX_NAMED_CLASSES: Final = 10
_MAX_FIRST_VALUES: Final = 3

_WIDE: Final = ("W", "F")
_MARKS: Final = ("Mn", "Me", "Cf")
"""Categories of characters that take no column: accents, joiners."""


def sample_text(sample: Mapping[str, Any], width: int = 80, classes: Sequence[str] = ()) -> str:
    """Return a sample of undecoded fields as text: one line per field, cut at the width.

    Args:
        sample: The sample.
        width: Most columns of a line.
        classes: Names of classes, by their numbers.
    """
    names = [printable(name) for name in sample]
    column = max(map(text_width, names), default=0)
    value_width = max(width - column - 1, _MIN_VALUE_WIDTH)
    texts = (labelled(field, value_text(field, value), classes) for field, value in sample.items())
    return "\n".join(
        f"{padded(name, column)} {shortened(text, value_width)}"
        for name, text in zip(names, texts, strict=True)
    )


def value_text(field: str, value: Any, *, is_brief: bool = False) -> str:
    """Describe an undecoded field in one line: text as it is, pictures and arrays by their size.

    With ``is_brief``, an object is described by its first plain values.
    """
    if not field.startswith("."):
        return printable(str(value))
    data = bytes(value)
    size = nbytes_text(len(data))
    try:
        if extension(field) in IMAGE_EXTENSIONS:
            image = opened_image(data)
            return f"{description_of(image)}, {size}"
        try:
            facts = facts_of_file(field, lambda: io.BytesIO(data))
        except ValueError as error:
            facts = printable(str(error))
        # After images, audio and video: only their headers are read, whatever their length.
        if facts or len(data) > MAX_SHOWN_NBYTES:
            return f"{facts or printable(repr(data[:60]))}, {size}"
        decoded = PREVIEW_DECODER({field: data})[field]
        if is_brief and isinstance(decoded, str):
            decoded = decoded.rstrip("\r\n")  # which most files of text end with
    except SampleError as error:
        return printable(f"{size} that cannot be decoded: {error}")
    except Exception as error:  # noqa: BLE001 - Pillow raises many types for a corrupt picture
        return printable(f"{size} that cannot be decoded: {type(error).__name__}: {error}")
    brief = _first_values(decoded) if is_brief and isinstance(decoded, Mapping) else ""
    is_plain = isinstance(decoded, str | int | float | bool | None)
    return printable(brief or plain_text(decoded) + ("" if is_plain else f", {size}"))


def _first_values(value: Mapping[Any, Any]) -> str:
    """Return the first numbers, texts and flags of an object with their names; ``""`` if none."""
    plain = [(name, item) for name, item in value.items() if isinstance(item, str | int | float)]
    shown = [
        f"{name} {shortened(f'{item:.4g}' if isinstance(item, float) else str(item), 40)}"
        for name, item in plain[:_MAX_FIRST_VALUES]
    ]
    more = [] if len(shown) == len(value) else ["…"]
    return " · ".join([*shown, *more]) if shown else ""


def class_names(spec: DatasetSpec) -> list[str]:
    """Return the names of classes that a spec states, by their numbers, as they are shown."""
    return list(map(printable, spec.classes))


def classes_text(names: Sequence[str]) -> str:
    """Return how many classes there are, and the first of their names; ``""`` for none."""
    if not names:
        return ""
    return f"{len(names):,}: {first_of(names, _MAX_NAMED_CLASSES)}"


def labelled(field: str, text: str, names: Sequence[str]) -> str:
    """Return the text of a value, with the name of its class if it is the number of one."""
    name = class_name(field, text, names)
    return f"{text} · {name}" if name else text


def plain_text(value: Any) -> str:
    """Return a decoded value as text; an array as its type, shape and dtype."""
    if isinstance(value, str | bytes):
        return value if isinstance(value, str) else repr(value[:60])
    if hasattr(value, "dtype"):
        if getattr(value, "shape", None):
            return f"{type(value).__name__} {tuple(value.shape)} {value.dtype}"
        return str(value.item() if hasattr(value, "item") else value)
    if isinstance(value, Mapping) and any(hasattr(item, "dtype") for item in value.values()):
        return ", ".join(f"{name}: {plain_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple) and any(hasattr(item, "dtype") for item in value):
        return ", ".join(map(plain_text, value))
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError):  # keys that are not strings, or a circular reference
        text = repr(value)
    return text


def spec_rows(spec: DatasetSpec) -> dict[str, Any]:
    """Return what a spec states about its dataset, under the names that a script reads."""
    return {
        "name": spec.name,
        "info": spec.extras.get("info"),
        "num_samples": known_sum(shard.num_samples for shard in spec.shards),
        "num_shards": len(spec.shards),
        "nbytes": known_sum(shard.nbytes for shard in spec.shards),
        "classes": spec.classes,
        "index": ", ".join(urls.redact(part.url) for part in spec.all_dataset_indexes()) or None,
        "first": urls.redact(spec.shards[0].url),
        "last": urls.redact(spec.shards[-1].url),
    }


def spec_text(rows: Mapping[str, Any], width: int = 80) -> str:
    """Return `spec_rows` as text with averages: one line per row, cut at the width."""
    samples, nbytes, shards = rows["num_samples"], rows["nbytes"], rows["num_shards"]
    lines = {
        "name": rows["name"] or "-",
        "info": rows["info"],
        "samples": "not stated" if samples is None else f"{samples:,}",
        "shards": f"{shards:,}",
        "size": "not stated" if nbytes is None else nbytes_text(nbytes),
        "per shard": nbytes and f"{nbytes_text(nbytes / shards)} on average",
        "per sample": nbytes and samples and f"{nbytes_text(nbytes / samples)} on average",
        "classes": classes_text(rows["classes"]),
        "index": rows["index"] or "none; `wids create` makes one",
        "first": rows["first"],
        "last": rows["last"],
    }
    stated = (f"{name:>10}  {printable(str(text))}" for name, text in lines.items() if text)
    return "\n".join(shortened(line, width) for line in stated)


def table(header: Iterable[str], rows: Iterable[Iterable[Any]], right: Collection[int] = ()) -> str:
    """Return rows under a header, in columns as wide as their widest cell.

    Args:
        header: The names of the columns.
        rows: The cells of each row.
        right: The places of columns whose cells end at the same place, such as numbers.
    """
    cells = [[printable(str(cell)) for cell in row] for row in (header, *rows)]
    widths = [max(map(text_width, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            " " * (width - text_width(cell)) + cell if place in right else padded(cell, width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def bar_text(share: float, width: int) -> str:
    """Return a bar of at most a width, in steps of an eighth; none only for a share of 0."""
    eighths = math.ceil(share * width * _NUM_EIGHTHS)
    full, rest = divmod(eighths, _NUM_EIGHTHS)
    return _EIGHTHS[-1] * full + (_EIGHTHS[rest - 1] if rest else "")


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_character_width, text))


def _character_width(character: str) -> int:
    """Return 2 for Chinese, Japanese, Korean and most emoji, 0 for marks on other characters."""
    if unicodedata.category(character) in _MARKS:
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1


def padded(text: str, width: int) -> str:
    """Return text with spaces behind it, up to a number of columns."""
    return text + " " * (width - text_width(text))


def shortened(text: str, width: int) -> str:
    """Return text cut to a number of columns, with an ellipsis if something was cut."""
    # Most texts are short; only the others are looked at character by character.
    if 2 * len(text) <= width or text_width(text) <= width:
        return text
    num_kept, columns = 0, 1  # the ellipsis
    while num_kept < len(text):
        columns += _character_width(text[num_kept])
        if columns > width:
            break
        num_kept += 1
    return text[:num_kept] + "…"


def share_text(share: float) -> str:
    """Return a share as a percentage that is 0% or 100% only if that is exact."""
    percent = round(share * 100)
    if percent == 0 and share > 0:
        return "<1%"
    return ">99%" if percent == 100 and share < 1 else f"{percent}%"
