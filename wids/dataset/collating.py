"""Collate the samples of a batch into tensors as torch does, with errors that name the field.

Accepts a batch from which all samples were left out, and keeps the memory order of pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wids.dataset.lending import LARGE_NBYTES, is_plain, lender
from wids.dataset.small_tensors import send_by_value
from wids.shards.fields.media import media_kind
from wids.storage.stages import COLLATE, timed

if TYPE_CHECKING:
    import torch


def collate(samples: Sequence[Any], *, pad: Mapping[str, float] | None = None) -> Any:
    """Collate samples as torch's ``default_collate`` does; an empty batch becomes ``{}``.

    With ``on_error="skip"`` a batch may have lost all of its samples, which torch's function
    refuses. A training loop skips it: ``if not batch: continue``.

    Pictures that are decoded to tensors are views of rows of pixels. Torch's function copies them
    pixel by pixel into planes of one color, which takes almost three times as long. Here their
    batch has the same shape and values, and stays in that order: ``torch.channels_last``, which
    convolutions take as it is. ``batch.contiguous()`` makes planes, for ``view``.

    In a worker of a DataLoader on Linux, large tensors are in shared memory that is used again once
    nothing reads it. A batch that is kept keeps its values, and the worker takes other memory. A
    program may use a batch, in a worker or after it has arrived, as torch allows.

    Args:
        samples: The samples of a batch.
        pad: Fields whose tensors, arrays or sounds may differ in one dimension, with the number
            that fills the end of the shorter ones: ``{".wav": 0.0}``. The batch then has
            ``"__lengths__"``, a dict of their lengths in that dimension: tensors of shape
            ``(len(samples),)``. If no value is longer, the dimension is the last of sounds, and the
            first of others.

    Returns:
        A batch: for samples that are dicts, a dict of tensors of shape ``(len(samples), …)``, or of
        lists where values are text.

    Raises:
        ValueError: Only some samples have a field, or arrays of a field differ in shape, beyond
            what ``pad`` evens out.
        TypeError: A field has values that cannot become tensors.

    Example:
        >>> import wids
        >>> wids.collate([{".cls": 3, ".txt": "a"}, {".cls": 4, ".txt": "b"}])
        {'.cls': tensor([3, 4]), '.txt': ['a', 'b']}
        >>> wids.collate([])
        {}
    """
    return timed(COLLATE, _collated, samples, pad)


def _collated(samples: Sequence[Any], pad: Mapping[str, float] | None) -> Any:
    import torch
    from torch.utils.data._utils.collate import collate as collate_by
    from torch.utils.data._utils.collate import default_collate_fn_map

    if not samples:
        return {}
    are_dicts = all(isinstance(sample, Mapping) for sample in samples)
    # torch's function would drop the fields that the first sample of a batch lacks.
    if are_dicts and any(sample.keys() != samples[0].keys() for sample in samples):
        raise _error_of_field(samples)
    if pad is not None:
        from wids.dataset.padding import padded

        samples = padded(samples, pad)
    try:
        # Torch's table, with the functions that programs added.
        functions = {**default_collate_fn_map, torch.Tensor: _stack}
        batch = collate_by(list(samples), collate_fn_map=functions)
    except (TypeError, RuntimeError, KeyError, AttributeError) as error:
        if not are_dicts:
            raise
        raise _error_of_field(samples) from error
    send_by_value(batch)
    return batch


def _stack(batch: list[torch.Tensor], *, collate_fn_map: Any) -> torch.Tensor:
    """Stack tensors in the order that the first one has in memory."""
    import torch
    from torch.utils.data._utils.collate import default_collate_fn_map

    def stack(tensors: list[torch.Tensor]) -> torch.Tensor:
        stacked: torch.Tensor | None = _stack_plain(tensors) if _are_plain(tensors) else None
        if stacked is None:
            by_torch = default_collate_fn_map[torch.Tensor]
            stacked = by_torch(tensors, collate_fn_map=collate_fn_map)
        return stacked

    first = batch[0]
    if first.ndim < 3 or first.layout != torch.strided or first.is_contiguous():
        return stack(batch)
    order = sorted(range(first.ndim), key=first.stride, reverse=True)
    if not first.permute(order).is_contiguous():  # a slice, or repeated in memory
        return stack(batch)
    stacked = stack([tensor.permute(order) for tensor in batch])
    return stacked.permute(0, *(1 + order.index(axis) for axis in range(first.ndim)))


def _are_plain(tensors: list[torch.Tensor]) -> bool:
    """Whether tensors are plain, and of one shape and type."""
    first = tensors[0]
    return all(
        is_plain(tensor) and (tensor.shape, tensor.dtype) == (first.shape, first.dtype)
        for tensor in tensors
    )


def _stack_plain(tensors: list[torch.Tensor]) -> torch.Tensor | None:
    """Stack plain tensors: in a worker into memory that it lends, elsewhere in this thread alone.

    Return None for torch's own way.
    """
    import numpy as np
    import torch
    from torch.utils.data import get_worker_info

    if tensors[0].nbytes * len(tensors) <= LARGE_NBYTES:
        return torch.stack(tensors)  # in a worker torch would make shared memory for it
    if get_worker_info() is not None:
        known = lender()
        return None if known is None else known.stack(tensors)
    try:
        # torch's threads wait for each other: where other processes use the processors, that takes
        # up to eighty times as long as this copy.
        arrays = [tensor.numpy() for tensor in tensors]
        # numpy would keep the order that the arrays have in memory; torch does not.
        stacked = np.empty((len(arrays), *arrays[0].shape), arrays[0].dtype)
        return torch.from_numpy(np.stack(arrays, out=stacked))
    except TypeError:  # a type that numpy lacks
        return None


def _error_of_field(samples: Sequence[Mapping[str, Any]]) -> Exception:
    """Return the error of the first field that cannot be collated."""
    from torch.utils.data import default_collate

    names = dict.fromkeys(name for sample in samples for name in sample)
    for name in names:
        having = [sample for sample in samples if name in sample]
        if len(having) < len(samples):
            lacking = next(sample for sample in samples if name not in sample)
            return ValueError(
                f'collate: field "{name}": expected it in all {len(samples)} samples of the batch, '
                f"found it in {len(having)}, and not in {lacking.get('__key__')!r}; choose fields "
                "that all samples have, with fields= or to_tuple()"
            )
        values = [sample[name] for sample in samples]
        try:
            default_collate(values)
        except TypeError:
            return TypeError(
                f'collate: field "{name}": expected numbers, texts, arrays or tensors, found '
                f"{type(values[0]).__name__}; decode it ({_how_to_decode(name)}) or leave it out "
                "(fields=, to_tuple())"
            )
        except (RuntimeError, KeyError, AttributeError) as reason:
            arrays = [value[0] if isinstance(value, tuple) and value else value for value in values]
            shapes = sorted({str(tuple(getattr(value, "shape", ()))) for value in arrays})
            found = f"shapes {', '.join(shapes[:4])}" if len(shapes) > 1 else str(reason)
            return ValueError(
                f'collate: field "{name}": expected values of one shape, found {found:.300}; '
                f"{_how_to_even_out(name)}"
            )
    return ValueError("collate: the samples cannot be collated together")


def _how_to_decode(field: str) -> str:
    """Return the argument that decodes a field to tensors."""
    decoders = {"audio": 'Decoder(audio="torch")', "video": "Decoder(video=wids.Clips(…))"}
    return decoders.get(media_kind(field), 'transformations="torch"')


def _how_to_even_out(field: str) -> str:
    """Return how values of a field become equally long."""
    if media_kind(field) == "audio":
        return (
            f'pad them, collate_fn=functools.partial(wids.collate, pad={{"{field}": 0.0}}), or '
            "decode parts of one length, wids.Audio(duration_s=…)"
        )
    return "crop or pad them (wids.collate(pad=…), a transformation), or batch by shape"
