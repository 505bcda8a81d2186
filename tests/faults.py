"""Interrupt a program at a line of its own choice, and fail a call of its choice to the system.

Both count: an interrupt comes at the n-th line that is executed in certain folders, a failure at
the k-th call that writes, flushes, opens, links or renames a file. A test repeats its work for
every n and k, and so meets each state in which a program can be stopped.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import wids
from wids.storage import locks

ROOT = Path(wids.__file__).parent


class Count:
    """Counts to a number, and says when it is reached.

    Attributes:
        number: The number to reach; 0 for never.
        reached: How far it has come.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.reached = 0

    def is_now(self) -> bool:
        """Count one more, and return whether it is the one."""
        self.reached += 1
        return self.reached == self.number


@contextmanager
def interrupted(packages: tuple[str, ...], number: int) -> Iterator[Count]:
    """Raise KeyboardInterrupt before the n-th line that the block executes in these packages."""
    count = Count(number)
    folders = tuple(f"{ROOT / package}{os.sep}" for package in packages)

    def on_line(_: FrameType, event: str, __: Any) -> Any:
        if event == "line" and count.is_now():
            raise KeyboardInterrupt
        return on_line

    def on_call(frame: FrameType, _: str, __: Any) -> Any:
        return on_line if frame.f_code.co_filename.startswith(folders) else None

    previous = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield count
    finally:
        sys.settrace(previous)
        # A trace function, unlike a signal, can raise between a `with` block and its `__exit__`.
        while locks._no_fork._is_owned():  # type: ignore[attr-defined]
            locks._no_fork.release()


@contextmanager
def failing_calls(number: int, code: int = errno.ENOSPC) -> Iterator[Count]:
    """Fail the k-th call that opens, writes, flushes, links or renames a file in the block."""
    count = Count(number)

    def checked(call: Callable[..., Any]) -> Callable[..., Any]:
        def check_and_call(*arguments: Any, **options: Any) -> Any:
            if count.is_now():
                raise OSError(code, os.strerror(code))
            return call(*arguments, **options)

        return check_and_call

    class RawFile(io.FileIO):
        write = checked(io.FileIO.write)
        truncate = checked(io.FileIO.truncate)

    plain_open = builtins.open

    def open_file(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if mode not in ("x+b", "w+b", "r+b"):
            return plain_open(path, mode, *arguments, **options)
        return io.BufferedRandom(RawFile(path, mode.replace("b", ""), opener=options.get("opener")))

    with pytest.MonkeyPatch.context() as patches:
        for name in ("open", "fsync", "replace", "link"):
            patches.setattr(os, name, checked(getattr(os, name)))
        patches.setattr(builtins, "open", open_file)
        patches.setattr(tempfile._io, "open", open_file)
        yield count
