"""Errors are built-ins too, and survive the way from a worker to the main process."""

from __future__ import annotations

import pickle

import pytest

from wids import errors

CLASSES = [value for value in vars(errors).values() if isinstance(value, type)]


@pytest.mark.parametrize("kind", CLASSES)
def test_error_is_built_from_one_string(kind: type[Exception]) -> None:
    """Torch rebuilds an exception of a worker by calling its class with one string."""
    assert str(kind("what happened")) == "what happened"


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind is not errors.WidsError])
def test_error_is_a_builtin_too(kind: type[Exception]) -> None:
    """Code that catches the natural built-in catches these errors."""
    assert issubclass(kind, errors.WidsError)
    assert issubclass(kind, ValueError | OSError | RuntimeError)


def test_sample_error_keeps_its_facts_when_pickled() -> None:
    """Shard, key, field and index survive pickling."""
    error = errors.DecodeError("no", shard="a.tar", key="k", field=".jpg", index=7)

    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here

    assert (str(copy), copy.shard, copy.key, copy.field, copy.index) == (
        *("no", "a.tar"),
        *("k", ".jpg", 7),
    )
