"""Import what ``module:name`` stands for in an argument, also from the current folder."""

from __future__ import annotations

import os
import re
import sys
from typing import Any


def is_name(text: str) -> bool:
    """Return whether a text is ``module:name``, and no URL and no file that exists."""
    is_command = text.startswith(("pipe:", "file:"))
    is_name = re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", text) is not None
    return is_name and not is_command and not os.path.exists(text)


def named_object(text: str, option: str, kind: str) -> Any:
    """Return the object that ``module:name`` stands for, also of a module in this folder.

    Args:
        text: The name.
        option: The argument, for messages.
        kind: What the object is, for messages.

    Raises:
        ValueError: There is no such object.
    """
    from importlib import import_module

    module, mark, name = text.partition(":")
    # As for `python -m`: a script that is installed has its own folder there instead.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        reason = f": {error}" if mark else ""
        raise ValueError(
            f"{option}: expected MODULE:{kind.upper()}, found {text!r}{reason}"
        ) from None
    return found
