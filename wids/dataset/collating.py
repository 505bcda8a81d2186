"""Collate the samples of a batch into tensors as torch does, padded or ragged where asked for.

Accepts a batch from which all samples were left out, and keeps the memory order of pictures.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from wids.dataset.sending import LARGE_NBYTES, is_plain, joined_shape, lender, send_by_value
from wids.shards.fields.codecs import media_kind
from wids.storage.stages import COLLATE, timed

if TYPE_CHECKING:
    import torch


LENGTHS: Final = "__lengths__"
"""The name of the lengths in a padded batch."""


def by_name(sample: Any) -> dict[Any, Any]:
    """Return the values of a sample by field, or by position if it is a tuple without names.

    A sample that is neither a dict nor a tuple has one value, by the name ``None``.
    """
    if isinstance(sample, Mapping):
        return dict(sample)
    if isinstance(sample, tuple | list):
        return dict(zip(getattr(sample, "_fields", range(len(sample))), sample, strict=True))
    return {None: sample}


def label(name: str | int | None) -> str:
    """Return what messages call a value of the samples: a field, or a position in a tuple."""
    if name is None:
        return "the samples"
    return f"value {name} of the tuples" if isinstance(name, int) else f'field "{name}"'


def padded(samples: Sequence[Any], pad: Mapping[Any, float]) -> list[Any]:
    """Return samples whose values of some fields have one shape, with their previous lengths.

    Args:
        samples: The samples of a batch: dicts or tuples with the same fields. A padded value is a
            tensor, an array, or ``(samples, rate)`` as audio is decoded.
        pad: The fields, or the positions in tuples, to pad at the end, and what to fill them with.

    Raises:
        ValueError: The samples lack a field, or its values differ in more than one dimension, or in
            their rate.
        TypeError: The values of a field are not arrays.
    """
    dicts = [{**by_name(sample), LENGTHS: {}} for sample in samples]
    for field, filler in pad.items():
        if field is None or not any(field in sample for sample in dicts):
            raise _unknown("pad", field, by_name(samples[0]))
        if not all(field in sample for sample in dicts):
            raise _error_of_field([{n: v for n, v in s.items() if n == field} for s in dicts])
        values = [sample[field] for sample in dicts]
        rates = _rates(field, values)
        arrays = [value[0] for value in values] if rates else values
        axis = _axis(field, arrays, default=-1 if rates else 0)
        size = max(array.shape[axis] for array in arrays)
        for number, array in enumerate(arrays):
            longer = _extended(array, axis, size, filler)
            dicts[number][field] = (longer, rates[number]) if rates else longer
            dicts[number][LENGTHS][field] = array.shape[axis]
    return dicts if isinstance(samples[0], Mapping) else [tuple(each.values()) for each in dicts]


def _unknown(argument: str, field: Any, values: Mapping[Any, Any]) -> ValueError:
    """Return the error for a field in an argument that the samples do not have."""
    expected, advice = f"a field of the samples, {', '.join(map(str, values))}", ""
    if None in values:
        expected = f"samples that are dicts or tuples, not {type(values[None]).__name__}"
    elif isinstance(next(iter(values), ""), int):
        expected = f"a position from 0 to {len(values) - 1}, since the samples are tuples"
        example = {"pad": "{0: 0.0}", "ragged": "[0]"}[argument]
        advice = f"; pass {argument}={example} for their first value"
    return ValueError(f"collate: {argument}: expected {expected}, found {field!r}{advice}")


def _rates(field: Any, values: Sequence[Any]) -> list[int]:
    """Return the rates of decoded sounds, which are equal; none for other values."""
    if not all(isinstance(value, tuple) and len(value) == 2 for value in values):
        return []
    rates = [rate for _, rate in values]
    if len(set(rates)) > 1:
        found = ", ".join(map(str, sorted(set(rates))))
        raise ValueError(
            f"collate: {label(field)}: expected audio of one rate, found {found} Hz; resample "
            "them with wids.Audio(rate=…)"
        )
    return rates


def _axis(field: Any, arrays: Sequence[Any], default: int) -> int:
    """Return the dimension in which arrays differ, or a default if they have one shape."""
    for array in arrays:
        if not getattr(array, "shape", ()):
            raise TypeError(
                f"collate: {label(field)}: expected tensors, arrays or audio to pad, found "
                f"{type(array).__name__}; decode the field, or leave it out of pad"
            )
    shapes = {tuple(array.shape) for array in arrays}
    is_even = len(set(map(len, shapes))) == 1
    axes = [n for n, sizes in enumerate(zip(*shapes, strict=is_even)) if len(set(sizes)) > 1]
    if not is_even or len(axes) > 1:
        raise ValueError(
            f"collate: {label(field)}: expected values that differ in one dimension, found shapes "
            f"{', '.join(sorted(map(str, shapes))[:4])}; crop or resize them in a transformation"
        )
    return axes[0] if axes else default


def _extended(value: Any, axis: int, size: int, filler: float) -> torch.Tensor:
    """Return a tensor that has this size in a dimension."""
    import torch

    tensor = torch.as_tensor(value)
    shape = list(tensor.shape)
    shape[axis] = size
    longer = tensor.new_full(shape, filler)
    longer.narrow(axis, 0, tensor.shape[axis]).copy_(tensor)
    return longer


@dataclass(frozen=True, slots=True)
class _Ragged:
    """A value of a sample whose number of rows differs between samples, with its name."""

    name: Any
    value: Any


def _marked(sample: Any, names: Collection[Any], unseen: set[Any]) -> Any:
    """Return a sample whose values by some names, at any depth of its dicts, are `_Ragged`.

    Names that it has are removed from ``unseen``.
    """
    values = by_name(sample)
    unseen.difference_update(values)
    for name, value in values.items():
        if name in names:
            values[name] = _Ragged(name, value)
        elif isinstance(value, Mapping):
            values[name] = _marked(value, names, unseen)
    if isinstance(sample, Mapping):
        return values
    return sample._make(values.values()) if hasattr(sample, "_make") else tuple(values.values())


def _with_ragged(samples: Sequence[Any], names: Collection[Any]) -> list[Any]:
    """Return samples whose values by these names are `_Ragged`.

    Raises:
        TypeError: The names are a single one.
        ValueError: No sample has one of them.
    """
    if not isinstance(names, Collection) or isinstance(names, str):
        raise TypeError(f"collate: ragged: expected a list of fields, found {names!r:.80}")
    if names and not isinstance(samples[0], Mapping | tuple | list):
        raise _unknown("ragged", next(iter(names)), by_name(samples[0]))
    unseen = set(names)
    marked = [_marked(sample, names, unseen) for sample in samples]
    if unseen:
        raise _unknown("ragged", next(n for n in names if n in unseen), by_name(samples[0]))
    return marked


def collate(
    samples: Sequence[Any],
    *,
    pad: Mapping[str, float] | Mapping[int, float] | None = None,
    ragged: Collection[str] | Collection[int] = (),
) -> Any:
    """Collate samples as torch's ``default_collate`` does; an empty batch becomes ``{}``.

    With ``on_error="skip"`` a batch may have lost all of its samples, which torch's function
    refuses. A loop on one rank skips it: ``if not batch: continue``. Where ranks wait for each
    other in each step, use ``on_error="next"``.

    Pictures that are decoded to tensors are views of rows of pixels. Torch's function copies them
    pixel by pixel into planes of one color, which takes almost three times as long. Here their
    batch has the same shape and values, and stays in that order: ``torch.channels_last``, which
    convolutions take as it is. ``batch.contiguous()`` makes planes, for ``view``.

    In a worker of a DataLoader on Linux, large tensors are in shared memory that is used again once
    nothing reads it. A batch that is kept keeps its values, and the worker takes other memory. A
    program may use a batch, in a worker or after it has arrived, as torch allows.

    Args:
        samples: The samples of a batch.
        pad: Fields whose tensors, arrays or audio may differ in one dimension, with the number
            that fills the end of the shorter ones: ``{".wav": 0.0}``. Samples that are tuples, as
            of ``to_tuple``, have positions, ``{0: 0.0}``, and named tuples the names of their
            values. The batch then has ``"__lengths__"``, a dict of their lengths in that dimension:
            tensors of shape ``(len(samples),)``. That of tuples has it as one more value, the last.
            If no value is longer, the dimension is the last of audio, and the first of others.
        ragged: Fields whose tensors, arrays or lists of numbers differ in their first dimension,
            such as the boxes, points and labels of pictures, also keys of dicts in the samples, or
            positions in tuples. Each becomes ``{"values": …, "offsets": …}``: the rows of all
            samples, and int64 of shape ``(len(samples) + 1,)``. ``values[offsets[n]:offsets[n+1]]``
            are the rows of sample ``n``. A value of shape ``(0,)``, such as ``[]``, has no rows,
            whatever the shape of the others.

    Returns:
        A batch: for samples that are dicts, a dict of tensors of shape ``(len(samples), …)``, or of
        lists where values are text; for tuples, a list of these. An array becomes a tensor. Numbers
        are int64, or float64 where one of them is floating-point, in whatever order they come.

    Raises:
        ValueError: Only some samples have a field, or arrays of a field differ in shape, beyond
            what ``pad`` evens out; or no sample has a field of ``pad`` or ``ragged``.
        TypeError: A field has values that cannot become tensors, or not without a loss: integers
            beyond 64 bits, large ones beside fractions, masked arrays; or ragged values that differ
            in more than their first dimension.

    Example:
        >>> import torch, wids
        >>> wids.collate([{".cls": 3, ".txt": "a"}, {".cls": 4, ".txt": "b"}])
        {'.cls': tensor([3, 4]), '.txt': ['a', 'b']}
        >>> tuples = [(torch.ones(2), 3), (torch.ones(1), 4)]
        >>> wids.collate(tuples, pad={0: 0.0})
        [tensor([[1., 1.],
                [1., 0.]]), tensor([3, 4]), {0: tensor([2, 1])}]
        >>> batch = wids.collate([{"boxes": [[1, 2], [3, 4]]}, {"boxes": []}], ragged=["boxes"])
        >>> batch["boxes"]["values"], batch["boxes"]["offsets"]
        (tensor([[1, 2],
                [3, 4]]), tensor([0, 2, 2]))
        >>> wids.collate([])
        {}
    """
    return timed(COLLATE, _collated, samples, pad, ragged)


def _collated(
    samples: Sequence[Any], pad: Mapping[Any, float] | None, ragged: Collection[Any]
) -> Any:
    samples = list(samples)  # of an array, its rows
    if not samples:
        return {}
    if pad is not None:
        samples = padded(samples, pad)
    if ragged != ():
        samples = _with_ragged(samples, ragged)
    try:
        batch = _collated_by_type(samples)
    except (TypeError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        raise _error_of_field(samples) from error
    send_by_value(batch)
    return batch


def _collated_by_type(values: list[Any]) -> Any:
    """Collate by torch's table, with the functions that programs added, and those below.

    Torch's own follow the type of the first value. These have one result, or error, for all orders
    of a batch, and lose nothing.
    """
    import numpy as np
    import torch
    from torch.utils.data._utils.collate import collate as collate_by
    from torch.utils.data._utils.collate import default_collate_fn_map

    table: dict[Any, Any] = dict(default_collate_fn_map)
    table |= {torch.Tensor: _stack, np.ndarray: _arrays, str: _texts, bytes: _texts}
    table |= dict.fromkeys((float, int, (np.bool_, np.number, np.object_)), _numbers)
    table |= {dict: _mappings, Mapping: _mappings, _Ragged: _rows}
    return collate_by(values, collate_fn_map=table)


class _MixedError(TypeError):
    """Values that do not go together; the text says what was expected, and what was found."""


def _numbers(batch: Sequence[Any], *, collate_fn_map: Any) -> torch.Tensor:  # noqa: ARG001
    """Return numbers as float64 if one of them is floating-point, else as int64 or bool.

    Numbers of numpy that have one type keep it.
    """
    import numpy as np
    import torch

    kinds = set(map(type, batch))
    if kinds == {float}:
        return torch.tensor(batch, dtype=torch.float64)
    if kinds == {int}:
        with suppress(ValueError, RuntimeError, OverflowError):  # beyond 64 bits, which is named
            return torch.tensor(batch)
    if not all(issubclass(kind, (bool, int, float, np.bool_, np.number)) for kind in kinds):
        raise _MixedError(f"numbers alone, found {_kinds_text(batch)}")
    if len(kinds) == 1 and not kinds.issubset((bool, int)):
        return torch.as_tensor(np.asarray(batch))
    numbers = [number.item() if isinstance(number, np.generic) else number for number in batch]
    if any(isinstance(number, float) for number in numbers):
        for number in numbers:
            if not isinstance(number, float) and not _is_float(number):
                raise _MixedError(f"numbers that float64 holds, found {number} beside fractions")
        return torch.tensor(numbers, dtype=torch.float64)
    for number in numbers:
        if not -(1 << 63) <= number < 1 << 63:
            raise _MixedError(f"integers of 64 bits, found {number}; store it as text")
    return torch.tensor(numbers)


def _is_float(number: int) -> bool:
    try:
        return float(number) == number
    except OverflowError:
        return False


def _mappings(batch: Sequence[Any], *, collate_fn_map: Any) -> Any:
    """Collate dicts as torch does; it would drop the keys that the first one lacks."""
    from torch.utils.data._utils.collate import collate as collate_by

    first = batch[0]
    if not all(issubclass(kind, Mapping) for kind in set(map(type, batch))):
        raise _MixedError(f"dicts alone, found {_kinds_text(batch)}")
    names = first.keys()
    for other in batch:
        if other.keys() != names:
            name = next(iter(other.keys() ^ names))
            raise _MixedError(f"dicts with the same keys, found {name!r} in some of them only")
    columns = {
        name: collate_by([each[name] for each in batch], collate_fn_map=collate_fn_map)
        for name in first
    }
    if type(first) is dict:
        return columns
    try:
        if not isinstance(first, MutableMapping):
            return type(first)(columns)
        clone = copy(first)  # which may have attributes
        clone.update(columns)
    except TypeError:
        return columns
    return clone


def _texts(batch: Sequence[Any], *, collate_fn_map: Any) -> Sequence[Any]:  # noqa: ARG001
    """Return texts as they are."""
    if not all(issubclass(kind, str | bytes) for kind in set(map(type, batch))):
        raise _MixedError(f"texts alone, found {_kinds_text(batch)}")
    return batch


def _arrays(batch: Sequence[Any], *, collate_fn_map: Any) -> Any:
    """Collate arrays as torch does, in the byte order of this machine."""
    import numpy as np
    from torch.utils.data._utils.collate import default_collate_fn_map

    if not all(isinstance(array, np.ndarray) for array in batch):
        raise _MixedError(f"arrays alone, found {_kinds_text(batch)}")
    for array in batch:
        if isinstance(array, np.ma.MaskedArray):
            _unmasked(array)
    native = [array.astype(array.dtype.newbyteorder("="), copy=False) for array in batch]
    return default_collate_fn_map[np.ndarray](native, collate_fn_map=collate_fn_map)


def _rows(batch: Sequence[_Ragged], *, collate_fn_map: Any) -> dict[str, torch.Tensor]:  # noqa: ARG001
    """Return the rows of all values, and where those of each begin."""
    import torch

    name = batch[0].name
    tensors = list(map(_as_rows, batch))
    shapes = {tuple(tensor.shape[1:]) for tensor in tensors if tensor.shape != (0,)} or {()}
    if len(shapes) > 1:
        raise _MixedError(
            f"values of {name!r} that differ in their first dimension alone, found shapes "
            f"{', '.join(sorted({str(tuple(tensor.shape)) for tensor in tensors})[:4])}"
        )
    full = [tensor for tensor in tensors if tensor.shape != (0,)] or tensors[:1]
    if len({tensor.dtype for tensor in full}) == 1 and all(map(is_plain, full)):
        values = _joined_plain(full)
    else:
        values = torch.cat(full)
        parts = values.tensor_split(list(accumulate(map(len, full)))[:-1])
        if not all(map(_holds, parts, full)):
            found = " and ".join(sorted({str(tensor.dtype) for tensor in full}))
            raise _MixedError(f"values of {name!r} that {values.dtype} holds, found {found}")
    offsets = torch.tensor([0, *accumulate(map(len, tensors))])
    return {"values": values, "offsets": offsets}


def _as_rows(ragged: _Ragged) -> torch.Tensor:
    """Return a ragged value as a tensor with at least one dimension."""
    import numpy as np
    import torch

    value = ragged.value
    if not isinstance(value, torch.Tensor):
        if isinstance(value, np.ma.MaskedArray):
            value = _unmasked(value)
        try:
            array = np.asarray(value)
        except ValueError:  # lists of different lengths
            array = np.empty(0, object)
        if array.dtype.kind in "biufc":
            value = torch.as_tensor(array.astype(array.dtype.newbyteorder("="), copy=False))
    if not isinstance(value, torch.Tensor) or not value.ndim:
        raise _MixedError(
            f"arrays, tensors or lists of numbers as {ragged.name!r}, found {ragged.value!r:.80}"
        )
    return value


def _unmasked(array: Any) -> Any:
    """Return an array that has masked values as its base does; one that has some is refused."""
    import numpy as np

    if np.ma.is_masked(array):
        raise _MixedError(
            "arrays without masked values, which a tensor has not; fill them, array.filled(…), "
            "and keep array.mask as a field of its own"
        )
    return array.data


def _kinds_text(batch: Sequence[Any]) -> str:
    return " and ".join(sorted({type(value).__name__ for value in batch}))


def _stack(batch: list[torch.Tensor], *, collate_fn_map: Any) -> torch.Tensor:
    """Stack tensors in the order that the first one has in memory."""
    import torch
    from torch.utils.data._utils.collate import default_collate_fn_map

    def stack(tensors: list[torch.Tensor]) -> torch.Tensor:
        stacked: torch.Tensor | None = _stack_plain(tensors) if _are_plain(tensors) else None
        if stacked is None:
            by_torch = default_collate_fn_map[torch.Tensor]
            stacked = by_torch(tensors, collate_fn_map=collate_fn_map)
            kinds = {tensor.dtype for tensor in tensors}
            if len(kinds) > 1 and not all(map(_holds, stacked, tensors)):
                found = " and ".join(sorted(map(str, kinds)))
                raise _MixedError(f"values that {stacked.dtype} holds, found {found}")
        return stacked

    first = batch[0]
    if first.ndim < 3 or first.layout != torch.strided or first.is_contiguous():
        return stack(batch)
    order = sorted(range(first.ndim), key=first.stride, reverse=True)
    if not first.permute(order).is_contiguous():  # a slice, or repeated in memory
        return stack(batch)
    stacked = stack([tensor.permute(order) for tensor in batch])
    return stacked.permute(0, *(1 + order.index(axis) for axis in range(first.ndim)))


def _holds(row: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether a row of another type has the values of a tensor."""
    return bool(((row.to(tensor.dtype) == tensor) | tensor.isnan()).all())


def _are_plain(tensors: list[torch.Tensor]) -> bool:
    """Whether tensors are plain, and of one shape and type."""
    first = tensors[0]
    return all(
        is_plain(tensor) and (tensor.shape, tensor.dtype) == (first.shape, first.dtype)
        for tensor in tensors
    )


def _stack_plain(tensors: list[torch.Tensor]) -> torch.Tensor | None:
    """Stack plain tensors; return None for torch's own way."""
    import torch

    if _is_small(tensors):
        return torch.stack(tensors)  # in a worker torch would make shared memory for it
    return _joined_large([tensor[None] for tensor in tensors])


def _joined_plain(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return plain tensors of one type one after the other."""
    import torch

    joined = None if _is_small(tensors) else _joined_large(tensors)
    return torch.cat(tensors) if joined is None else joined


def _is_small(tensors: list[torch.Tensor]) -> bool:
    return sum(tensor.nbytes for tensor in tensors) <= LARGE_NBYTES


def _joined_large(tensors: list[torch.Tensor]) -> torch.Tensor | None:
    """Return plain tensors of one type one after the other, or None for torch's own way.

    A worker does it in memory that it lends, and other processes in this thread alone.
    """
    import numpy as np
    import torch
    from torch.utils.data import get_worker_info

    if get_worker_info() is not None:
        buffers = lender()
        return None if buffers is None else buffers.joined(tensors)
    try:
        # torch's threads wait for each other: where other processes use the processors, that takes
        # up to eighty times as long as this copy.
        arrays = [tensor.numpy() for tensor in tensors]
        # numpy would keep the order that the arrays have in memory; torch does not.
        out = np.empty(joined_shape(tensors), arrays[0].dtype)
        return torch.from_numpy(np.concatenate(arrays, out=out))
    except TypeError:  # a type that numpy lacks
        return None


def called(named: list[dict[Any, Any]], number: int) -> str:
    """Return what messages call a sample of a batch: its key, or its number."""
    key = named[number].get("__key__")
    return f"sample {number} of the batch" if key is None else repr(key)


def _error_of_field(samples: Sequence[Any]) -> Exception:
    """Return the error of the first field, or position in tuples, that cannot be collated."""
    import torch

    named = list(map(by_name, samples))
    names = dict.fromkeys(name for sample in named for name in sample)
    for name in names:
        start = f"collate: {label(name)}: expected"
        having = [sample for sample in named if name in sample]
        if len(having) < len(named):
            number = next(n for n, sample in enumerate(named) if name not in sample)
            lacking = called(named, number)
            return ValueError(
                f"{start} it in all {len(named)} samples of the batch, found it in {len(having)}, "
                f"and not in {lacking}; choose fields that all samples have, with fields= or "
                "to_tuple()"
            )
        values = [sample[name] for sample in named]
        try:
            _collated_by_type(values)
        except TypeError as reason:
            text = (
                f"{start} numbers, texts, arrays or tensors, found {type(values[0]).__name__}; "
                f"decode it ({_how_to_decode(name)}) or leave it out (fields=, to_tuple())"
            )
            if isinstance(reason, _MixedError):
                text = f"{start} {reason}"
            # The reason for None instead of samples asks whether a map returns nothing.
            return reason if name is None and values[0] is None else TypeError(text)
        except (RuntimeError, KeyError, AttributeError) as reason:
            arrays = [value[0] if isinstance(value, tuple) and value else value for value in values]
            shapes = sorted({str(tuple(getattr(value, "shape", ()))) for value in arrays})
            if len(shapes) > 1:
                return ValueError(
                    f"{start} values of one shape, found shapes {', '.join(shapes[:4])}; "
                    f"{_how_to_even_out(name, values[0])}"
                )
            if any(isinstance(value, torch.Tensor) and value.requires_grad for value in arrays):
                return ValueError(
                    f"{start} tensors without requires_grad, since a gradient does not leave a "
                    "worker of a DataLoader; return tensor.detach(), or use num_workers=0"
                )
            return ValueError(f"{start} values that torch can stack; found {reason!s:.300}")
    return ValueError("collate: the samples cannot be collated together")


def _how_to_decode(field: Any) -> str:
    """Return the argument that decodes a field to tensors."""
    decoders = {"audio": 'Decoder(audio="torch")', "video": "Decoder(video=wids.Clips(…))"}
    return decoders.get(media_kind(str(field)), 'transformations="torch"')


def _how_to_even_out(field: Any, value: Any) -> str:
    """Return how values of a field become equally long; in a tuple, audio is known by its rate."""
    has_rate = isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], int)
    if media_kind(str(field)) == "audio" or has_rate:
        name = f'"{field}"' if isinstance(field, str) else field
        return (
            f"pad them, collate_fn=functools.partial(wids.collate, pad={{{name}: 0.0}}), or "
            "decode parts of one length, wids.Audio(duration_s=…)"
        )
    return "crop or pad them (wids.collate(pad=…), a transformation), or batch by shape"
