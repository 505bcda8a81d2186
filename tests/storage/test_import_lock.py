"""A fork waits for the modules that other threads import (decision 0154)."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
from conftest import in_child
from events import LONG_S

from wids.storage import import_lock
from wids.storage.import_lock import hold_imports, release_imports


def test_a_fork_waits_once_for_an_import_that_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread whose module never ends, such as a server, delays the first fork only."""
    monkeypatch.setattr(import_lock, "_LONGEST_IMPORT_S", 0.3)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "endless_module.py").write_text(
        "import sys; sys.is_begun.set(); sys.is_over.wait()"
    )
    monkeypatch.setattr(sys, "is_begun", is_begun := threading.Event(), raising=False)
    monkeypatch.setattr(sys, "is_over", is_over := threading.Event(), raising=False)
    thread = threading.Thread(target=importlib.import_module, args=["endless_module"])
    thread.start()
    is_begun.wait()
    began_s = time.monotonic()
    assert in_child(lambda: True)
    first_s = time.monotonic() - began_s
    monkeypatch.setattr(import_lock, "_LONGEST_IMPORT_S", LONG_S)
    assert in_child(lambda: True)
    is_over.set()
    thread.join()

    assert first_s >= 0.3
    assert time.monotonic() - began_s < LONG_S, "the second one did not wait"


def test_a_fork_keeps_nothing_of_its_callers() -> None:
    """What the callers of a fork have ends with them, such as a loader, whose workers end then."""

    class Loader:
        """Stands for what a caller has."""

    def start() -> weakref.ref[Loader]:
        loader = Loader()
        hold_imports()
        release_imports()
        return weakref.ref(loader)

    gc.disable()
    try:
        assert start()() is None
    finally:
        gc.enable()
