"""A dataset with much to look at, and a client for its pages."""

from __future__ import annotations

import http.client
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from conftest import Member
from events import LONG_S, wait_for
from PIL import Image

import wids
from wids.look.page import questions
from wids.look.page.pages import Pages, PeekPages
from wids.look.page.server import Browser

HOSTILE = '<script>document.title="owned"</script>'


def picture(number: int) -> bytes:
    """Return a small JPEG."""
    stream = io.BytesIO()
    Image.new("RGB", (40, 30), (number % 256, 80, 160)).save(stream, "JPEG")
    return stream.getvalue()


def write(folder: Path, count: int = 100) -> Path:
    """Write samples with pictures, texts, a few large and odd fields; return the spec's path."""
    with wids.ShardWriter(folder / "looks-%06d.tar", maxcount=40) as writer:
        for number in range(count):
            sample: dict[str, Any] = {
                "__key__": f"k/{number:04d}",
                ".jpg": picture(number) if number != 5 else b"not a jpeg",
                ".txt": HOSTILE if number == 3 else f"caption {number}",
                ".json": {"n": number, "text": HOSTILE},
            }
            if number % 7 == 0:
                sample[".npy"] = np.zeros((16, 16), np.float32)
            if number == 60:
                sample[".mp4"] = bytes(3_000_000)
                sample[f".{HOSTILE.replace('/', '')}"] = b"x"
            writer.write(sample)
    return folder / "looks.json"


def photos(nbytes: int, count: int = 10**9, kind: str = "jpg") -> Iterator[Member]:
    """Yield samples of a photo, made larger by noise at its end, a caption and a class."""
    draw = random.Random(nbytes)
    for number in range(count):
        yield f"p{number:04d}.{kind}", picture(number) + draw.randbytes(nbytes)
        yield f"p{number:04d}.txt", f"caption {number}".encode()
        yield f"p{number:04d}.json", json.dumps({"n": number, "t": HOSTILE}).encode()


def tar_of(members: Iterator[Member], nbytes: int) -> bytes:
    """Return a tar of members, of about a length."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
            if stream.tell() >= nbytes:
                break
    return stream.getvalue()


class Client:
    """Sends requests to a browser's server, with any path and headers."""

    def __init__(self, url: str) -> None:
        self.parts = urlsplit(url)

    def get(self, path: str = "", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body for a path below the token, or for an absolute one."""
        return self.request("GET", path, **headers)

    def request(
        self, method: str, path: str = "", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request of any method; the result is that of `get`."""
        connection = http.client.HTTPConnection(self.parts.hostname or "", self.parts.port)
        try:
            full_path = path if path.startswith("/") else self.parts.path + path
            connection.request(method, full_path, headers=headers)
            response = connection.getresponse()
            return response.status, dict(response.headers), response.read()
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        """Return the parsed body for a path."""
        return json.loads(self.get(path)[2])


def search(client: Client, query: str, prefix: str = "") -> Any:
    """Have samples looked for, wait until the search has ended, and return its result."""
    answer = json.loads(client.request("POST", f"{prefix}hits?{query}")[2])
    deadline_s = time.monotonic() + LONG_S
    while answer.get("state") == "running":
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
        answer = client.json(f"{prefix}hits?{query}")
    return answer


@contextmanager
def browsing(spec: Any, **options: Any) -> Iterator[Client]:
    """Serve the pages of a dataset; the value is a client for them."""
    with (
        wids.ShardListDataset(spec, access="range", **options) as dataset,
        serving(Pages(dataset)) as client,
    ):
        yield client


@contextmanager
def peeking(shards: Any, **options: Any) -> Iterator[Client]:
    """Serve the pages of shards without an index; the value is a client for them."""
    with serving(PeekPages(wids.peek(shards, **options))) as client:
        yield client


@contextmanager
def serving(pages: Any) -> Iterator[Client]:
    """Serve pages; the value is a client for them."""
    browser = Browser(pages)
    serve = Browser.serve_forever
    thread = threading.Thread(target=browser.serve)
    with pytest.MonkeyPatch.context() as patch:
        # How long an answer waits for a count, and the end for a search: until they have ended.
        patch.setattr(questions, "_WAIT_S", LONG_S)
        patch.setattr(questions, "_STOP_S", LONG_S)
        # Closing waits until the server looks up: five hundredths of a second, in 200 tests.
        patch.setattr(Browser, "serve_forever", lambda self, *_, **__: serve(self, 0.005))
        thread.start()
        wait_for(lambda: browser._is_serving)
        try:
            yield Client(browser.url)
        finally:
            browser.close()
            thread.join()


@contextmanager
def browse_command(
    named: str, environment: Mapping[str, str] | None = None, options: Sequence[str] = ()
) -> Iterator[tuple[Client, int]]:
    """Run ``wids browse`` until Ctrl-C; yield a client of its page, and its process's number."""
    command = [sys.executable, "-m", "wids", "browse", named, *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
    ) as process:
        try:
            assert process.stdout is not None
            yield Client(process.stdout.readline().strip()), process.pid
            process.send_signal(signal.SIGINT)
            assert process.wait(LONG_S) == 0
        finally:
            process.kill()
