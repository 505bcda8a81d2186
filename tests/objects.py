"""nginx as a store of objects: signed requests are plain GETs, and a bucket is a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from conftest import need
from servers import free_port, running

from wids.errors import FetchError
from wids.storage.transport.object_store import ObjectStores
from wids.storage.transport.range_loop import raise_error, read_ranges
from wids.storage.transport.range_reads import END, Range
from wids.storage.transport.retry import Timeouts
from wids.storage.transport.stream import NotByHttpError, Stream
from wids.storage.transport.urls import origin


def part_of(
    transport: ObjectStores, url: str, start: int, stop: int | None
) -> tuple[Stream, bytes]:
    """Request a part of an object once, by HTTP or by its driver; return response and bytes.

    Raises:
        FetchError: As of the attempt.
    """
    http, found = transport.by_http(url), list[tuple[Stream, bytes]]()

    def check(stream: Stream, _: str | None) -> None:
        assert stream.start == start
        wanted.stop = min(wanted.stop, stream.total_nbytes or 0)

    def finish(stream: Stream, data: memoryview) -> memoryview:
        found.append((stream, bytes(data)))
        return data

    if http is not None:
        timeouts = Timeouts(origin(url), retry_s=0.0)
        no_tag = lambda: None  # noqa: E731
        wanted = Range(http, url, start, stop or END, no_tag, check, finish, timeouts, False)  # noqa: FBT003
        try:
            read_ranges([wanted], raise_error)
        except NotByHttpError:
            found.clear()
        except FetchError as error:
            raise (error.__cause__ or error) from None
        if found:
            return found[0]
    with transport.open(url, start, stop, None) as stream:
        return stream, b"".join(stream.chunks)


KEYS = {"key": "some-key", "secret": "not-a-secret", "client_kwargs": {"region_name": "eu-west-1"}}


def new_certificate(folder: Path) -> Path:
    """Write ``only.pem``, a certificate for 127.0.0.1, and return a file that has its key too."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
         "-addext", "subjectAltName=IP:127.0.0.1", "-addext",
         "basicConstraints=critical,CA:FALSE", "-keyout", "key.pem", "-out", "only.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    certificate = folder / "certificate.pem"
    certificate.write_text((folder / "only.pem").read_text() + (folder / "key.pem").read_text())
    return certificate


@contextmanager
def object_server(
    folder: Path, *, certificate: Path | None = None, more: str = ""
) -> Iterator[str]:
    """Serve the folders in ``folder/www`` as buckets, and yield the address.

    Args:
        folder: For the files of the server.
        certificate: A file with a certificate for 127.0.0.1 and its key, for TLS.
        more: Lines for the configuration of the server.
    """
    need(shutil.which("nginx"), "nginx (Debian: nginx-light)")
    need(find_spec("obstore"), "obstore (pip install '.[test-all]')")
    port = free_port()
    (folder / "www").mkdir(exist_ok=True)
    tls = (
        f"ssl_certificate {certificate}; ssl_certificate_key {certificate};" if certificate else ""
    )
    (folder / "nginx.conf").write_text(f"""
        daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
        {"user root;" if os.geteuid() == 0 else ""}
        events {{}}
        http {{
            access_log {folder}/access.log;
            client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
            fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
            server {{ listen 127.0.0.1:{port} {"ssl" if tls else ""}; {tls}
                      root {folder}/www; {more} }}
        }}
    """)
    command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with running(command, port):
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
