"""What a shard is made from → text that changes when it does, to be compared when a run resumes.

Functions are compared by their code and not by where they are in memory, so that the text is the
same in another process. Calls nothing and reads no sample.
"""

from __future__ import annotations

from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

_SIMPLE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


def described(value: Any) -> str:
    """Return a text for simple values, tuples of values, functions and other callables.

    A function is described by its name, its code with the code inside it, its constants, the names
    that it uses, its defaults, and the simple values and functions of its closure; a ``partial`` by
    its function and arguments. Another object by its class, the code of its ``__call__``, its
    attributes that are functions, or simple values if it can be called, and its ``repr`` where its
    class has one.
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
    return _of_object(value)


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
    compared = (FunctionType, MethodType, *(_SIMPLE if call is not None else ()))
    attributes = tuple(sorted((n, v) for n, v in held if isinstance(v, compared)))
    parts = (_name(kind), call if isinstance(call, FunctionType) else None, attributes)
    # Containers may collect what a run has done, and an address says nothing.
    text = "" if isinstance(value, list | dict | set) else repr(value)
    return parts if " at 0x" in text else (*parts, text)


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
