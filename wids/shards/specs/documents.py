"""Resolve JSON documents of shards, with all documents and datasets that they refer to.

Each document is read once, its references become absolute, and its values are checked. Weights of
datasets that become parts of another one are specified in specs/shard-spec.md (SPEC-5).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from wids.errors import SpecError
from wids.shards.specs import entries, parsing
from wids.shards.specs.entries import MAX_DEPTH, Context
from wids.shards.specs.model import (
    INFO,
    VERSION,
    DatasetSpec,
    IndexedShards,
    common_classes,
)
from wids.shards.specs.shard_columns import columns_of, joined, listed
from wids.shards.tars.headers import KeySplit
from wids.storage.fetch import Fetcher
from wids.storage.transport import urls

_logger = logging.getLogger(__name__)


class Component(NamedTuple):
    """A dataset that becomes a part of another one.

    Attributes:
        spec: Its shards, and the weights of the datasets that it consists of.
        weight: Its stated weight, or None.
        label: Its place in the document, or its name, for messages.
    """

    spec: DatasetSpec
    weight: float | None = None
    label: str = ""


def as_component(
    spec: DatasetSpec, name: str | None, key_split: KeySplit | None = None
) -> DatasetSpec:
    """Return a dataset as a part of another one; shards without a dataset name get its name."""
    shards, name = spec.shards, name or spec.name or None
    if name or key_split:
        shards = columns_of(shards).with_defaults(name, key_split)
    # The dataset indexes have keys by their own rule, which is the first dot if none is stated.
    has_indexed_keys = key_split != "last" or all(shard.key_split for shard in spec.shards)
    dataset_indexes = spec.all_dataset_indexes() if has_indexed_keys else ()
    extras = {"classes": spec.classes} if spec.classes else {}
    return DatasetSpec(shards, extras=extras, weights=spec.weights, dataset_indexes=dataset_indexes)


def weight_of(component: Mapping[str, Any], label: str) -> float | None:
    """Return the weight of one of a document's datasets, or None.

    Raises:
        SpecError: It is not a number of at least 0.
    """
    weight = component.get("weight")
    return None if weight is None else _checked(weight, f"{label}: weight")


def weights_of(document: Mapping[str, Any], label: str) -> dict[str, float]:
    """Return the weights that a document states by name.

    Raises:
        SpecError: They are not numbers of at least 0.
    """
    weights = document.get("weights")
    if weights is None:
        return {}
    if not isinstance(weights, Mapping):
        raise SpecError(
            f"{label}: weights: expected an object with a number for each name, "
            f"found {weights!r:.80}"
        )
    return {name: _checked(value, f"{label}: weights[{name!r}]") for name, value in weights.items()}


def assembled(parts: Sequence[Component]) -> DatasetSpec:
    """Return a dataset that consists of parts."""
    shards = joined(part.spec.shards for part in parts)
    return DatasetSpec(
        shards,
        extras=classes_of(parts),
        weights=combined(parts),
        dataset_indexes=dataset_indexes_of(parts),
    )


def classes_of(parts: Sequence[Component]) -> dict[str, list[str]]:
    """Return the entry for the classes of a dataset that consists of parts, if all state them.

    Raises:
        SpecError: Their lists differ (SPEC-62).
    """
    names = common_classes((part.label, part.spec.classes) for part in parts)
    return {"classes": names} if names and all(part.spec.classes for part in parts) else {}


def dataset_indexes_of(parts: Sequence[Component], start: int = 0) -> tuple[IndexedShards, ...]:
    """Return the dataset indexes of consecutive parts, which begin at shard ``start``."""
    dataset_indexes: list[IndexedShards] = []
    for part in parts:
        dataset_indexes += part.spec.all_dataset_indexes(start)
        start += len(part.spec.shards)
    return tuple(dataset_indexes)


def combined(parts: Sequence[Component]) -> dict[str, float]:
    """Return the weight of each name in the parts of a dataset; empty if no weight is stated."""
    if all(part.weight is None and not part.spec.weights for part in parts):
        return {}
    weights: dict[str, float] = {}
    for part in parts:
        names, _ = columns_of(part.spec.shards).dataset_names(None)
        weight = 1 if part.weight is None else part.weight
        if None in names and part.weight is not None:
            _logger.warning("%s: the weight %r is not used: it has no name", part.label, weight)
        own = {name: part.spec.weights.get(name, 1) for name in names if name is not None}
        total = sum(own.values()) or 1
        for name, value in own.items():
            share = value / total if len(own) > 1 else 1
            weights[name] = weights.get(name, 0) + weight * share
    return weights


def _checked(value: Any, label: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= sys.float_info.max:
        raise SpecError(f"{label}: expected a number of at least 0, found {value!r:.80}")
    number: float = value
    return number


MAX_DOCUMENTS: Final = 10_000
"""Most documents of one spec."""

_DOCUMENT_KEYS: Final = frozenset(
    (
        *("wids_version", "name", "base", "base_path"),
        *("shardlist", "datasets", "key_split", "index", "table", "weights"),
    )
)

ReadDocument: TypeAlias = Callable[[str, int], bytes]
"""``read(url, limit_nbytes)``: the bytes of a document."""


def is_document(url: str) -> bool:
    """Whether a path or URL names a JSON document, by its extension."""
    return urls.path_of(url).lower().endswith(".json")


def is_list(url: str) -> bool:
    """Whether a path or URL names a text file with the name of a shard on each line."""
    return urls.path_of(url).lower().endswith(".txt")


class Documents:
    """Reads the documents of one spec.

    Args:
        fetcher: Reads URLs.
        read: Reads documents in its place.
        allow_pipe: Whether documents may name commands.

    Attributes:
        origin: The server of the first remote document, or ``""``.
        infos: The documents of Energon.
    """

    def __init__(self, fetcher: Fetcher, read: ReadDocument | None, *, allow_pipe: bool) -> None:
        self.origin = ""
        self.infos: list[str] = []
        self._fetcher = fetcher
        self._read = read or fetcher.read
        self._num_documents = self._num_values = 0
        self.context_at = partial(Context.at, allow_pipe=allow_pipe)

    def bind(self, spec: DatasetSpec) -> None:
        """Send options without a prefix only to the server of the first document (SEC-9)."""
        if spec.origin:
            self._fetcher.bind_options(spec.origin)
            self.origin = self.origin or spec.origin

    def url(self, url: str, base: str | None = None, chain: tuple[str, ...] = ()) -> DatasetSpec:
        """Read and load the document at a URL that the documents in ``chain`` led to."""
        if urls.is_local(url):
            url = os.path.abspath(urls.local_path(url))
        name = urls.redact(url)
        # Only the chain, not all documents: two parts of a spec may refer to the same document.
        if url in chain:
            raise SpecError(f"{name}: refers to itself, through {_trail(chain)}")
        if len(chain) >= MAX_DEPTH:
            raise SpecError(
                f"{name}: expected at most {MAX_DEPTH} documents that refer to one another, found "
                f"more: {_trail(chain)}"
            )
        self._num_documents += 1
        if self._num_documents > MAX_DOCUMENTS:
            raise SpecError(f"{name}: expected at most {MAX_DOCUMENTS} documents, found more")
        self.origin = self.origin or urls.origin(url)
        context = self.context_at(name, urls.parent(url), base)._replace(
            # By its own URL, not by the document that led here: trust is not inherited (SPEC-12).
            is_trusted=urls.is_local(url),
            chain=(*chain, url),
        )
        parse = self._listed if is_list(url) else self.parsed
        # No variable keeps the bytes of a large document while its shards become columns.
        document = parse(self._read(url, parsing.MAX_DOCUMENT_NBYTES), name)
        spec = self.document(document, context)
        if urls.path_of(url).endswith(f"/{INFO}"):
            self.infos.append(url)
        return spec

    def _listed(self, data: bytes, name: str) -> dict[str, Any]:
        """Return a text file that lists shards as a document."""
        self._check_limits(data, 2 * data.count(b"\n"), name)
        try:
            lines = data.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise SpecError(
                f"{name}: expected text with the path or URL of a shard on each line, found other "
                f"bytes ({error})"
            ) from error
        return {"shardlist": [{"url": line.strip()} for line in lines if line.strip()]}

    def parsed(self, document: str | bytes, name: str) -> Any:
        """Parse a document, unless it and the previous ones exceed the limits of a spec."""
        self._check_limits(document, parsing.num_values(document), name)
        return parsing.parse(document, name)

    def _check_limits(self, document: str | bytes, num_values: int, name: str) -> None:
        self._num_values += num_values
        if len(document) > parsing.MAX_DOCUMENT_NBYTES or self._num_values > parsing.MAX_VALUES:
            raise SpecError(
                f"{name}: expected at most {parsing.MAX_DOCUMENT_NBYTES} bytes in a document and "
                f"{parsing.MAX_VALUES} values in a spec, found more"
            )

    def document(self, document: Any, context: Context) -> DatasetSpec:
        """Resolve a parsed document, or one of the inline datasets inside it."""
        label = context.name
        document = entries.normal_form(document, label)
        version = document.get("wids_version", VERSION)
        if version != VERSION:
            raise SpecError(
                f"{label}: expected wids_version {VERSION}, found {version!r:.80}; "
                "a newer version of wids may read it"
            )
        context = context.of(document)
        join = context.join
        name = entries.text(document, "name", label) or ""
        key_split = entries.key_split_of(document, label)
        shards = listed(entries.list_of(document, "shardlist", label), label, join, key_split)
        parts = [
            self._component(component, context.inside(number), join)
            for number, component in enumerate(entries.list_of(document, "datasets", label))
        ]
        index = entries.reference(document, "index", label)
        dataset_indexes = dataset_indexes_of(parts, len(shards)) if index is None else ()
        weights = {**combined(parts), **weights_of(document, label)}
        extras = {key: value for key, value in document.items() if key not in _DOCUMENT_KEYS}
        if parts and extras.get("classes") != []:
            own = DatasetSpec(shards, extras=extras)
            stated = [Component(own, label=label)] if own.classes or shards else []
            extras = {**classes_of([*stated, *parts]), **extras}
        return DatasetSpec(
            joined((shards, *(part.spec.shards for part in parts))),
            name,
            index and join(index),
            extras,
            weights=weights,
            table=entries.table_of(document, label, join),
            dataset_indexes=dataset_indexes,
        )

    def _component(self, component: Any, context: Context, join: Callable[[str], str]) -> Component:
        """Resolve one of a document's ``datasets``: a reference to a document, or one inline."""
        label = context.name
        if not isinstance(component, Mapping):
            raise SpecError(f"{label}: expected an object, found {entries.kind_of(component)}")
        weight = weight_of(component, label)
        name = entries.text(component, "name", label)
        source = entries.reference(component, "source_url", label)
        if source is None:
            spec = self.document(component, context)
        else:
            spec = self.url(join(source), chain=context.chain)
        return Component(
            as_component(spec, name, entries.key_split_of(component, label)), weight, label
        )


def _trail(chain: tuple[str, ...]) -> str:
    return " → ".join(map(urls.redact, chain))
