"""Select the shards of a split that another program has named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from wids.errors import NotFoundError, SpecError
from wids.shards.foreign.statements import OTHER_FORM
from wids.shards.specs.braces import expand
from wids.shards.specs.model import DatasetSpec
from wids.shards.specs.parsing import MAX_DOCUMENT_NBYTES, parse
from wids.storage.transport import urls


def split_of(
    spec: DatasetSpec, split: str, infos: Sequence[str], read: Callable[[str, int], bytes]
) -> DatasetSpec:
    """Return the dataset of one split, with its shards in the order of the split.

    Args:
        spec: The whole dataset.
        split: The name of the split.
        infos: The documents of Energon that it was loaded from; the splits are beside one.
        read: Returns the bytes of a document.

    Raises:
        SpecError: There is no such split, or it excludes single samples.
        ImportError: PyYAML is not installed.
    """
    if spec.all_packs():
        raise SpecError(
            f"split {split!r}: expected shards with the splits of another program, found a spec "
            "with an index; select from its dataset, by dataset.sources or dataset.split"
        )
    if len(infos) == 1:
        names = _energon_split(infos[0], split, read)
        by_url = {shard.url: shard for shard in spec.shards}
        missing = [name for name in names if name not in by_url]
        if missing:
            raise SpecError(
                f"{urls.redact(infos[0])}: expected all shards of the split {split!r}, found none "
                f"of the name {urls.redact(missing[0])}; correct the split, or prepare the dataset "
                "again"
            )
        return replace(spec, name=split, shards=tuple(by_url[name] for name in names))
    found = list(dict.fromkeys(shard.dataset for shard in spec.shards if shard.dataset))
    if split not in found:
        raise _no_split(spec.name or "the dataset", split, found)
    own = tuple(shard for shard in spec.shards if shard.dataset == split)
    return DatasetSpec(own, split, extras=spec.extras)


def _energon_split(info: str, split: str, read: Callable[[str, int], bytes]) -> list[str]:
    """Return the URLs of the shards of a split, without those that are excluded."""
    folder = urls.parent(info)
    join = urls.joiner(urls.join(folder, ".."))
    try:
        url = urls.join(folder, "split.yaml")
        data = read(url, MAX_DOCUMENT_NBYTES)
        document = _from_yaml(data, url)
    except NotFoundError:
        url = urls.join(folder, "split.json")
        document = parse(read(url, MAX_DOCUMENT_NBYTES), urls.redact(url))
    try:
        parts = {name: list(own or ()) for name, own in document["split_parts"].items()}
        names = [name for part in parts.get(split, ()) for name in expand(part)]
        excluded = {name for part in document.get("exclude") or () for name in expand(part)}
    except OTHER_FORM as error:
        raise SpecError(
            f"{urls.redact(url)}: expected the shards of each split under split_parts, found "
            f"another {type(document).__name__}"
        ) from error
    if split not in parts:
        raise _no_split(urls.redact(url), split, list(parts))
    alone = [name for name in excluded if ".tar/" in name]
    if alone:
        raise SpecError(
            f"{urls.redact(url)}: expected whole shards to exclude, found the sample {alone[0]!r}; "
            "load the dataset without split, and select a view of it"
        )
    return [join(name) for name in names if name not in excluded]


def _from_yaml(data: bytes, url: str) -> Any:
    try:
        yaml: Any = import_module("yaml")
    except ImportError as error:
        raise ImportError(
            f"{urls.redact(url)}: splits by name need the package PyYAML, which is not installed: "
            "pip install pyyaml"
        ) from error
    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, *OTHER_FORM) as error:
        raise SpecError(
            f"{urls.redact(url)}: expected YAML, found an error: {error!s:.300}"
        ) from error


def _no_split(name: str, split: str, found: Sequence[str]) -> SpecError:
    splits = ", ".join(found) or "none"
    return SpecError(f"{name}: expected a split {split!r}, found {splits:.200}")
