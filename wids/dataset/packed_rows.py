"""Join the token sequences of a batch into one row, with what keeps its documents apart.

`wids.order.packed_sampler` chooses the samples, and models take the row as docs/packed.md shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from wids.dataset.collating import by_name, called, label
from wids.dataset.sending import send_by_value
from wids.order.arguments import at_least
from wids.storage.stages import COLLATE, timed

_OF_MASK: Final = "make labels of a mask by numpy.where(mask, tokens, numpy.int64(-100))"


def collate_packed(
    samples: Sequence[Any],
    field: str | int = ".npy",
    *,
    labels: str | int | None = None,
    shift_labels: bool = False,
    pad_to: int = 1,
    pad_token: int = 0,
) -> dict[Any, Any]:
    """Join the token sequences of a batch into one, with what keeps its documents apart.

    Each sample is a *document*. The batch is a single row without padding between documents, as
    `PackedBatchSampler` fills it; attention that respects documents takes ``cu_seqlens``,
    ``position_ids`` or ``document_ids``. docs/packed.md shows how models take them.

    Args:
        samples: The samples of a batch: dicts, tuples, or the sequences themselves as arrays.
        field: The field of the tokens, or their position in tuples: integers with one axis.
        labels: A field of labels: for each token the same token, or -100 where there is nothing to
            learn, such as in prompts; ``numpy.where(mask, tokens, numpy.int64(-100))`` of a mask.
            If None, the labels are the tokens.
        shift_labels: False for models that compare the output at a token with the label of the
            next one, as transformers' do; True for labels that are the next token already, as
            Megatron and torchtitan take them.
        pad_to: Pad the batch to a multiple of this length, and not to 0, for compiled models or
            context parallelism. With the ``max_tokens`` of the sampler, all batches have this
            length. The padding becomes further documents, none longer than the longest of the
            batch.
        pad_token: The token that fills the padding.

    Returns:
        A dict, empty for no samples. ``T`` is the length of the batch and ``N`` its number of
        documents, those of the padding included.

        - ``"input_ids"``, ``"labels"`` and ``"position_ids"``, int64 of shape ``(1, T)``. Positions
          begin at 0 in each document. The first token of a document is no label of the previous
          one: -100 is there, and in the padding.
        - ``"document_ids"``, int32 of shape ``(1, T)``: 0 to N - 1.
        - ``"cu_seqlens"``, int32 of shape ``(N + 1,)``: where documents begin, and T.
        - ``"max_seqlen"``, the length of the longest document.
        - All other fields, each a list with a value of each sample; None where it lacks the field.

    Raises:
        ValueError: A sample lacks the field, its labels are not as many as its tokens or are other
            numbers, a token has more than 63 bits, or one of its fields has a name from above; or
            ``pad_to`` is less than 1.
        TypeError: The tokens or labels are not integers with one axis.

    Example:
        >>> import wids
        >>> samples = [{"__key__": "a", ".npy": [5, 6, 7]}, {"__key__": "b", ".npy": [8, 9]}]
        >>> batch = wids.collate_packed(samples)
        >>> batch["input_ids"], batch["labels"]
        (tensor([[5, 6, 7, 8, 9]]), tensor([[-100,    6,    7, -100,    9]]))
        >>> batch["cu_seqlens"], batch["max_seqlen"], batch["__key__"]
        (tensor([0, 3, 5], dtype=torch.int32), 3, ['a', 'b'])
    """
    return timed(COLLATE, _packed, list(samples), field, labels, shift_labels, pad_to, pad_token)


def _packed(
    samples: list[Any],
    field: str | int | None,
    labels: str | int | None,
    shift_labels: bool,
    pad_to: int,
    pad_token: int,
) -> dict[Any, Any]:
    import numpy as np
    import torch

    pad_to = at_least(1, pad_to, "collate_packed: pad_to")
    named = list(map(by_name, samples))
    if not named:
        return {}
    if None in named[0]:  # the samples are the sequences
        field = None
    tokens = _sequences(named, field)
    targets = tokens if labels is None else _sequences(named, labels)
    lengths = [len(each) for each in tokens]
    for number, target in enumerate(targets):
        if len(target) != lengths[number]:
            raise ValueError(
                f"collate_packed: {label(labels)}: expected as many labels as tokens, "
                f"{lengths[number]}, found {len(target)} in {called(named, number)}"
            )
    longest, total = max(*lengths, 1), sum(lengths)
    whole, rest = divmod(-total % pad_to if total else pad_to, longest)
    lengths += [longest] * whole + [rest] * (rest > 0)

    ends = np.cumsum(lengths, dtype=np.int32)
    starts = ends - np.asarray(lengths, np.int32)
    documents = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    size = len(documents)
    inputs, learned = np.full(size, pad_token, np.int64), np.full(size, -100, np.int64)
    np.concatenate(tokens, out=inputs[:total], casting="unsafe")
    np.concatenate(targets, out=learned[:total], casting="unsafe")
    is_wrong = (learned[:total] != inputs[:total]) & (learned[:total] != -100)
    if is_wrong.any():
        at = int(is_wrong.argmax())
        raise ValueError(
            f"collate_packed: {label(labels)}: expected each token as its own label, or -100 where "
            f"there is nothing to learn, found {learned[at]} at token {inputs[at]} in "
            f"{called(named, int(documents[at]))}; {_OF_MASK}, shift labels by shift_labels=True, "
            "and keep other targets in another field"
        )
    learned[starts[starts < ends]] = -100
    rows = {
        "input_ids": inputs,
        "labels": np.roll(learned, -1) if shift_labels else learned,
        "position_ids": np.arange(size, dtype=np.int64) - starts[documents],
        "document_ids": documents,
    }
    batch: dict[Any, Any] = {name: torch.from_numpy(row)[None] for name, row in rows.items()}
    batch["cu_seqlens"] = torch.from_numpy(np.append(np.int32(0), ends))
    batch["max_seqlen"] = longest
    for name in dict.fromkeys(name for sample in named for name in sample):
        if name in (field, labels):
            continue
        if name in batch:
            raise ValueError(
                f"collate_packed: {label(name)}: expected a name that the batch does not have, "
                f"found {name!r} beside field={field!r}; pass it as field= or labels=, or leave it "
                "out with fields="
            )
        batch[name] = [sample.get(name) for sample in named]
    send_by_value(batch)
    return batch


def _sequences(named: list[dict[Any, Any]], field: str | int | None) -> list[Any]:
    """Return the arrays of a field of all samples."""
    import numpy as np

    for number, sample in enumerate(named):
        if field not in sample:
            raise ValueError(
                f"collate_packed: {label(field)}: expected it in each sample, found "
                f"{', '.join(map(str, sample)):.200} in {called(named, number)}; pass field= or "
                "labels="
            )
    arrays = []
    for number, sample in enumerate(named):
        try:
            arrays.append(array := np.asarray(sample[field]))
        except ValueError as reason:
            raise TypeError(
                f"collate_packed: {label(field)}: expected integers with one axis, found "
                f"{sample[field]!r:.80} in {called(named, number)}"
            ) from reason
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise TypeError(
                f"collate_packed: {label(field)}: expected integers with one axis, found "
                f"{array.dtype} of shape {array.shape} in {called(named, number)}"
                f"{f'; {_OF_MASK}' if array.dtype == bool else ''}"
            )
        if array.dtype.kind == "u" and array.max(initial=0) >= 1 << 63:
            raise ValueError(
                f"collate_packed: {label(field)}: expected integers below 2**63, found "
                f"{array.max()} in {called(named, number)}"
            )
    return arrays
