"""Containers of Azure, on the emulator Azurite."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, need, optional, raises
from objects import part_of
from servers import free_port, running

import wids
from wids.errors import NotFoundError
from wids.storage import upload, upload_targets
from wids.storage.transport.object_store import ObjectStores, ReplacedError

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key of every Azurite, which its documentation states."""


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The options for an emulator with one container, ``data``."""
    optional("obstore")
    need(shutil.which("azurite-blob"), "azurite (npm install -g azurite)")
    folder, port = tmp_path_factory.mktemp("azurite"), free_port()
    command = ["azurite-blob", "--silent", "--skipApiVersionCheck", "--disableTelemetry",
               "--blobPort", str(port), "--location", str(folder)]  # fmt: skip
    with running(command, port):
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        _create(endpoint, "data")
        yield {"account_name": ACCOUNT, "account_key": KEY, "endpoint_url": endpoint}


def _create(endpoint: str, container: str) -> None:
    """Create a container, which obstore cannot."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = [f"{name}:{value}" for name, value in headers.items()]
    resource = f"/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
    text = "\n".join(["PUT", *[""] * 11, *lines, resource])
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    address = f"{endpoint}/{container}?restype=container"
    request = urllib.request.Request(address, method="PUT", headers=headers)  # noqa: S310
    request.add_header("Content-Length", "0")
    urllib.request.urlopen(request, timeout=30).close()  # noqa: S310 - on loopback


@pytest.mark.long
@pytest.mark.parametrize("prefix", ["az://data", "abfs://data", f"abfss://data@{ACCOUNT}.h"])
def test_azure(azurite: dict[str, Any], prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are written at once and in parts, read, listed, compared, moved and removed."""
    monkeypatch.setattr(upload_targets, "PART_NBYTES", 1 << 20)
    url, data = f"{prefix}/x/a.bin", os.urandom(3 << 20)
    transport = ObjectStores(azurite)
    for is_new in (True, False):
        with upload.publishing(url, is_new=is_new, storage_options=azurite) as file:
            file.write(data)
    with raises(FileExistsError, "x/a.bin"):
        with upload.publishing(url, is_new=True, storage_options=azurite) as file:
            file.write(b"other")
    stream, part = part_of(transport, url, 7, 99)
    assert part == data[7:99]
    assert (stream.total_nbytes, stream.tag is None) == (len(data), False)
    assert [entry.name for entry in transport.entries(f"{prefix}/x/")] == ["a.bin"]
    found, version = upload.read(url, azurite)
    assert found == data
    with upload.publishing(url, replaces=version, storage_options=azurite) as file:
        file.write(b"new")
    with pytest.raises(ReplacedError):
        with upload.publishing(url, replaces=version, storage_options=azurite) as file:
            file.write(b"newer")

    def reads() -> bool:
        return part_of(transport, url, 1, 3)[1] == b"ew"

    assert in_child(reads)
    upload.move(url, f"{prefix}/x/b.bin", azurite)
    assert upload.file_names(f"{prefix}/x", azurite) == ["b.bin"]
    upload.remove(f"{prefix}/x/b.bin", azurite)
    assert not upload.exists(f"{prefix}/x/b.bin", azurite)


@pytest.mark.long
def test_a_key_of_azure_is_not_mixed(
    azurite: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in options is used without credentials of the environment."""
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=THEIRS")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "dGhlaXJz")
    with upload.publishing("az://data/key/a.bin", storage_options=azurite) as file:
        file.write(b"0123456789")
    transport = ObjectStores(azurite)
    with transport.open("az://data/key/a.bin", 3, 9, None) as stream:
        assert b"".join(stream.chunks) == b"345678"
    assert [entry.name for entry in transport.entries("az://data/key/")] == ["a.bin"]


@pytest.mark.long
def test_errors_of_azure(azurite: dict[str, Any]) -> None:
    """A wrong key and a container that does not exist are errors that say what to do."""
    transport = ObjectStores(azurite)
    with raises(NotFoundError, "expected the bucket az://none to exist"):
        part_of(transport, "az://none/a.bin", 0, 9)
    wrong = base64.b64encode(b"0" * 64).decode()
    with raises(PermissionError, "az://data/a.bin: expected access", "account_key") as caught:
        part_of(ObjectStores({**azurite, "account_key": wrong}), "az://data/a.bin", 0, 9)
    assert wrong not in str(caught.value)


@pytest.mark.long
def test_a_dataset_in_azure(azurite: dict[str, Any], tmp_path: Path) -> None:
    """A writer publishes there, and the dataset is read from there."""
    with wids.ShardWriter("az://data/t-%06d.tar", maxcount=3, storage_options=azurite) as writer:
        for number in range(5):
            writer.write({"__key__": f"s{number}", "cls": number})
    spec = next(n for n in upload.file_names("az://data/", azurite) if n.endswith(".json"))
    with wids.ShardListDataset(
        f"az://data/{spec}", storage_options=azurite, cache_dir=tmp_path
    ) as dataset:
        assert [sample[".cls"] for sample in dataset] == list(range(5))
