"""Check that a map returns samples, and give them the labels of their input.

Called where the dataset calls its transformations, so that the error names the sample and its
shard, and ``on_error`` decides about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from wids.errors import TransformError

_LABELS: Final = ("__index__", "__shard__")


def mapped(
    function: Callable[[Any], Any], sample: Any, *, needs_key: bool
) -> list[Mapping[str, Any]]:
    """Return the samples that a sample becomes.

    They get the index and the shard of the sample that they were made from, unless they have their
    own, so that later errors can name it.

    Args:
        function: Takes a sample; returns a sample, None or several samples.
        sample: The sample.
        needs_key: Whether samples must have a key.

    Raises:
        TransformError: The map returned something else.
    """
    # Before the call, which may change the sample.
    is_labelled = isinstance(sample, Mapping)
    labels = {name: sample[name] for name in _LABELS if name in sample} if is_labelled else {}
    found = function(sample)
    return [{**labels, **_checked(one, found, needs_key=needs_key)} for one in listed(found)]


def _checked(one: Any, found: Any, *, needs_key: bool) -> Mapping[str, Any]:
    if not isinstance(one, Mapping):
        inside = "" if one is found else f" in a {type(found).__name__}"
        raise TransformError(
            "expected map= to return a sample (a dict with key and fields), None or several "
            f"samples, found {type(one).__name__} {one!r:.80}{inside}; return None to leave "
            "the sample out"
        )
    key = one.get("__key__")
    if needs_key and not (isinstance(key, str) and key):
        raise TransformError(
            'expected map= to return samples with a text under "__key__", found '
            f"{key!r:.80}; a map has to keep the key or return a new one"
        )
    return one


def listed(found: Any) -> Iterable[Any]:
    """Return what a map returned, one after another; an iterator that it returned runs here."""
    if found is None:
        return ()
    if isinstance(found, Mapping | str | bytes) or not isinstance(found, Iterable):
        return (found,)
    return found
