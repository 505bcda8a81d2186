"""Change values of a JSON spec in place.

The document is edited in place, so that keys unknown to wids are preserved. No shard is opened or
moved.
"""

from __future__ import annotations

import json
import os
import posixpath
import shutil
from typing import Any

from wids.errors import SpecError
from wids.shards.specs.loader import load_spec
from wids.shards.specs.model import SavedTable
from wids.shards.specs.saved_document import save_document
from wids.storage.transport import urls


def edit_spec(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    info: str | None = None,
    base: str | None = None,
    keep: bool | None = None,
    rebase: bool = False,
    folder: str | None = None,
) -> None:
    """Change what a spec says about its dataset; the previous file stays beside it as ``.bak``.

    None leaves a value unchanged. The file keeps its permissions, and links to it stay links.

    Args:
        path: The JSON document, which must have a shardlist itself.
        name: Name of the dataset; a document without one gets the stem of its file name.
        info: Its description.
        base: Folder or URL that relative references start from.
        keep: The keep flag.
        rebase: Whether to make the folder of all shards the base, and name the shards relative to
            it.
        folder: Folder or URL of every shard from now on; ``""`` for the base.

    Raises:
        SpecError: The document is malformed, before or after the change; it is left unchanged.
        ValueError: The shards are in several folders, or some have the same name.
    """
    path = os.fspath(path)
    document = _loaded(path)
    for key, value in (("name", name), ("info", info), ("base", base), ("keep", keep)):
        if value is not None:
            document[key] = value
    entries = [{"url": e} if isinstance(e, str) else e for e in document["shardlist"]]
    if rebase:
        document |= _common_base(path, document, [entry["url"] for entry in entries])
    if rebase or folder is not None:
        names = [name_with_query(entry["url"]) for entry in entries]
        if len(set(names)) < len(names):
            raise ValueError(f"{path}: expected shards with different names, found some repeated")
        for entry, shard_name in zip(entries, names, strict=True):
            entry["url"] = posixpath.join(folder or "", shard_name)
        document["shardlist"] = sorted(entries, key=lambda entry: str(entry["url"]))
    document.setdefault("name", os.path.splitext(os.path.basename(path))[0])
    # Before the file is touched, so that a rejected change leaves the document unchanged.
    load_spec(document, allow_pipe=True)  # raises if the change is wrong
    _replace(path, document)


def name_table(path: str | os.PathLike[str], table: SavedTable) -> None:
    """Name a saved table in a spec; the previous file stays beside it as ``.bak``.

    Args:
        path: The JSON document.
        table: The table, by its absolute path. If the base of the document is remote, the document
            names the table by its base name alone, since it will be published there.

    Raises:
        SpecError: The document is malformed, or names no shards in a shardlist or datasets.
    """
    path = os.fspath(path)
    document = _loaded(path, ("shardlist", "datasets"))
    base = document.get("base") or document.get("base_path")
    folder = os.path.dirname(os.path.abspath(path))
    if base is None:
        url = urls.relative(table.url, folder)
    else:
        is_local = urls.is_local(urls.join(folder, base))
        url = table.url if is_local else os.path.basename(table.url)
    document["table"] = table._replace(url=url).entry()
    _replace(path, document)


def is_local_document(spec: str) -> bool:
    """Whether a spec is a JSON document on this machine, which `name_table` can change."""
    return spec.endswith(".json") and urls.is_local(spec) and os.path.isfile(urls.local_path(spec))


def _replace(path: str, document: dict[str, Any]) -> None:
    # A rename onto a link would replace the link, and leave its target unchanged.
    target = os.path.realpath(path)
    shutil.copy2(target, target + ".bak")
    save_document(target, document)


def name_with_query(url: str) -> str:
    """Return the last part of a path or URL, with the query of a URL."""
    path, mark, query = url.partition("?")
    return _folder_and_name(path)[1] + mark + query


def _folder_and_name(path: str) -> tuple[str, str]:
    """Split a path, or a URL without its query, before its last part."""
    folder, _, name = (urls.with_slashes(path) if urls.is_local(path) else path).rpartition("/")
    return folder, name


def _loaded(path: str, keys: tuple[str, ...] = ("shardlist",)) -> dict[str, Any]:
    if not urls.is_local(path):
        raise SpecError(
            f"{urls.redact(path)}: expected a JSON spec on this machine; change the local one, and "
            "publish it again"
        )
    load_spec(path, allow_pipe=True)  # raises if the file is wrong
    with open(path, encoding="utf-8") as file:
        document: dict[str, Any] = json.load(file)
    if not any(isinstance(document.get(key), list) for key in keys):
        raise SpecError(f"{path}: expected a {' or '.join(keys)} of its own to change")
    return document


def _common_base(path: str, document: dict[str, Any], shard_urls: list[str]) -> dict[str, str]:
    """Return the change of a document that makes the folder of all shards its base."""
    folders = {_folder_and_name(url.partition("?")[0])[0] for url in shard_urls}
    if len(folders) != 1:
        raise ValueError(
            f"{path}: expected all shards in one folder to rebase to, found {len(folders)}: "
            f"{', '.join(sorted(map(urls.redact, folders))[:3])}"
        )
    folder = folders.pop() + "/"
    if folder == "/":  # the shards are named without a folder
        return {}
    if urls.scheme(folder) or os.path.isabs(folder):
        return {"base": folder}
    previous = document.get("base") or document.get("base_path") or ""
    return {"base": posixpath.join(previous, folder)}
