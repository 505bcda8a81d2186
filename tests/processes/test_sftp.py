"""SFTP by way of fsspec and paramiko, from a server of paramiko on loopback."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import optional, raises, sample_members, write_tar

import wids


@contextmanager
def sftp_server(folder: Path, user: str, password: str) -> Iterator[int]:
    """Serve a folder to one user, for the time of a block; yields the port."""
    paramiko = optional("paramiko")
    key = paramiko.ECDSAKey.generate()

    class Login(paramiko.ServerInterface):  # type: ignore[misc,name-defined]
        def check_auth_password(self, username: str, given: str) -> int:
            is_right = (username, given) == (user, password)
            return int(paramiko.AUTH_SUCCESSFUL if is_right else paramiko.AUTH_FAILED)

        def check_channel_request(self, *_: object) -> int:
            return int(paramiko.OPEN_SUCCEEDED)

    class Files(paramiko.SFTPServerInterface):  # type: ignore[misc,name-defined]
        def stat(self, path: str) -> Any:
            try:
                return paramiko.SFTPAttributes.from_stat(os.stat(folder / path.lstrip("/")))
            except OSError as error:
                return paramiko.SFTPServer.convert_errno(error.errno)

        lstat = stat

        def open(self, path: str, flags: int, _: object) -> Any:
            handle = paramiko.SFTPHandle(flags)
            try:
                handle.readfile = (folder / path.lstrip("/")).open("rb")
            except OSError as error:
                return paramiko.SFTPServer.convert_errno(error.errno)
            return handle

        def list_folder(self, path: str) -> Any:
            try:
                return [
                    paramiko.SFTPAttributes.from_stat(entry.stat(), entry.name)
                    for entry in os.scandir(folder / path.lstrip("/"))
                ]
            except OSError as error:
                return paramiko.SFTPServer.convert_errno(error.errno)

    transports: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):  # closed at the end
                while True:
                    transport = paramiko.Transport(listening.accept()[0])
                    transports.append(transport)
                    transport.add_server_key(key)
                    transport.set_subsystem_handler("sftp", paramiko.SFTPServer, Files)
                    transport.start_server(threading.Event(), Login())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for transport in transports:
                transport.close()


@pytest.mark.long
@pytest.mark.usefixtures("quick_retries")
def test_sftp(tmp_path: Path) -> None:
    """Shards, their spec and single samples by SFTP, with the user and password of the options."""
    folder = tmp_path / "served"
    folder.mkdir()
    paths = [
        write_tar(folder / f"train {n}.tar", sample_members(n * 100, n * 100 + 100))
        for n in range(2)
    ]
    wids.build_spec(list(map(str, paths)), dataset_index=folder / "train.index").save(
        folder / "train.json"
    )
    expected = [f"text {n}" for n in range(200)]
    with sftp_server(folder, "me", "secret-word") as port:
        site = f"sftp://127.0.0.1:{port}"
        options = {
            "username": "me",
            "password": "secret-word",
            "look_for_keys": False,
            "allow_agent": False,
        }
        about: Any = {"storage_options": options, "cache_dir": tmp_path / "cache"}
        with wids.ShardListDataset(f"{site}/train.json", access="range", **about) as dataset:
            assert dataset[150][".txt"] == "text 150"
        with wids.ShardListDataset(f"{site}/train.json", **about) as dataset:
            assert [sample[".txt"] for sample in dataset] == expected
        spec = wids.load_spec(f"{site}/train*.tar", storage_options=options)
        assert [Path(shard.url).name for shard in spec.shards] == [path.name for path in paths]
        with wids.ShardListDataset([(f"{site}/nothing.tar", 5)], **about) as dataset:
            with raises(wids.NotFoundError, "nothing.tar"):
                dataset[0]
        # Once: a server locks out who tries again and again.
        wrong = {**options, "password": "wrong-word"}
        with pytest.raises(wids.FetchError) as caught:
            wids.load_spec(f"{site}/train.json", storage_options=wrong)
        assert isinstance(caught.value, PermissionError)
        assert "word" not in str(caught.value)
