"""What disturbs programs in other tests, which a mistake in it would let pass undisturbed."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from conftest import raises
from faults import Fault, failing, faults, interrupting

from wids.storage import files
from wids.storage.transport import urls


def test_packages_that_do_not_exist() -> None:
    """The name of a package that was renamed is an error, as its places would never come."""
    with raises(AssertionError, "no packages of wids", "files"), interrupting(Fault(1), "files"):
        pass


def test_a_program_with_too_few_places() -> None:
    """So is a program that does not come to the places that are meant."""
    with raises(AssertionError, "only 0 places"):
        for fault in faults(1, at_least=1):
            with interrupting(fault, "storage"):
                pass


def test_an_interrupt_that_is_swallowed() -> None:
    """A program that goes on after Ctrl-C is an error that names the place."""
    with raises(AssertionError, "transport/urls.py", "did not come out"):
        with interrupting(Fault(1), "storage"):
            with pytest.raises(KeyboardInterrupt):
                urls.origin("https://host/a.tar")


def test_each_place_is_met() -> None:
    """The faults of a loop come one place after another, up to a program that meets none."""
    places = []
    for fault in faults(1, at_least=2):
        with interrupting(fault, "storage"):
            urls.origin("https://host/a.tar")
        places.append(fault.where)
    assert len(set(places)) == len(places)
    assert places[-1] == ""


def test_calls_that_fail(tmp_path: Path) -> None:
    """What `wids` calls to write a file is among the calls that fail."""
    with files.replacing(tmp_path / "a"):
        pass  # imports what is imported when it is first needed
    names = set()
    for fault in faults(1, at_least=4):
        try:
            with failing(fault, errno.EIO), files.replacing(tmp_path / "a") as file:
                file.write(b"text")
        except OSError:
            names.add(fault.where.partition(", ")[2])
    assert names >= {"open", "write", "fsync", "replace"}
