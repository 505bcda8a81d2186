"""Turn the transformations of a caller into callables, and their exceptions into located errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from wids.errors import SampleError, TransformError
from wids.storage.transport import urls

Transformation: TypeAlias = Callable[[Any], Any]


def as_transformations(given: Any, *, allow_pickle: bool) -> list[Transformation]:
    """Return the callables of a sample: a decoder for each name, and the caller's own."""
    if given is not None and not isinstance(given, str | Iterable) and not callable(given):
        raise TypeError(f"transformations: expected a list of callables, found {given!r:.80}")
    steps = [given] if isinstance(given, str) or callable(given) else list(given or ())
    # If it were ignored silently, the caller would believe that pickles are decoded.
    if allow_pickle and not any(isinstance(step, str) for step in steps):
        raise ValueError(
            "allow_pickle: expected transformations by name, found callables; put "
            "wids.Decoder(allow_pickle=True) among them"
        )
    return [_as_transformation(step, allow_pickle=allow_pickle) for step in steps]


def _as_transformation(step: Any, *, allow_pickle: bool) -> Transformation:
    """Return a callable as it is, and a decoder for a name."""
    if isinstance(step, str):
        from wids.shards.fields.decode import (
            named_decoder,  # all codecs: 3 ms, which undecoded reads save
        )

        try:
            return named_decoder(step, allow_pickle=allow_pickle)
        except ValueError as error:
            raise ValueError(
                f"transformations: expected a list of callables, None, or the name of what "
                f"pictures become; {error}"
            ) from None
    return checked(step, "transformations")


def checked(function: Any, name: str) -> Transformation:
    """Return an argument that has to be a callable of a sample.

    Raises:
        TypeError: It is not callable.
    """
    if not callable(function):
        raise TypeError(f"{name}: expected a callable that takes a sample, found {function!r:.80}")
    transformation: Transformation = function
    return transformation


def locate_error(error: Exception, sample: Any, shard: str, key: str, index: int) -> SampleError:
    """Return the error of a sample with its shard, key and index, in attributes and text."""
    # SEC-4: the URL of a shard may be signed, and errors end up in logs.
    place = f'{urls.redact(shard)}: sample "{key}" (index {index})'
    # Of the same type, so that a DecodeError stays one for callers that catch it.
    if isinstance(error, SampleError):
        return type(error)(
            f"{place}: {error}", shard=shard, key=key, field=error.field, index=index
        )
    name = error.args[-1] if isinstance(error, KeyError) and error.args else None
    is_field = isinstance(name, str) and name[:1] == "." and isinstance(sample, dict)
    return TransformError(
        f"{place}: a transformation raised {type(error).__name__}: {_text(error, sample)}",
        shard=shard,
        key=key,
        field=name if is_field and name not in sample else None,
        index=index,
    )


def _text(error: Exception, sample: Any) -> str:
    """Return the text of an error, for a missing field with the fields that there are."""
    if not isinstance(error, KeyError) or not error.args:
        return str(error)
    name = error.args[0]
    if isinstance(sample, dict) and isinstance(name, str) and name not in sample:
        return _missing_text(sample, name)
    return repr(name)


def _missing_text(sample: dict[Any, Any], name: str) -> str:
    """Return why a sample has no such field."""
    dotted = f".{name}"
    if dotted in sample:
        return f'{name}: fields keep their dot: sample["{dotted}"]'
    fields = [field for field in map(str, sample) if field.startswith(".")]
    spellings = (name.lower(), dotted.lower())
    same = next((field for field in fields if field.lower() in spellings), None)
    if same is not None:
        return f'{name}: field names keep their case: sample["{same}"]'
    if not name.startswith("."):
        return name if " " in name else repr(name)  # a message, or the key of another dict
    return f"{name}: the sample has {', '.join(fields) or 'no fields'}"
