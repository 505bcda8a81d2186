"""Turn samples into tuples of fields, by names with alternatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ToTuple:
    """A transformation from a sample to a tuple of fields.

    Args:
        fields: Each a name with or without its leading dot, or several separated by semicolons, of
            which the first that a sample has is taken; ``__key__`` and its like are names too.

    Raises:
        ValueError: There is no name, or an empty one.
        TypeError: A name is not a text.
    """

    def __init__(self, *fields: str) -> None:
        if not fields:
            raise ValueError('to_tuple: expected names of fields, such as ".jpg;.png", found none')
        self.fields = fields
        self._alternatives = tuple(map(_alternatives, fields))

    def __call__(self, sample: Any) -> tuple[Any, ...]:
        """Return the fields of a sample.

        Raises:
            KeyError: The sample has none of the alternatives.
            TypeError: An earlier transformation did not return a dict.
        """
        if not isinstance(sample, Mapping):
            raise TypeError(
                f"to_tuple: expected a sample, found {type(sample).__name__} {sample!r:.80}; an "
                "earlier transformation returned it"
            )
        try:
            # Nearly all samples have the first alternative as it is spelt.
            return tuple([sample[names[0]] for names in self._alternatives])
        except KeyError:
            return self._chosen(sample)

    def _chosen(self, sample: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the fields, by any alternative and in any case."""
        # The first spelling wins, should a sample have both ".jpg" and ".JPG".
        spelt: dict[str, str] = {}
        for name in sample:
            spelt.setdefault(name.lower(), name)
        values = []
        for names in self._alternatives:
            spellings = (n if n in sample else spelt.get(n.lower()) for n in names)
            found = next((name for name in spellings if name is not None), None)
            if found is None:
                existing = ", ".join(name for name in sample if name.startswith("."))
                raise KeyError(
                    f"to_tuple: expected the field {' or '.join(names)}, found "
                    f'{existing or "no fields"}; add an alternative, as in ".jpg;.png"'
                )
            values.append(sample[found])
        return tuple(values)

    def __repr__(self) -> str:
        return f"ToTuple({', '.join(map(repr, self.fields))})"


def _alternatives(field: str) -> tuple[str, ...]:
    """Return the names that a text stands for, with their leading dots."""
    if not isinstance(field, str):
        raise TypeError(f"to_tuple: expected names of fields, found {field!r:.80}")
    names = [name.strip() for name in field.split(";")]
    if not all(names):
        raise ValueError(f'to_tuple: expected names such as ".jpg;.png", found {field!r}')
    return tuple(name if name.startswith((".", "__")) else f".{name}" for name in names)
