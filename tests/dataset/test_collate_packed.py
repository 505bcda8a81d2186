"""`wids.collate_packed`: one row of documents, and what keeps them apart in every attention."""

from __future__ import annotations

import importlib.util
import inspect
import re
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conftest import miss, need, raises
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.data import DataLoader

import wids

PAGE = Path(__file__).parents[2] / "docs" / "packed.md"
DOCUMENTS = [torch.randint(1, 50, (n,)) for n in (5, 1, 9, 3)]


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    dtype=st.sampled_from(["uint16", "int32", "uint8", ">i8"]),
    pad_to=st.integers(1, 20),
    masked=st.none() | st.sets(st.integers(0, 5)),
    shift=st.booleans(),
)
def test_it_is_a_loop_over_tokens(
    lengths: list[int], dtype: str, pad_to: int, masked: set[int] | None, shift: bool
) -> None:
    """Each number of a batch is what a plain loop writes there (VIEW-25)."""
    samples = []
    for n, length in enumerate(lengths):
        labels = [-100 if at in (masked or ()) else n + at for at in range(length)]
        tokens = np.arange(n, n + length, dtype=dtype)
        samples.append({"__key__": str(n), "a": tokens, "b": labels})
    batch = wids.collate_packed(
        samples, "a", labels=None if masked is None else "b", shift_labels=shift,
        pad_to=pad_to, pad_token=99,
    )  # fmt: skip

    longest, padding = max(*lengths, 1), -sum(lengths) % pad_to if any(lengths) else pad_to
    rows: list[tuple[int, int, int, int]] = []
    begins = [0]
    for number, sample in enumerate(samples):
        for at, token in enumerate(sample["a"]):
            here = range(len(sample["a"]))
            target = at + 1 if shift else at
            is_learned = target in here and target > 0
            value = sample["b"][target] if is_learned else -100
            rows.append((int(token), int(value), at, number))
        begins.append(len(rows))
    number = len(samples)
    while padding:
        rows += [(99, -100, at, number) for at in range(min(padding, longest))]
        padding -= len(rows) - begins[-1]
        begins.append(len(rows))
        number += 1
    names = ("input_ids", "labels", "position_ids", "document_ids")
    assert [tuple(row) for row in torch.cat([batch[name] for name in names]).T.tolist()] == rows
    assert all(batch[name].shape == (1, len(rows)) for name in names)
    assert [batch[name].dtype for name in names] == [torch.int64] * 3 + [torch.int32]
    assert (batch["cu_seqlens"].tolist(), batch["cu_seqlens"].dtype) == (begins, torch.int32)
    assert (batch["max_seqlen"], type(batch["max_seqlen"])) == (longest, int)
    assert batch["__key__"] == [sample["__key__"] for sample in samples]
    assert ("b" in batch) == (masked is None)
    assert "a" not in batch


def test_other_fields_are_lists() -> None:
    """Images of different numbers and shapes stay apart; a sample without the field has None."""
    image = torch.ones(3, 4, 4)
    samples = [{".npy": [1, 2], ".jpg": image}, {".npy": [3], ".cls": 1}]
    batch = wids.collate_packed(samples)
    assert batch[".jpg"] == [image, None]
    assert batch[".cls"] == [None, 1]


class Pair(NamedTuple):
    """Tokens with a name."""

    tokens: list[int]
    name: str


def test_samples_are_dicts_tuples_or_sequences() -> None:
    """A position names the tokens of tuples, a name those of named ones; arrays are tokens."""
    ids = wids.collate_packed([{".npy": [1, 2]}, {".npy": [3]}])["input_ids"]
    in_tuples = wids.collate_packed([([1, 2], "a"), ([3], "b")], 0)
    assert torch.equal(in_tuples["input_ids"], ids)
    assert in_tuples[1] == ["a", "b"]
    named = wids.collate_packed([Pair([1, 2], "a"), Pair([3], "b")], "tokens")
    assert torch.equal(named["input_ids"], ids)
    assert named["name"] == ["a", "b"]
    arrays = wids.collate_packed([np.array([1, 2]), torch.tensor([3])])
    assert torch.equal(arrays["input_ids"], ids)
    assert wids.collate_packed([]) == {}


@pytest.mark.parametrize(
    ("samples", "options", "kind", "parts"),
    [
        (
            [{"__key__": "a", ".npy": [1]}, {"__key__": "b", ".json": 1}],
            {},
            ValueError,
            ('field ".npy"', "each sample", ".json", "'b'", "field="),
        ),
        (
            [{".npy": np.ones(3)}],
            {},
            TypeError,
            ('field ".npy"', "integers with one axis", "float64 of shape (3,)", "sample 0"),
        ),
        (
            [([[1]],)],
            {"field": 0},
            TypeError,
            ("value 0 of the tuples", "one axis", "shape (1, 1)"),
        ),
        (
            [{".npy": [1, 2], "m": [1]}],
            {"labels": "m"},
            ValueError,
            ('field "m"', "as many labels as tokens, 2", "found 1", "sample 0"),
        ),
        (
            [{"input_ids": [1], "labels": [2]}],
            {"field": "input_ids"},
            ValueError,
            ('field "labels"', "a name that the batch does not have", "labels=", "fields="),
        ),
        (
            [{"__key__": "a", ".npy": [5, 6], "m": [True, False]}],
            {"labels": "m"},
            TypeError,
            ('field "m"', "found bool of shape (2,) in 'a'", "numpy.where(mask, tokens, "),
        ),
        (
            [{"__key__": "a", ".npy": np.array([2**63 + 5], np.uint64)}],
            {},
            ValueError,
            ('field ".npy": expected integers below 2**63', "found 9223372036854775813 in 'a'"),
        ),
        ([{".npy": [1]}], {"pad_to": 0}, ValueError, ("pad_to", "at least 1", "found 0")),
        ([{".npy": [1]}], {"pad_to": 2.5}, ValueError, ("pad_to", "an integer", "found 2.5")),
        (
            [{".npy": [1]}, {"__key__": "b", ".npy": [[1], [2, 3]]}],
            {},
            TypeError,
            ("integers with one axis", "[[1], [2, 3]]", "'b'"),
        ),
    ],
)
def test_errors_name_the_field(
    samples: list[Any], options: dict[str, Any], kind: type[Exception], parts: tuple[str, ...]
) -> None:
    """A batch that cannot be joined is an error with field, sample and a remedy."""
    with raises(kind, *parts):
        wids.collate_packed(samples, **options)


MASKED = np.array([-100, 6, 7])


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ([0, 1, 1], "found 0 at token 5"),  # a mask
        ([6, 7, -100], "found 6 at token 5"),  # shifted already
        ([5, -1, 7], "found -1 at token 6"),
        (MASKED.astype(np.uint8), "found 156 at token 5"),
        (MASKED.astype(np.uint16), "found 65436 at token 5"),
        (MASKED.astype(np.uint32), "found 4294967196 at token 5"),
        (MASKED.astype(np.uint64), "expected integers below 2**63, found 18446744073709551516"),
    ],
)
def test_a_label_is_its_token_or_none(labels: Any, found: str) -> None:
    """What would be learned instead of the document is an error, with its remedy (VIEW-25)."""
    first = {"__key__": "a", "tokens": [8], "labels": [8]}
    samples = [first, {"__key__": "b", "tokens": [5, 6, 7], "labels": labels}]
    with raises(ValueError, 'collate_packed: field "labels": expected', found, "in 'b'"):
        wids.collate_packed(samples, "tokens", labels="labels")


@pytest.mark.parametrize("kind", [list, partial(np.array, dtype=np.uint16)])
def test_labels_of_a_mask_are_those_of_the_message(kind: Any) -> None:
    """What the error advises is accepted, of tokens of any type, and masks (VIEW-25)."""
    sample = {"tokens": kind([5, 6, 7]), "mask": [0, 0, 1]}
    with raises(ValueError, "numpy.where(") as caught:
        wids.collate_packed([sample], "tokens", labels="mask")
    (advice,) = re.findall(r"numpy\.where\(.*\)\)", str(caught.value))
    sample["labels"] = eval(advice, {"numpy": np, **sample})  # noqa: S307 - our own message
    batch = wids.collate_packed([sample], "tokens", labels="labels")
    assert batch["labels"].tolist() == [[-100, -100, 7]]


def test_numbers_that_masks_have_may_be_tokens() -> None:
    """Tokens 0 and 1, and those that -100 becomes in unsigned types, are labels (VIEW-25)."""
    for tokens in ([1, 0, 1], np.array([9, 156], np.uint8), np.array([9, 65436], np.uint16)):
        batch = wids.collate_packed([{"a": tokens, "b": tokens}], "a", labels="b")
        assert batch["labels"].tolist() == [[-100, *tokens[1:]]]


def test_documents_without_tokens() -> None:
    """Batches of them have tokens nevertheless, all padding: models take no empty rows."""
    for pad_to in (1, 8):
        batch = wids.collate_packed([{"a": []}, {"a": []}], "a", pad_to=pad_to, pad_token=3)
        assert batch["input_ids"].tolist() == [[3] * pad_to]
        assert batch["labels"].tolist() == [[-100] * pad_to]
        assert batch["cu_seqlens"].tolist() == [0, 0, *range(pad_to + 1)]
        assert batch["max_seqlen"] == 1


@pytest.mark.long
def test_workers_send_the_same() -> None:
    """Batches of workers and of the main process are equal, small and large ones."""
    samples = [{".npy": np.full(n, n % 7), "__key__": str(n)} for n in (3, 4, 20_000, 5)]
    collate = partial(wids.collate_packed, pad_to=64)
    here, there = (
        list(DataLoader(samples, 2, num_workers=number, collate_fn=collate))  # type: ignore[arg-type]
        for number in (0, 2)
    )
    for one, other in zip(here, there, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            same = torch.equal if isinstance(value, torch.Tensor) else lambda a, b: bool(a == b)
            assert same(value, other[name]), name


# How models take a batch: the lines of the page, against each document by itself.


def plain_attention(
    q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, *, causal: bool
) -> torch.Tensor:
    """Attend within each document, one after another, as kernels for ``cu_seqlens`` do."""
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert (int(cu_q.diff().max()), int(cu_k.diff().max())) == (max_q, max_k)
    assert int(cu_q[-1]) == len(q)
    out = torch.empty_like(q)
    for start, stop in zip(cu_q.tolist(), cu_q.tolist()[1:], strict=False):
        parts = [part[start:stop].transpose(0, 1) for part in (q, k, v)]
        out[start:stop] = scaled_dot_product_attention(*parts, is_causal=causal).transpose(0, 1)
    return out


def run(beginning: str, **names: Any) -> Any:
    """Return what the line of code in a table of the page that begins so does with some values."""
    (found,) = [
        code
        for row in PAGE.read_text(encoding="utf-8").splitlines()
        if row.startswith("|")
        for code in re.findall(r"`([^`]+)`", row)
        if code.startswith(beginning)
    ]
    return eval(found, names)  # noqa: S307


def heads(length: int) -> list[torch.Tensor]:
    """Return random queries, keys and values of shape (length, 2, 8)."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(length, 2, 8, generator=generator) for _ in range(3)]


def alone(q: Any, k: Any, v: Any) -> torch.Tensor:
    """Return the attention of each document, run by itself."""
    sizes = [len(each) for each in DOCUMENTS]
    parts = zip(*(x[: sum(sizes)].split(sizes) for x in (q, k, v)), strict=True)
    return torch.cat(
        [
            scaled_dot_product_attention(*(x.transpose(0, 1) for x in part), is_causal=True)
            .transpose(0, 1)
            for part in parts
        ]
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Any, k: Any, v: Any,
    cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Do what flash-attention's function of this name and signature does."""
    assert (dropout_p, softmax_scale) == (0.0, None)
    numbers = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return plain_attention(q, k, v, *numbers, causal=causal)


def test_flash_attention() -> None:
    """The line for flash-attention attends within documents only."""
    batch = wids.collate_packed(DOCUMENTS, pad_to=16)
    q, k, v = heads(batch["input_ids"].shape[1])
    functions = {"flash_attn_varlen_func": flash_attn_varlen_func}
    out = run("flash_attn_varlen_func(", q=q, k=k, v=v, batch=batch, **functions)
    assert torch.allclose(out[:18], alone(q, k, v), atol=1e-6)


@pytest.mark.long
def test_varlen_attn_of_torch() -> None:
    """So does the line for torch's own function, with a kernel for processors under it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        miss("pip install 'torch>=2.13'")
    need("window_size" in inspect.signature(varlen_attn).parameters, "pip install 'torch>=2.13'")

    def kernel(q: Any, k: Any, v: Any, *others: Any) -> tuple[torch.Tensor, ...]:
        cu_q, cu_k, max_q, max_k, is_causal = others[:5]
        out = plain_attention(q, k, v, cu_q, cu_k, max_q, max_k, causal=is_causal)
        return out, q.new_empty(0), torch.empty(2, dtype=torch.uint64)

    batch = wids.collate_packed(DOCUMENTS, pad_to=16)
    q, k, v = heads(batch["input_ids"].shape[1])
    with torch.library._scoped_library("torch_attn", "IMPL") as library:
        library.impl("_varlen_attn", kernel, "CPU")
        out = run("varlen_attn(", q=q, k=k, v=v, batch=batch, varlen_attn=varlen_attn)
    assert torch.allclose(out[:18], alone(q, k, v), atol=1e-6)


def test_scaled_dot_product_attention() -> None:
    """So does the mask for torch's function without ``cu_seqlens``."""
    batch = wids.collate_packed(DOCUMENTS, pad_to=16)
    q, k, v = (x.transpose(0, 1)[None] for x in heads(batch["input_ids"].shape[1]))
    functions = {"scaled_dot_product_attention": scaled_dot_product_attention}
    ids = batch["document_ids"]
    out = run("scaled_dot_product_attention(", q=q, k=k, v=v, ids=ids, **functions)
    expected = alone(*heads(batch["input_ids"].shape[1]))
    assert torch.allclose(out[0].transpose(0, 1)[:18], expected, atol=1e-6)


def test_flex_attention() -> None:
    """The rule for FlexAttention allows what that mask does."""
    batch = wids.collate_packed(DOCUMENTS, pad_to=16)
    ids = batch["document_ids"]
    flex = pytest.importorskip("torch.nn.attention.flex_attention")  # torch 2.5
    allowed = flex.create_mask(
        run("lambda b, h, q, k", ids=ids), 1, None, ids.shape[1], ids.shape[1], device="cpu"
    )
    assert torch.equal(allowed, (ids[:, None, :, None] == ids[:, None, None]).tril())


def tiny(attention: str) -> Any:
    """Return a small model of transformers with random weights."""
    need(importlib.util.find_spec("transformers.masking_utils"), "pip install 'transformers>=4.53'")
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=16,
        attn_implementation=attention,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def expected_of(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of each document run by itself, and the mean loss of all their tokens."""
    outs = [model(input_ids=each[None], labels=each[None]) for each in DOCUMENTS]
    sums = sum(
        out.loss * (len(d) - 1) for out, d in zip(outs, DOCUMENTS, strict=True) if len(d) > 1
    )
    count = sum(len(each) - 1 for each in DOCUMENTS)
    return torch.cat([out.logits[0] for out in outs]), sums / count


@pytest.mark.long
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@torch.no_grad()
def test_transformers(attention: str) -> None:
    """Logits and loss of a packed batch are those of each document run by itself."""
    model = tiny(attention)
    batch = wids.collate_packed(DOCUMENTS, pad_to=16)
    logits, loss = expected_of(model)
    out = run("model(", model=model, batch=batch)
    assert torch.allclose(out.logits[0, :18], logits, atol=1e-5)
    assert torch.allclose(out.loss, loss, atol=1e-5)

    shifted = wids.collate_packed(DOCUMENTS, pad_to=16, shift_labels=True)["labels"]
    out = run("model(", model=partial(model, shift_labels=shifted), batch=batch)
    assert torch.allclose(out.loss, loss, atol=1e-5)


@pytest.mark.long
@torch.no_grad()
def test_kernels_of_transformers() -> None:
    """The kernel of an attention gets ``cu_seqlens``, and needs no positions to find documents."""
    need(importlib.util.find_spec("transformers.masking_utils"), "pip install 'transformers>=4.53'")
    from transformers import AttentionInterface

    def kernel(module: Any, q: Any, k: Any, v: Any, _: Any, **others: Any) -> Any:
        groups = module.num_key_value_groups
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
        names = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
        numbers = [others[name] for name in names]
        out = plain_attention(*(x[0].transpose(0, 1) for x in (q, k, v)), *numbers, causal=True)
        return out[None], None

    AttentionInterface.register("plain", kernel)
    batch = wids.collate_packed(DOCUMENTS, pad_to=16)
    model = tiny("sdpa")
    logits, _ = expected_of(model)
    model.set_attn_implementation("plain")
    varlen = run("dict(cu_seq_lens_q", batch=batch)
    out = model(batch["input_ids"], position_ids=batch["position_ids"], **varlen)
    assert torch.allclose(out.logits[0, :18], logits, atol=1e-5)
