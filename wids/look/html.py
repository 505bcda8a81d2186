"""Render samples, cards, fields and datasets as HTML for a person, in a notebook or on a page.

Nothing is read here: bytes and values go in, text comes out. All text from a dataset passes through
`escaped`, so that no browser runs it, and pictures are re-encoded as thumbnails.

Colours are those of the surrounding page, light or dark. Notebooks have style sheets of their own
for tables, headings, paragraphs, code and pictures in outputs; what they set, `notebook.css` sets
too, with `!important`. They differ most in definition lists, where JupyterLab makes the terms
float, so labels and values are plain elements.
"""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, Final

import numpy as np

from wids.errors import SampleError, without_kept_secrets
from wids.look.field_facts import MAX_PIXELS, THUMBNAIL_PIXELS, facts_of_file, thumbnail
from wids.look.text import (
    MAX_SHOWN_NBYTES,
    PREVIEW_DECODER,
    labelled,
    plain_text,
    share_text,
    shortened,
    value_text,
)
from wids.shards.fields import codecs
from wids.shards.sample_access import FieldStats
from wids.shards.specs.model import class_name, is_of_classes
from wids.storage.sizes import count_text, nbytes_text
from wids.storage.transport import urls


@lru_cache(maxsize=1)
def style() -> str:
    """Return the style sheet as an element, to be placed before the HTML that it styles."""
    css = resources.files("wids.look").joinpath("notebook.css").read_text(encoding="utf-8")
    return f"<style>{css}</style>"


_MAX_PLAYED_NBYTES: Final = 20_000_000
_MAX_SHOWN_CHARS: Final = 2000
"""Longer text is folded away."""
_MAX_FOLDED_CHARS: Final = 100_000
_MAX_TEXT_CHARS: Final = 200
_MAX_LONE_TEXT_CHARS: Final = 700
"""Of a text on a card, with and without a picture."""


def sample_html(sample: Mapping[str, Any], classes: Sequence[str] = ()) -> str:
    """Return a sample, decoded or not, as HTML: one row per field, then its origin.

    Args:
        sample: The sample.
        classes: Names of classes, by their numbers.
    """
    rows = "".join(
        f"<tr><th><code>{escaped(name)}</code></th>"
        f"<td>{field_html(name, value, classes=classes)}</td></tr>"
        for name, value in sample.items()
        if not str(name).startswith("__")
    )
    return f'{style()}<div class="wids"><table>{rows}</table>{_provenance(sample)}</div>'


def field_html(
    field: str,
    value: Any,
    *,
    with_size: bool = True,
    classes: Sequence[str] = (),
) -> str:
    """Return the value of a field, decoded or not, as HTML.

    Args:
        field: The name of the field, whose extension says what its bytes are.
        value: Bytes in any form, or a decoded value.
        with_size: Whether to state the length of bytes.
        classes: Names of classes, by their numbers.
    """
    if hasattr(value, "getvalue"):  # a stream, as `raw="stream"` returns them
        value = value.getvalue()
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes_html(field, bytes(value), with_size=with_size, classes=classes)
    shown, name = _value_html(value), ""
    if classes and is_of_classes(field):
        name = class_name(field, plain_text(value), classes)
    return f"{shown} · {escaped(name)}" if name else shown


def _value_html(value: Any) -> str:
    # By attributes, so that Pillow and torch are not imported to show a text.
    if hasattr(value, "thumbnail") and hasattr(value, "mode"):
        return _picture_html(value, "")
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _array_html(value)
    if isinstance(value, str):
        return _text_html(value)
    if isinstance(value, Mapping | list | tuple):
        return _folded_html(value)
    return escaped(str(value))


def card_html(
    sample: Mapping[str, Any],
    other_fields: Mapping[str, int] | None = None,
    problem: str = "",
    pixels: int = THUMBNAIL_PIXELS,
    classes: Sequence[str] = (),
    poster: str = "",
    lengths: Mapping[str, str] | None = None,
) -> str:
    """Return a sample as a small card: first picture, texts, and names of the other fields.

    Args:
        sample: Undecoded fields to show, and the values that the dataset adds.
        other_fields: Fields to name only, with their lengths in bytes.
        problem: What is wrong with the sample, as text.
        pixels: Maximum width and height of the picture.
        classes: Names of classes, by their numbers.
        poster: URL of a picture to show if the sample has none of its own.
        lengths: Lengths in seconds of audio and video among the other fields, as text.
    """
    fields = {name: value for name, value in sample.items() if not str(name).startswith("__")}
    pictures = [name for name in fields if codecs.extension(name) in codecs.IMAGE_EXTENSIONS]
    picture = ""
    if pictures:
        data = bytes(fields[pictures[0]])
        picture = _picture_html(data, f", {nbytes_text(len(data))}", with_text=False, pixels=pixels)
    limit = _MAX_TEXT_CHARS if picture or poster else _MAX_LONE_TEXT_CHARS
    texts = _card_texts({n: v for n, v in fields.items() if n not in pictures}, classes, limit)
    others_by_name = other_fields or {}
    for name, size in others_by_name.items():
        if not picture and codecs.extension(name) in codecs.IMAGE_EXTENSIONS:
            picture = no_picture_html(f"{name}, {nbytes_text(size)}: too large to show here")
    if not picture and poster:
        # Requested by the browser when it comes into sight.
        picture = f'<img alt="" loading="lazy" src="{escaped(poster)}">'
    sizes = {name: nbytes_text(size) for name, size in others_by_name.items()}
    sizes |= {name: f"{length} ({sizes[name]})" for name, length in (lengths or {}).items()}
    others = paragraph_html("line", ", ".join(f"{name} {size}" for name, size in sizes.items()))
    bad = paragraph_html("bad", problem)
    # A shard without an index has positions, but no indices in its dataset.
    number = sample.get("__index__", sample.get("__shardindex__", ""))
    label = escaped(f"{number} · {sample.get('__key__', '')}")
    parts = [picture, *texts, bad, others, f"<small>{label}</small>"]
    return f'<div class="card">{"".join(parts)}</div>'


def _card_texts(fields: Mapping[str, Any], classes: Sequence[str], limit: int) -> list[str]:
    """Return texts as paragraphs: a caption, if there is one, then the other fields with names."""
    captions = [name for name in fields if codecs.extension(name) in codecs.CAPTION_EXTENSIONS]
    first = captions[:1] or list(fields)[:1]
    texts = []
    for name in (*first, *(n for n in fields if n not in first)):
        text = labelled(name, value_text(name, fields[name], is_brief=True), classes)
        start = "<p>" if name in first else '<p class="line">'
        # Only a caption needs no name: a bare number says nothing.
        named = "" if name in captions[:1] else f"<small>{escaped(name)}</small> "
        texts.append(f"{start}{named}{escaped(shortened(text, limit))}</p>")
    return texts


def gallery_html(cards: Iterable[str], note: str = "", problems: Iterable[str] = ()) -> str:
    """Return cards as a grid, below problems that several of them have, and above a note."""
    bad = "".join(paragraph_html("bad", problem) for problem in problems)
    text = paragraph_html("note", note)
    grid = f'<div class="grid">{"".join(cards)}</div>'
    return f'{style()}<div class="wids">{bad}{grid}{text}</div>'


def dataset_html(
    title: str,
    facts: Mapping[str, str],
    fields: Iterable[FieldStats],
    note: str,
    gallery: str,
    distributions: str = "",
) -> str:
    """Return a dataset as HTML: facts, fields, a note, distributions of columns, and a gallery.

    Args:
        title: The heading.
        facts: Values by their labels.
        fields: The fields.
        note: A remark below the table; may be empty.
        gallery: HTML of some samples; may be empty.
        distributions: Text about the columns of the saved table; may be empty.
    """
    items = "".join(
        f'<div role="listitem"><small>{escaped(name)}</small><span>{escaped(text)}</span></div>'
        for name, text in facts.items()
    )
    rows = "".join(
        f"<tr><td><code>{escaped(s.field)}</code></td>"
        f'<td class="n">{escaped(share_text(s.share))}</td>'
        f'<td class="n">{nbytes_text(s.median_nbytes)}</td></tr>'
        for s in fields
    )
    table_ = (
        f'<table><tr><th>field</th><th class="n">samples</th>'
        f'<th class="n">typical size</th></tr>{rows}</table>'
        if rows
        else ""
    )
    text = paragraph_html("note", note)
    text += f"<pre>{escaped(distributions)}</pre>" if distributions else ""
    return (
        f'{style()}<div class="wids"><h3>{escaped(title)}</h3>'
        f'<div class="facts" role="list">{items}</div>{table_}{text}</div>'
        f"{gallery}"
    )


def paragraph_html(kind: str, text: str) -> str:
    """Return text as a paragraph, small unless it is ``"bad"``; ``""`` for none."""
    shown = escaped(text) if kind == "bad" else f"<small>{escaped(text)}</small>"
    return f'<p class="{kind}">{shown}</p>' if text else ""


def escaped(text: Any) -> str:
    """Return text as HTML that shows it, with nothing that a browser would run."""
    # Quotes too, since some of the text stands in attributes (SEC-13).
    safe = html.escape(without_kept_secrets(str(text)), quote=True)
    return safe.encode("utf-8", "backslashreplace").decode("utf-8")  # lone surrogates


def _provenance(sample: Mapping[str, Any]) -> str:
    shard = urls.redact(str(sample.get("__shard__", "")))
    parts = [
        f"sample {sample['__index__']}" if "__index__" in sample else "",
        f'key "{sample["__key__"]}"' if "__key__" in sample else "",
        f"{shard}, position {sample['__shardindex__']}" if "__shardindex__" in sample else "",
    ]
    return f"<small>{escaped(' · '.join(filter(None, parts)))}</small>"


def _bytes_html(field: str, data: bytes, *, with_size: bool, classes: Sequence[str]) -> str:
    size = nbytes_text(len(data))
    size_html = f"<small>{escaped(size)}</small> " if with_size else ""
    if codecs.extension(field) in codecs.IMAGE_EXTENSIONS:
        return _picture_html(data, f", {size}")
    if codecs.media_kind(field):
        return _media_html(field, data, size)
    if len(data) > MAX_SHOWN_NBYTES:
        return f"{size_html}<code>{escaped(repr(data[:60]))}</code>"
    try:
        value = PREVIEW_DECODER({field: data})[field]
    except SampleError as error:
        return f'<span class="bad">{escaped(f"{size} that cannot be decoded: {error}")}</span>'
    if isinstance(value, bytes):
        return f"{size_html}<code>{escaped(repr(value[:60]))}</code>"
    return field_html(field, value, classes=classes)


def _media_html(field: str, data: bytes, size: str) -> str:
    kind, tag = codecs.played_type(field), codecs.media_kind(field)
    try:
        stated = facts_of_file(field, lambda: io.BytesIO(data))
    except ValueError as error:
        stated = str(error)
    facts = escaped(", ".join(filter(None, (stated, size))))
    # A notebook stores its outputs, and base64 makes them a third longer.
    if kind is None or len(data) > _MAX_PLAYED_NBYTES:
        reason = "not all browsers can play it" if kind is None else "too large to play here"
        return f"<small>{facts}; {reason}</small>"
    player = f'<{tag} controls preload="metadata" src="{data_url(data, kind)}"></{tag}>'
    return f"{player} <small>{facts}</small>"


def _picture_html(
    picture: Any, size: str, *, with_text: bool = True, pixels: int = THUMBNAIL_PIXELS
) -> str:
    try:
        small = thumbnail(picture, pixels)
    except ValueError as error:
        return no_picture_html(f"not a picture that can be shown{size}", str(error))
    text = f"<small>{escaped(small.description + size)}</small>" if with_text else ""
    # A few pixels are shown as squares: smoothed, they would be a blur.
    kind = ' class="tiny"' if small.is_tiny else ""
    url = data_url(small.data, small.media_type)
    return f'<img{kind} alt="{escaped(small.description)}" src="{url}">{text}'


def no_picture_html(text: str, reason: str = "") -> str:
    """Return the placeholder of a picture that cannot be shown, with the reason."""
    why = f"<br><small>{escaped(shortened(reason, 200))}</small>" if reason else ""
    return f'<div class="bad none"><span>{escaped(text)}{why}</span></div>'


def _array_html(value: Any) -> str:
    text = f"<small>{escaped(plain_text(value))}</small>"
    try:
        array = np.asarray(value)
    except Exception:  # noqa: BLE001 - a tensor on another device, or of a type that numpy lacks
        return text
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] > 4:
        array = array.transpose(1, 2, 0)  # tensors have their channels first
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    is_picture = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    # An array with so few rows or columns is more likely a table of numbers than a picture.
    if not is_picture or min(array.shape[:2]) < 8 or array.size > MAX_PIXELS:
        return text
    if array.dtype.kind == "f" and array.size and array.min() >= 0 and array.max() <= 1:
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8 and (array.dtype != np.uint16 or array.ndim == 3):
        return text
    from PIL import Image

    return _picture_html(Image.fromarray(np.ascontiguousarray(array)), "", with_text=False) + text


def _text_html(text: str) -> str:
    if len(text) <= _MAX_SHOWN_CHARS:
        return f"<pre>{escaped(text)}</pre>" if "\n" in text else escaped(text)
    return (
        f"<details><summary>{escaped(text[:120])}… ({len(text):,} characters)</summary>"
        f"<pre>{escaped(text[:_MAX_FOLDED_CHARS])}</pre></details>"
    )


def _folded_html(value: Any) -> str:
    try:
        text, is_complete = _json_text(value)
    except (TypeError, ValueError):  # keys that are not strings, or a circular reference
        text, is_complete = repr(value)[:_MAX_FOLDED_CHARS], False
    if is_complete and len(text) <= 80:
        line = json.dumps(value, ensure_ascii=False, default=plain_text)
        return f"<code>{escaped(line)}</code>"
    kind = "key" if isinstance(value, Mapping) else "item"
    count = count_text(len(value), kind)
    return f"<details><summary>{count}</summary><pre>{escaped(text)}</pre></details>"


def _json_text(value: Any) -> tuple[str, bool]:
    """Return a value as indented JSON up to the limit, and whether that is all of it."""
    encoder = json.JSONEncoder(ensure_ascii=False, indent=1, default=plain_text)
    text = ""
    # In pieces, because all of it may be many times longer than what is shown.
    for piece in encoder.iterencode(value):
        text += piece
        if len(text) > _MAX_FOLDED_CHARS:
            return text, False
    return text, True


def data_url(data: bytes, kind: str) -> str:
    """Return bytes as a URL that contains them."""
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
