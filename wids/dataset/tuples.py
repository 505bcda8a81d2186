"""Turn samples into tuples of fields, and find the samples that have all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from wids.shards.positions import Positions, select_batch
from wids.shards.reader import ShardReader
from wids.shards.tars.index import ShardIndex
from wids.storage.arrays import BoolArray

_NUM_TOGETHER: Final = 1 << 20
"""Samples of a view that are looked up together."""


class ToTuple:
    """A transformation from a sample to a tuple of fields.

    Args:
        fields: Each a name with or without its leading dot, or several separated by semicolons, of
            which the first that a sample has is taken; ``__key__`` and its like are names too.
        missing: What takes the place of fields that a sample lacks, by their names.

    Raises:
        ValueError: There is no name, or an empty one; ``missing`` has others.
        TypeError: A name is not a text.
    """

    def __init__(self, *fields: str, missing: Mapping[str, Any] | None = None) -> None:
        if not fields:
            raise ValueError('to_tuple: expected names of fields, such as ".jpg;.png", found none')
        self.fields = fields
        self._alternatives = tuple(map(_alternatives, fields))
        self._missing: dict[tuple[str, ...], Any] = {}
        for name, value in (missing or {}).items():
            first = _alternatives(name)[0]
            of_name = [names for names in self._alternatives if first in names]
            if not of_name:
                raise ValueError(f"to_tuple: missing: expected one of {fields}, found {name!r}")
            self._missing.update(dict.fromkeys(of_name, value))

    def __call__(self, sample: Any) -> tuple[Any, ...]:
        """Return the fields of a sample.

        Raises:
            KeyError: The sample has none of the alternatives, and ``missing`` no value; its last
                argument is the field.
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
            spelling = next((name for name in spellings if name is not None), None)
            if spelling is not None:
                values.append(sample[spelling])
            elif names in self._missing:
                values.append(self._missing[names])
            else:
                raise KeyError(_missing_text(names, sample), names[0])
        return tuple(values)

    def in_all(self, reader: ShardReader, positions: Positions) -> BoolArray:
        """Return which samples have all fields, by the indexes of their shards.

        A field that no sample has stored is left to the transformation that may add it.

        Raises:
            FetchError: A shard has no index, and would have to be fetched.
        """
        has = np.zeros((len(self._alternatives), len(positions)), np.bool_)
        for first in range(0, len(positions), _NUM_TOGETHER):
            indices = np.arange(first, min(first + _NUM_TOGETHER, len(positions)))
            at = select_batch(positions, indices)
            numbers = np.searchsorted(reader.edges[1:], at, side="right")
            order = np.argsort(numbers, kind="stable")
            for places in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
                number = int(numbers[places[0]])
                index = reader.index(number) or reader.key_index(number)
                local_indices = at[places] - reader.starts[number]
                for row, names in enumerate(self._alternatives):
                    has[row, first + places] = _having(names, index)[local_indices]
        has_fields: BoolArray = np.logical_and.reduce(has[has.any(axis=1)])
        return has_fields

    def __repr__(self) -> str:
        values = {";".join(names): value for names, value in self._missing.items()}
        missing = f", missing={values!r:.80}" if values else ""
        return f"ToTuple({', '.join(map(repr, self.fields))}{missing})"


def _having(names: tuple[str, ...], index: ShardIndex) -> BoolArray:
    """Return which samples of a shard have a field of one of these names, in any case."""
    has, spelt = np.zeros(len(index), np.bool_), {name.lower() for name in names}
    for name in index.fields:
        if name.lower() in spelt:
            has[index.members_of(name)[0]] = True
    return has


def _missing_text(names: tuple[str, ...], sample: Mapping[str, Any]) -> str:
    existing = ", ".join(name for name in sample if name.startswith("."))
    return (
        f"to_tuple: expected the field {' or '.join(names)}, found {existing or 'no fields'}; add "
        f'an alternative, as in ".jpg;.png", or a value, missing={{"{names[0]}": None}}, or leave '
        'such samples out, missing="skip"'
    )


def _alternatives(field: str) -> tuple[str, ...]:
    """Return the names that a text stands for, with their leading dots."""
    if not isinstance(field, str):
        raise TypeError(f"to_tuple: expected names of fields, found {field!r:.80}")
    names = [name.strip() for name in field.split(";")]
    if not all(names):
        raise ValueError(f'to_tuple: expected names such as ".jpg;.png", found {field!r}')
    return tuple(name if name.startswith((".", "__")) else f".{name}" for name in names)
