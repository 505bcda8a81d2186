"""What a shard is made from → text that changes when it does, to be compared when a run resumes.

Functions are compared by their code and not by where they are in memory, so that the text is the
same in another process. Calls nothing and reads no sample.
"""

from __future__ import annotations

import hashlib
import pickle
from functools import partial
from operator import itemgetter
from types import CodeType, FunctionType, MethodType
from typing import Any
from uuid import uuid4

_ARRAY_METHODS = ("__array__", "__array_interface__", "__arrow_c_stream__", "__arrow_c_array__")
_SIMPLE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


def described(value: Any) -> str:
    """Return a text for simple values, tuples of values, functions and other callables.

    A function is described by its name, its code with the code inside it, its constants, the names
    that it uses, its defaults, and the simple values and functions of its closure; a ``partial`` by
    its function and arguments. Another object by its class, the code of its ``__call__``, its
    attributes that are functions, or simple values, tuples and arrays if it can be called, and its
    ``repr`` where its class has one. Arrays, tensors, tables, pictures, and others whose ``repr``
    is shortened, are described by a digest of what they hold; one that cannot be pickled equals
    nothing, not even itself in a later call.
    """
    return _text(value, ())


def _text(value: Any, outer: tuple[int, ...]) -> str:
    if isinstance(value, _SIMPLE):
        return repr(value)
    if id(value) in outer:  # a function that is in its own closure
        return "…"
    outer = (*outer, id(value))
    if isinstance(value, frozenset):  # a constant, whose order is another in each process
        return f"{{{', '.join(sorted(_text(item, outer) for item in value))}}}"
    parts = value if isinstance(value, tuple) else _parts(value)
    return f"({', '.join(_text(item, outer) for item in parts)})"


def _parts(value: Any) -> tuple[Any, ...]:
    """Return what a callable, or another object, consists of."""
    if isinstance(value, CodeType):
        return value.co_name, value.co_code, value.co_consts, value.co_names, value.co_varnames
    if isinstance(value, FunctionType):
        keywords = _settings(value.__kwdefaults__ or {})
        parts = (_name(value), value.__code__, _settings(value.__defaults__), keywords)
        return *parts, *map(_content, value.__closure__ or ())
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, partial):
        return value.func, _settings(value.args), _settings(value.keywords)
    return (_digest(value),) if _is_array(value) else _of_object(value)


def _is_array(value: Any) -> bool:
    """Whether the ``repr`` of a value shows few of its numbers, and few of their digits."""
    kind = type(value)
    return kind is memoryview or any(hasattr(kind, name) for name in _ARRAY_METHODS)


def _digest(value: Any) -> str:
    """Return the digest of what an object holds."""
    if isinstance(value, memoryview):
        value = value.tobytes()
    try:
        if hasattr(value, "detach"):  # the pickle of a tensor has an address in it
            value = str(value.dtype), value.detach().cpu().numpy()
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - whatever its class raises
        return uuid4().hex
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _settings(value: Any) -> Any:
    """Return defaults or arguments with the items of containers, which are settings here."""
    if isinstance(value, dict):
        return tuple((_settings(name), _settings(held)) for name, held in value.items())
    if isinstance(value, set):
        return frozenset(map(_settings, value))
    return tuple(map(_settings, value)) if isinstance(value, list | tuple) else value


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not set yet
        return None


def _of_object(value: Any) -> tuple[Any, ...]:
    if hasattr(value, "__qualname__"):  # a class, or a builtin function
        return (_name(value),)
    kind = type(value)
    # The function itself, which an instance would bind to itself.
    call = next((vars(k)["__call__"] for k in kind.__mro__ if "__call__" in vars(k)), None)
    held = vars(value).items() if hasattr(value, "__dict__") else ()
    # Those of a callable are its settings; an executor or a session in a closure has a state.
    functions, settings = (FunctionType, MethodType), (*_SIMPLE, tuple, frozenset)
    attributes = tuple(
        (name, value)
        for name, value in sorted(held, key=itemgetter(0))
        if isinstance(value, functions)
        or (call is not None and (isinstance(value, settings) or _is_array(value)))
    )
    parts = (_name(kind), call if isinstance(call, FunctionType) else None, attributes)
    # Containers may collect what a run has done, and an address says nothing.
    text = "" if isinstance(value, list | dict | set) else repr(value)
    if " at 0x" in text:
        return parts
    return (*parts, _digest(value) if "..." in text or "…" in text else text)


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
