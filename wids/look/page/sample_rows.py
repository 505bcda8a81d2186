"""Render a field of one sample as a row of the table that shows the sample, and its picture.

Nothing is read here; all text of the dataset is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from wids.errors import message_of, printable
from wids.look.html import data_url, escaped, field_html
from wids.look.pictures import thumbnail
from wids.look.text import shortened, value_text
from wids.shards.fields.codecs import IMAGE_EXTENSIONS, extension
from wids.shards.fields.media import media_kind, played_type
from wids.shards.tars.member_names import to_bytes
from wids.storage.sizes import nbytes_text

_PICTURE_PIXELS: Final = 1200


def link_of(prefix: str, kind: str, index: int, field: str) -> str:
    """Return the relative URL of a field of a sample."""
    # From the stored bytes, since `quote` refuses lone surrogates; and with no safe characters,
    # because a slash in a field would end the name.
    return f"{prefix}{kind}/{index}/{quote(to_bytes(field), safe='')}"


def field_row(
    field: str,
    nbytes: int,
    data: bytes | None,
    *,
    link: str,
    file_name: str,
    classes: Sequence[str] = (),
    poster: str = "",
    facts: str = "",
) -> str:
    """Return a field as a row of a table: its name, its size, a link to save it, and its value.

    Args:
        field: The name of the field.
        nbytes: Its length.
        data: Its bytes; None if they were not read.
        link: Where its bytes are served.
        file_name: The name of the file that it is saved as.
        classes: Names of classes, by their numbers.
        poster: Where a picture of it is served, if it is a film.
        facts: Length and rate of a sound or film.
    """
    label, size = escaped(printable(field)), ", ".join(filter(None, (nbytes_text(nbytes), facts)))
    save = f'href="{link}?save=1" download="{escaped(file_name)}"'
    return (
        f'<tr><th scope="row"><code>{label}</code><small>{escaped(size)}</small>'
        f'<a {save} aria-label="save {label}">save</a>'
        f"</th><td>{_player(field, link, poster, save) or _body(field, data, classes)}</td></tr>"
    )


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


def picture_entry(field: str, data: bytes | None, nbytes: int, larger: str) -> dict[str, Any]:
    """Return a picture of a sample as the page shows it, or the reason why it cannot be shown.

    Args:
        field: The name of the field.
        data: Its bytes; None if they were not read.
        nbytes: Their number.
        larger: Where the picture is served with more pixels.
    """
    entry: dict[str, Any] = {"field": field, "label": printable(field), "problem": ""}
    if data is None:
        return {**entry, "problem": f"{nbytes_text(nbytes)}: too large to show; save it instead"}
    try:
        small = thumbnail(data, _PICTURE_PIXELS)
    except ValueError as error:
        reason = shortened(printable(str(error)), 300)
        text = f"not a picture that can be shown, {nbytes_text(nbytes)}"
        return {**entry, "problem": f"{text}: {reason}"}
    is_whole = max(small.width, small.height) <= _PICTURE_PIXELS
    return {
        **entry,
        "src": data_url(small.data, small.media_type),
        "larger": "" if is_whole else larger,
        "width": small.width,
        "height": small.height,
        "text": small.description,
    }
