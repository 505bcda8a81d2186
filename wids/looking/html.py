"""Samples, fields and datasets → HTML for a person, in a notebook or on a page.

Nothing is read here: bytes and values go in, text comes out. All text from a dataset passes through
`escaped`, so that no browser runs it, and pictures are re-encoded as thumbnails. Colours are
inherited from the surrounding page, light or dark.
"""

from __future__ import annotations

import base64
import html
import io
import json
import re
from collections.abc import Iterable, Mapping
from threading import BoundedSemaphore
from typing import Any, Final

import numpy as np

from wids.errors import SampleError
from wids.fields.codecs import IMAGE_EXTENSIONS, extension
from wids.fields.images import opened_image
from wids.files.sizes import nbytes_text
from wids.looking.text import (
    MAX_SHOWN_NBYTES,
    PREVIEW_DECODER,
    count_text,
    plain_text,
    shortened,
    value_text,
)
from wids.transport import urls

# `!important` is for JupyterLab, whose style sheet aligns and colours all cells of tables.
STYLE: Final = """<style>
.wids{font:inherit;line-height:1.4;max-width:100%;overflow-wrap:anywhere}
.wids *{box-sizing:border-box}
.wids h3{margin:0 0 .4em;font-size:1.15em}
.wids dl{display:flex;flex-wrap:wrap;gap:.3em 2em;margin:.2em 0 .8em}
.wids dl div{display:flex;flex-direction:column}
.wids dt{font-size:.78em;opacity:.7}.wids dd{margin:0;font-variant-numeric:tabular-nums}
.wids table{border-collapse:collapse;margin:0 0 .9em;background:none}
.wids th,.wids td{padding:.25em .9em .25em 0;text-align:left!important;vertical-align:top;
background:none!important;border:0;
border-bottom:1px solid color-mix(in srgb,currentColor 15%,transparent)}
.wids th{font-weight:600;white-space:nowrap}.wids td.n{text-align:right!important}
.wids code{font-size:.92em;background:none;padding:0;color:inherit}
.wids pre{margin:.2em 0;white-space:pre-wrap;max-height:20em;overflow:auto;background:none;
color:inherit}
.wids img{max-width:100%;height:auto;border-radius:3px;display:block}
.wids small{opacity:.7}.wids .bad{font-style:italic;opacity:.8}
.wids .none{display:flex;align-items:center;justify-content:center;text-align:center;
min-height:5em;padding:.5em;border:1px dashed color-mix(in srgb,currentColor 30%,transparent);
border-radius:3px}.wids .card .none{height:120px}.wids .card p.line{-webkit-line-clamp:1}
.wids .grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:.7em}
.wids .card{border:1px solid color-mix(in srgb,currentColor 18%,transparent);border-radius:6px;
padding:.5em;display:flex;flex-direction:column;gap:.3em;min-width:0}
.wids .card img{width:100%;height:120px;object-fit:contain}
.wids .card p{margin:0;display:-webkit-box;-webkit-line-clamp:3;-webkit-box-orient:vertical;
overflow:hidden}
.wids .card>small:last-child{margin-top:auto}
</style>"""

_AUDIO: Final = {"wav": "wav", "mp3": "mpeg", "flac": "flac", "ogg": "ogg", "m4a": "mp4"}
_VIDEO: Final = {"mp4": "mp4", "webm": "webm", "m4v": "mp4", "ogv": "ogg"}
_MAX_PLAYED_NBYTES: Final = 20_000_000
_MAX_SHOWN_CHARS: Final = 2000
"""Longer text is folded away."""
_MAX_FOLDED_CHARS: Final = 100_000
_THUMBNAIL_PIXELS: Final = 256
_MAX_PIXELS: Final = 40_000_000
"""Larger pictures are not decoded: a few bytes can claim to be billions of pixels (SEC-13). A pixel
takes 4 bytes in most formats, and 16 while a WebP is decoded."""

_DECODING: Final = BoundedSemaphore(2)
"""A page asks for many pictures at once; so many are in memory at full size (SEC-53)."""


def media_type(field: str) -> str | None:
    """Return the media type of a field that a browser can play, or None."""
    kind = extension(field)
    if kind in _AUDIO:
        return f"audio/{_AUDIO[kind]}"
    return f"video/{_VIDEO[kind]}" if kind in _VIDEO else None


def thumbnail(data: bytes | Any, size: int = _THUMBNAIL_PIXELS) -> tuple[bytes, str, str]:
    """Return a thumbnail of a picture: its bytes, their media type, and a text about the original.

    Args:
        data: Bytes of a picture, or a PIL image, which stays as it is.
        size: Maximum width and height in pixels.

    Raises:
        ValueError: The picture cannot be decoded, or has too many pixels.
    """
    try:
        image = opened_image(data) if isinstance(data, bytes) else data
        form = getattr(image, "format", None) or "image"
        description = f"{form} {image.width} x {image.height} {image.mode}"
        with _DECODING:
            # An image of the caller's is decoded already, and `draft` would change it.
            if not isinstance(data, bytes) or _num_decoded_pixels(image, size) <= _MAX_PIXELS:
                return *_small(image, size), description
    except Exception as error:
        # Pillow names the stream that it read from, which means nothing to a reader.
        text = re.sub(r"<_io\.BytesIO object at 0x[0-9a-f]+>", "of it", str(error))
        raise ValueError(f"{type(error).__name__}: {text}") from error
    raise ValueError(f"{description}: too many pixels to show")


def _num_decoded_pixels(image: Any, size: int) -> int:
    """Have a JPEG decoded at a reduced size, and return how many pixels decoding will hold."""
    num_pixels: int = image.width * image.height
    image.draft("RGB", (size, size))
    # All of a progressive JPEG is in memory before its first pixel is decoded.
    return num_pixels if image.info.get("progressive") else image.width * image.height


def _small(image: Any, size: int) -> tuple[bytes, str]:
    scale = min(size / image.width, size / image.height, 1)
    shape = max(round(image.width * scale), 1), max(round(image.height * scale), 1)
    # Not `thumbnail`, which changes the image: a copy of a caller's would take its memory again.
    small = image.resize(shape, reducing_gap=2.0)
    is_opaque = not small.has_transparency_data
    small = small.convert("RGB" if is_opaque else "RGBA")
    stream = io.BytesIO()
    # Encoded again, whatever the original was: no browser decodes pictures of a dataset (SEC-13).
    small.save(stream, "JPEG" if is_opaque else "PNG", quality=85)
    return stream.getvalue(), "image/jpeg" if is_opaque else "image/png"


def sample_html(sample: Mapping[str, Any]) -> str:
    """Return a sample, decoded or not, as HTML: one row per field, then its origin."""
    rows = "".join(
        f"<tr><th><code>{escaped(name)}</code></th><td>{field_html(name, value)}</td></tr>"
        for name, value in sample.items()
        if not str(name).startswith("__")
    )
    return f'{STYLE}<div class="wids"><table>{rows}</table>{_provenance(sample)}</div>'


def field_html(field: str, value: Any, pixels: int = _THUMBNAIL_PIXELS) -> str:
    """Return the value of a field, decoded or not, as HTML.

    Args:
        field: The name of the field, whose extension says what its bytes are.
        value: Bytes in any form, or a decoded value.
        pixels: Maximum width and height of an undecoded picture.
    """
    if hasattr(value, "getvalue"):  # a stream, as `raw="stream"` returns them
        value = value.getvalue()
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes_html(field, bytes(value), pixels=pixels)
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
    sample: Mapping[str, Any], other_fields: Mapping[str, int] | None = None, problem: str = ""
) -> str:
    """Return a sample as a small card: first picture, texts, and names of the other fields.

    Args:
        sample: Undecoded fields to show, and the values that the dataset adds.
        other_fields: Fields to name only, with their lengths in bytes.
        problem: What is wrong with the sample, as text.
    """
    picture = ""
    texts: list[str] = []
    for name, value in sample.items():
        if str(name).startswith("__"):
            continue
        if extension(name) in IMAGE_EXTENSIONS:
            picture = picture or _bytes_html(name, bytes(value), with_text=False)
            continue
        text = escaped(shortened(value_text(name, value), 200))
        if not texts:
            texts.append(f"<p>{text}</p>")
        else:
            texts.append(f'<p class="line"><small>{escaped(name)}</small> {text}</p>')
    names = ", ".join(f"{name} {nbytes_text(size)}" for name, size in (other_fields or {}).items())
    others = f'<p class="line"><small>{escaped(names)}</small></p>' if names else ""
    bad = f'<p class="bad">{escaped(problem)}</p>' if problem else ""
    # A shard without an index has positions, but no indices in its dataset.
    number = sample.get("__index__", sample.get("__shardindex__", ""))
    label = escaped(f"{number} · {sample.get('__key__', '')}")
    parts = [picture, *texts, bad, others, f"<small>{label}</small>"]
    return f'<div class="card">{"".join(parts)}</div>'


def gallery_html(cards: Iterable[str], note: str = "") -> str:
    """Return cards as a grid, with a note below it."""
    text = f"<p><small>{escaped(note)}</small></p>" if note else ""
    return f'{STYLE}<div class="wids"><div class="grid">{"".join(cards)}</div>{text}</div>'


def dataset_html(
    title: str,
    facts: Mapping[str, str],
    fields: Iterable[tuple[str, str, str]],
    note: str,
    gallery: str,
    distributions: str = "",
) -> str:
    """Return a dataset as HTML: facts, fields, a note, distributions of columns, and a gallery.

    Args:
        title: The heading.
        facts: Values by their labels.
        fields: Name, share of samples and typical size of each field.
        note: A remark below the table; may be empty.
        gallery: HTML of some samples; may be empty.
        distributions: Text about the columns of the saved table; may be empty.
    """
    items = "".join(
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(text)}</dd></div>"
        for name, text in facts.items()
    )
    rows = "".join(
        f'<tr><td><code>{escaped(name)}</code></td><td class="n">{escaped(share)}</td>'
        f'<td class="n">{escaped(size)}</td></tr>'
        for name, share, size in fields
    )
    table_ = (
        f"<table><tr><th>field</th><th>samples</th><th>typical size</th></tr>{rows}</table>"
        if rows
        else ""
    )
    text = f"<p><small>{escaped(note)}</small></p>" if note else ""
    text += f"<pre>{escaped(distributions)}</pre>" if distributions else ""
    return (
        f'{STYLE}<div class="wids"><h3>{escaped(title)}</h3><dl>{items}</dl>{table_}{text}</div>'
        f"{gallery}"
    )


def escaped(text: Any) -> str:
    """Return text as HTML that shows it, without anything that a browser would run."""
    # Quotes too, since some of the text stands in attributes (SEC-13).
    safe = html.escape(str(text), quote=True)
    return safe.encode("utf-8", "backslashreplace").decode("utf-8")  # lone surrogates


def _provenance(sample: Mapping[str, Any]) -> str:
    shard = urls.redact(str(sample.get("__shard__", "")))
    parts = [
        f"sample {sample['__index__']}" if "__index__" in sample else "",
        f'key "{sample["__key__"]}"' if "__key__" in sample else "",
        f"{shard}, position {sample['__shardindex__']}" if "__shardindex__" in sample else "",
    ]
    return f"<small>{escaped(' · '.join(filter(None, parts)))}</small>"


def _bytes_html(
    field: str, data: bytes, *, with_text: bool = True, pixels: int = _THUMBNAIL_PIXELS
) -> str:
    size = nbytes_text(len(data))
    kind = media_type(field)
    if extension(field) in IMAGE_EXTENSIONS:
        return _picture_html(data, f", {size}", with_text=with_text, pixels=pixels)
    # A notebook stores its outputs, and base64 makes them a third longer.
    if kind is not None and len(data) <= _MAX_PLAYED_NBYTES:
        tag = kind.partition("/")[0]
        return f'<{tag} controls preload="metadata" src="{_data_url(data, kind)}"></{tag}>'
    if len(data) > MAX_SHOWN_NBYTES:
        return f"<small>{escaped(size)}</small> <code>{escaped(repr(data[:60]))}</code>"
    try:
        value = PREVIEW_DECODER({field: data})[field]
    except SampleError as error:
        return f'<span class="bad">{escaped(f"{size} that cannot be decoded: {error}")}</span>'
    if isinstance(value, bytes):
        return f"<small>{escaped(size)}</small> <code>{escaped(repr(value[:60]))}</code>"
    return field_html(field, value)


def _picture_html(
    picture: Any, size: str, *, with_text: bool = True, pixels: int = _THUMBNAIL_PIXELS
) -> str:
    try:
        small, kind, description = thumbnail(picture, pixels)
    except ValueError as error:
        text = escaped(f"not a picture that can be shown{size}")
        detail = escaped(shortened(str(error), 200))
        return f'<div class="bad none" title="{detail}">{text}</div>'
    text = f"<small>{escaped(description + size)}</small>" if with_text else ""
    return f'<img alt="{escaped(description)}" src="{_data_url(small, kind)}">{text}'


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
    if not is_picture or min(array.shape[:2]) < 8 or array.size > _MAX_PIXELS:
        return text
    if array.dtype.kind == "f" and array.size and array.min() >= 0 and array.max() <= 1:
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
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


def _data_url(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
