"""A loopback server that answers as the file endpoints of the Hugging Face hub do.

As `huggingface_hub` asks them: what a repository is, the tree of a folder, and a file, by way of a
redirect to another path, as the hub leads to its storage. Set ``HF_ENDPOINT`` to the server's URL
before `huggingface_hub` is imported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs, quote

from loopback import Fault, Server


def publish(server: Server, name: str, files: Mapping[str, bytes], revision: str = "main") -> None:
    """Serve files by their paths in the dataset repository ``name``."""
    api = f"/api/datasets/{name}"
    info = {"id": name, "sha": "0" * 40, "private": False, "tags": [], "siblings": []}
    for path in (api, f"{api}/revision/{revision}"):
        server.page(path, info)
    folders = {path.rpartition("/")[0] for path in files} | {""}
    for folder in {f[:cut] for f in folders for cut in (*_slashes(f), len(f))}:
        server.page(f"{api}/tree/{revision}/{quote(folder)}".rstrip("/"), _tree(files, folder))
    server.page(f"{api}/paths-info/{revision}", b"")
    server.pages[f"{api}/paths-info/{revision}"].respond = partial(_paths_info, files)
    for path, data in files.items():
        stored = f"/storage/{_oid(data)}"
        server.page(stored, data)
        server.page(f"/datasets/{name}/resolve/{revision}/{quote(path)}", b"", location=stored)


def refuse(server: Server, name: str) -> None:
    """Answer as for a repository that does not exist, or that the client must not see."""
    page = f"/api/datasets/{name}"
    server.page(page, {})
    server.pages[page].always = Fault(401, headers={"X-Error-Code": "RepoNotFound"}, body=b"{}")


def _tree(files: Mapping[str, bytes], folder: str) -> list[dict[str, Any]]:
    prefix = f"{folder}/" if folder else ""
    inside = {path.removeprefix(prefix): path for path in files if path.startswith(prefix)}
    folders = sorted({name.partition("/")[0] for name in inside if "/" in name})
    found: list[dict[str, Any]] = [
        {"type": "directory", "oid": "0" * 40, "size": 0, "path": prefix + name} for name in folders
    ]
    for name, path in sorted(inside.items()):
        if "/" not in name:
            data = files[path]
            found.append(_file(path, data))
    return found


def _paths_info(files: Mapping[str, bytes], posted: bytes) -> bytes:
    asked = parse_qs(posted.decode())
    commit = {"id": "0" * 40, "title": "", "date": "2026-01-01T00:00:00.000Z"}
    found = [_file(path, files[path]) for path in asked["paths"] if path in files]
    return json.dumps([{**file, "lastCommit": commit} for file in found]).encode()


def _file(path: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "oid": _oid(data), "size": len(data), "path": path}


def _slashes(path: str) -> list[int]:
    return [place for place, char in enumerate(path) if char == "/"]


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()  # noqa: S324 - a name, as git has it
