"""Interrupt a program at a place of its own choice, and fail a call of its choice to the system.

A test repeats its work for each place, until the work ends without having come to one, and so meets
each state in which a program can be stopped.
"""

from __future__ import annotations

import builtins
import dis
import errno
import gc
import io
import itertools
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

import pytest

import wids

ROOT: Final = Path(wids.__file__).parent
REPEATS: Final = 2
"""How often a place counts: what a loop does the third time, it has done before."""
_YIELD: Final = dis.opmap["YIELD_VALUE"]


@dataclass
class Fault:
    """A fault at the n-th place that a program comes to.

    Attributes:
        number: Which place it is.
        reached: How many places the program has come to.
        where: The place, once the program has come to it.
    """

    number: int
    reached: int = 0
    where: str = ""

    def is_at(self, place: str) -> bool:
        """Count a place, and return whether it is the one."""
        self.reached += 1
        if self.reached == self.number:
            self.where = f"place {self.number}, {place}"
        return self.reached == self.number


def faults(step: int, at_least: int) -> Iterator[Fault]:
    """Yield a fault at every such place, and one that the program does not come to.

    Args:
        step: How many places one fault is after another.
        at_least: How many places the program has. A program that comes to fewer is not the one that
            is meant, and a test of it would show nothing.
    """
    for number in itertools.count(1, step):
        fault = Fault(number)
        yield fault
        if not fault.where:
            assert fault.reached >= at_least, f"only {fault.reached} places"
            with warnings.catch_warnings():
                # Here, and not in a later test: what was interrupted while it was made.
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()
            return


def steps(few: int) -> list[Any]:
    """Return steps of `faults`: few places by default, a seventh of all, and each, every week."""
    long, seeds = pytest.mark.long, pytest.mark.seeds
    return [few, pytest.param(7, marks=long), pytest.param(1, marks=seeds)]


@contextmanager
def interrupting(fault: Fault, *packages: str) -> Iterator[None]:
    """Raise KeyboardInterrupt at a place in these packages of wids, which have to let it through.

    The places are those at which Python runs the handler of a signal: the beginning of a function,
    and the return from one that is not written in Python. An interrupt at lines would also come
    between a ``with`` block and its ``__exit__``, where no signal can.
    """
    folders = tuple(f"{ROOT / package}{os.sep}" for package in packages)
    missing = [folder for folder in folders if not os.path.isdir(folder)]
    assert not missing, f"no packages of wids: {missing}"
    times: Counter[tuple[CodeType, int]] = Counter()

    def on_event(frame: FrameType, event: str, _: object) -> None:
        code, place = frame.f_code, frame.f_lasti
        if not code.co_filename.startswith(folders) or event not in ("call", "c_return"):
            return
        # Nor is there one where a generator is closed, or an error is raised in it; that looks as
        # if it goes on since Python 3.13. One that comes to a finalizer is lost, as every error of
        # it.
        at = place - 2 if sys.version_info >= (3, 13) else place
        is_thrown = event == "call" and at >= 0 and code.co_code[at] == _YIELD
        if is_thrown or code.co_name == "__del__":
            return
        times[code, place] += 1
        if times[code, place] <= REPEATS:
            name = os.path.relpath(code.co_filename, ROOT)
            if fault.is_at(f"{name}:{frame.f_lineno} ({event})"):
                raise KeyboardInterrupt

    previous = sys.getprofile()
    with warnings.catch_warnings():
        # A file that was opened, and that no name refers to yet.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            sys.setprofile(on_event)
            yield
        except KeyboardInterrupt:
            assert fault.where
        else:
            sys.setprofile(previous)
            assert not fault.where, f"{fault.where}: KeyboardInterrupt did not come out"
        finally:
            sys.setprofile(previous)


@contextmanager
def failing(fault: Fault, code: int = errno.ENOSPC) -> Iterator[None]:
    """Fail a call in the block that opens, writes, flushes, links or renames a file."""

    def check(name: str) -> None:
        if fault.is_at(name):
            raise OSError(code, os.strerror(code))

    def checked(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def check_and_call(*arguments: Any, **options: Any) -> Any:
            check(name)
            return call(*arguments, **options)

        return check_and_call

    class RawFile(io.FileIO):
        write = checked("write", io.FileIO.write)
        truncate = checked("truncate", io.FileIO.truncate)

        def __init__(self, file: Any, *arguments: Any, opener: Any = None, **options: Any) -> None:
            if opener is None and not isinstance(file, int):  # an opener calls `os.open`
                check("open")
            super().__init__(file, *arguments, opener=opener, **options)

    plain_open = builtins.open

    def open_file(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if "b" not in mode or mode == "rb":
            return plain_open(file, mode, *arguments, **options)
        raw = RawFile(file, mode.replace("b", ""), opener=options.get("opener"))
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

    with pytest.MonkeyPatch.context() as patches:
        for name in ("open", "fsync", "replace", "link"):
            patches.setattr(os, name, checked(name, getattr(os, name)))
        patches.setattr(builtins, "open", open_file)
        patches.setattr(tempfile._io, "open", open_file)
        for module in _importers_of("FileIO"):
            patches.setattr(module, "FileIO", RawFile)
        yield


def _importers_of(name: str) -> list[ModuleType]:
    """Return the modules of wids that have this name from elsewhere."""
    modules = [module for key, module in sys.modules.items() if key.startswith("wids.")]
    return [module for module in modules if hasattr(module, name)]
