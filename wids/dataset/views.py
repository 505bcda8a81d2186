"""Make views of a dataset: tuples of fields, augmentations that can be repeated, and a text.

The random generator of an augmentation is derived from a seed, the epoch and the sample's index, so
that neither the number of workers nor a resumed epoch changes what a sample becomes.

`join_torch` makes a dataset torch's ``Dataset`` without importing torch; decision 0078 has the
reason for the assignment to ``__bases__``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

import numpy as np

from wids.errors import WidsError, printable
from wids.shards.positions import Positions, select_batch
from wids.shards.reader import ShardReader
from wids.shards.tars.index import ShardIndex
from wids.storage.arrays import BoolArray
from wids.storage.sizes import count_text
from wids.storage.stages import SharedNumber, passes_to_process
from wids.storage.transport import urls

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
            found = next((name for name in spellings if name is not None), None)
            if found is not None:
                values.append(sample[found])
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
        found: BoolArray = np.logical_and.reduce(has[has.any(axis=1)])
        return found

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


class Augmentation:
    """A transformation that passes a sample and its generator to a function.

    Args:
        function: Takes a sample and a ``numpy.random.Generator``, and returns a sample.
        seed: The seed, at least 0.
        epoch: The epoch of the dataset.
    """

    def __init__(self, function: Callable[[Any, Any], Any], seed: int, epoch: SharedNumber) -> None:
        try:
            signature(function).bind(None, None)
        except TypeError:
            raise TypeError(
                f"map(seed={seed}): expected a function of two arguments, a sample and a "
                f"numpy.random.Generator, found {_name(function)}{signature(function)}; take the "
                "generator, f(sample, rng), or leave seed out"
            ) from None
        except ValueError:  # some functions in C do not state theirs
            pass
        self.function = function
        from wids.order.arguments import at_least  # not for reading: decision 0057

        self.seed = at_least(0, seed, "seed")
        self._epoch = epoch

    def __call__(self, sample: Any) -> Any:
        """Return what the function returns for the sample.

        Raises:
            TypeError: An earlier transformation returned something without an index.
        """
        from numpy.random import default_rng

        try:
            index = sample["__index__"]
        except (TypeError, KeyError, IndexError):
            raise TypeError(
                "map(seed=…): expected a sample with __index__, found "
                f"{type(sample).__name__} {sample!r:.80}; put this map before the one that removes "
                "it, or before to_tuple"
            ) from None
        return self.function(sample, default_rng((self.seed, self._epoch.value, index)))

    def __repr__(self) -> str:
        return f"Augmentation({_name(self.function)}, seed={self.seed})"


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


if TYPE_CHECKING:
    from torch.utils.data import Dataset

    TorchDataset = Dataset[Any]
else:

    class TorchDataset(Generic[TypeVar("T")]):  # Python replaces only a base of the same layout
        """Stands in for torch's ``Dataset`` until the program has imported torch.

        A DataLoader needs no such base, and browsing should not import torch.
        """


class _Unbatched(type):
    def __instancecheck__(cls, value: object) -> bool:
        return value is None or type(value).__module__.startswith("PIL.")


class _Value(metaclass=_Unbatched):
    """Any value of which torch makes no batch, and for which there is advice."""


def _refuse(batch: Sequence[Any], **_: Any) -> NoReturn:
    """Raise the error for a batch of such values, in place of torch's, which has their type."""
    if batch[0] is None:
        raise TypeError(
            "expected samples to batch, found None; does a function that was passed to map() end "
            "without `return sample`?"
        )
    raise TypeError(
        'expected arrays or tensors to batch, found pictures of PIL; use transformations="torch" '
        'or "numpy", turn them into tensors in map(), or pass collate_fn=list to the DataLoader'
    )


def check_spawnable(steps: Iterable[Any], on_error: Any) -> None:
    """Raise TypeError for a function that a process which is being started cannot find by name.

    Args:
        steps: The transformations of a dataset.
        on_error: Its policy.
    """
    if not passes_to_process():
        return
    decoders = [each for step in steps for each in getattr(step, "table", {}).values()]
    places = {
        "map": steps,
        "Decoder: decoders": decoders,
        "on_error": [on_error],
        "collate_fn or worker_init_fn": filter(callable, _arguments_of_process()),
    }
    # A notebook and `python -c` have no file that a worker could import.
    has_file = hasattr(sys.modules["__main__"], "__file__")
    for place, functions in places.items():
        for each in functions:
            function = getattr(each, "func", getattr(each, "function", each))
            named = function if hasattr(function, "__qualname__") else type(function)
            is_of_main = getattr(named, "__module__", "") == "__main__"
            if "<" in named.__qualname__ or (is_of_main and not has_file):
                raise TypeError(
                    f"{place}: expected a function at the top level of a module that workers can "
                    f"import, as they are not forked, found {named.__qualname__} of "
                    f"{named.__module__}; define it in a file with `def`, or pass "
                    'multiprocessing_context="fork" to the DataLoader'
                )


def _arguments_of_process() -> Iterable[Any]:
    """Return the arguments of the process that is being started: the functions of its loader.

    They are pickled after the dataset, with an error of Python that names no place.
    """
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - documented, unlike any other way
    while frame is not None:
        if "process_obj" in frame.f_locals:  # multiprocessing's name for it (decision 0086)
            return getattr(frame.f_locals["process_obj"], "_args", ())
        frame = frame.f_back
    return ()


def join_torch(cls: type) -> None:
    """Make a class whose base is `TorchDataset` torch's ``Dataset``, if torch was imported.

    Programs check it with ``isinstance``, and torch may be imported before or after this module.
    Also have torch's ``default_collate`` say what to do (decision 0078).
    """
    if "torch.utils.data" in sys.modules:
        from torch.utils.data._utils.collate import default_collate_fn_map

        default_collate_fn_map.setdefault(_Value, _refuse)
    base = getattr(sys.modules.get("torch.utils.data"), "Dataset", None)
    if base is not None and not issubclass(cls, base):
        with suppress(TypeError):  # a subclass names torch's class before this one
            cls.__bases__ = (base,)


def overrides(cls: type, name: str, other: str) -> bool:
    """Return whether a class inherits a method from a nearer class than another method."""
    # A class that overrides both methods keeps its own batches, and one that inherits from such a
    # class does too.
    nearest = next(vars(base) for base in cls.__mro__ if {name, other} & vars(base).keys())
    return other not in nearest


_MAX_SHARDS: Final = 16
"""Shards that are asked whether they are open."""
_MAX_FIELDS: Final = 12


def dataset_repr(dataset: Any) -> str:
    """Describe a dataset or view: its name, samples, shards, fields and transformations.

    Reads nothing that is not at hand: fields are those of a shard that is open, or of a local
    dataset index.
    """
    name = f" {dataset.dataset_name!r}" if dataset.dataset_name else ""
    total = f"of {len(dataset.reader):,} " if dataset.is_view else ""
    samples = count_text(len(dataset), "sample").replace(" ", f" {total}", 1)
    parts = [samples, count_text(len(dataset.spec.shards), "shard")]
    fields = _known_fields(dataset)
    if fields:
        more = " …" if len(fields) > _MAX_FIELDS else ""
        parts.append(f"fields {' '.join(fields[:_MAX_FIELDS])}{more}")
    if dataset.transformations:
        parts.append(f"through {', '.join(map(_step_name, dataset.transformations))}")
    return printable(f"<{type(dataset).__name__}{name}: {', '.join(parts)}>")


def _known_fields(dataset: Any) -> list[str]:
    reader, spec = dataset.reader, dataset.spec
    if reader.fields is not None:
        return list(reader.field_names(sorted(reader.fields)))
    # An error of a shard is reported when it is read.
    with suppress(WidsError, OSError):
        for number in range(min(len(spec.shards), _MAX_SHARDS)):
            if reader.peek(number) is not None:
                return list(reader.field_names(reader.index(number).fields))
        if any(part.start == 0 and urls.is_local(part.url) for part in spec.all_dataset_indexes()):
            index = reader.known_index(0)
            return [] if index is None else list(reader.field_names(index.fields))
    return []


def _step_name(function: Any) -> str:
    """Return a callable as text: its name, its ``repr``, or the name of its type."""
    name = getattr(function, "__qualname__", None) or repr(function)
    return printable(type(function).__name__ if " at 0x" in name else name)


def show_in_notebooks(*dataset: Any) -> None:
    """Have IPython show samples, if the program runs it; see `wids.look.in_notebooks`."""
    if "IPython" in sys.modules:
        from wids.look import in_notebooks

        in_notebooks.show_in_notebooks(*dataset)
