"""Turn a sample into its key and its encoded members, by their names in a tar.

Refuses a sample that a reader would split into another key or other fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

from wids.errors import printable
from wids.shards.fields.codecs import Encode
from wids.shards.fields.encode import encode
from wids.shards.tars.member_names import is_metadata, to_bytes

Encoder = bool | Mapping[str, Encode] | Callable[[dict[str, Any]], Mapping[str, Any]] | None
ToMembers = Callable[[Mapping[str, Any]], tuple[str, dict[str, bytes]]]

_MAX_NAME_LENGTH: Final = 200_000
"""In characters, of up to 4 bytes: a scan refuses extended headers of more than 1 MiB."""


def member_encoder(encoder: Encoder) -> ToMembers:
    """Return the function from a sample to its key and its encoded members.

    Args:
        encoder: How values become bytes, as for `wids.TarWriter`.
    """
    if isinstance(encoder, Mapping):
        return partial(_members, None, partial(_encode_by, encoder))
    if callable(encoder):
        return partial(_members, encoder, _only_bytes)
    return partial(_members, None, _only_bytes if encoder is False else encode)


def members_as_read(sample: Mapping[str, Any]) -> tuple[str, dict[str, bytes]]:
    """Return the key of a sample that was read undecoded, and its members.

    Values that are not bytes are those of rows that were joined; None where there is no row.
    """
    fields = {name: value for name, value in sample.items() if value is not None}
    return _members(None, stored_or_encoded, fields)


def _encode_by(encoders: Mapping[str, Encode], field: str, value: Any) -> bytes:
    return encode(field, value, encoders)


def _members(
    transform: Callable[[dict[str, Any]], Mapping[str, Any]] | None,
    encode_field: Callable[[str, Any], bytes],
    sample: Mapping[str, Any],
) -> tuple[str, dict[str, bytes]]:
    """Return the key of a sample and its encoded members, by their names in the tar."""
    if transform is not None:
        sample = transform(dict(sample))
    key = sample.get("__key__")
    if not isinstance(key, str) or not key:
        raise ValueError(f'a sample: expected its key under "__key__", found {key!r:.80}')
    members: dict[str, bytes] = {}
    is_storable_key = _is_storable_key(key)
    for name, value in sample.items():
        if name.startswith("_"):
            continue
        field = name if name.startswith(".") else "." + name
        member = key + field
        if len(member) > _MAX_NAME_LENGTH:
            raise ValueError(
                f"sample {key!r:.80}: expected a key and a field of at most "
                f"{_MAX_NAME_LENGTH:,} characters together, found {len(member):,}"
            )
        if not (is_storable_key and _is_storable_field(field)):
            raise _name_error(key, member)
        if key.startswith("__") and is_metadata(to_bytes(member)):
            raise ValueError(
                f"sample {key!r:.80}: expected a name that does not begin with __…__, found the "
                f"member {member!r:.80}, which readers skip as metadata; rename it"
            )
        if member in members:
            raise ValueError(f"sample {key!r}: expected the field {field!r} once, found it twice")
        try:
            members[member] = encode_field(field, value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"sample {key!r}: {error}") from error
    if not members:
        raise ValueError(f"sample {key!r}: expected at least one field, found none")
    return key, members


def stored_or_encoded(field: str, value: Any) -> bytes:
    """Return bytes as they are, whatever their field, and any other value encoded."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return encode(field, value)


def _only_bytes(field: str, value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f'field "{printable(field)}": expected bytes, found {type(value).__name__}')
    return bytes(value)


def _is_storable_key(key: str) -> bool:
    """Whether a member that is read back can have this key."""
    base = key.rpartition("/")[2]
    return bool(base) and "." not in base and _is_storable(key)


@lru_cache(maxsize=1024)  # there are few fields, and many samples
def _is_storable_field(field: str) -> bool:
    """Whether a member that is read back can have this field."""
    return len(field) > 1 and "/" not in field and _is_storable(field)


def _is_storable(text: str) -> bool:
    try:
        return b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def _name_error(key: str, member: str) -> ValueError:
    return ValueError(
        f"sample {key!r}: expected a key without a dot in its last part and a field without a "
        f"slash, found the member name {member!r}, which is read back as another key and field"
    )
