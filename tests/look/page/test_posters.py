"""Films have a picture on cards and in their player, made from a few megabytes of them at most."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path

import pytest
from conftest import optional
from events import LONG_S
from looks import browsing
from loopback import Server
from PIL import Image
from recordings import film, wav

import wids
from wids.cli.main import main

optional("av")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes longer is not shown: a busy machine may take seconds to import PyAV."""
    monkeypatch.setattr("wids.look.preview._LENGTHS_S", LONG_S)
    for name in ("_MAX_S", "_POSTER_S"):
        monkeypatch.setattr(f"wids.look.field_facts.{name}", LONG_S)


def written(folder: Path, films: list[bytes]) -> Path:
    """Write films into a shard with a spec and a dataset index; return the spec."""
    folder.mkdir()
    with wids.TarWriter(folder / "films-0.tar") as writer:
        for number, data in enumerate(films):
            writer.write({"__key__": f"{number}", "mp4": data, "txt": f"film {number}"})
    spec = folder / "films.json"
    assert main(["create", str(folder / "films-0.tar"), "-o", str(spec)]) == 0
    return spec


def test_posters(tmp_path: Path) -> None:
    """A card and a player name a picture of the film, which has its size."""
    with browsing(written(tmp_path / "site", [film(50, size=(320, 240))])) as client:
        (card,) = client.json("samples")["cards"]
        (link,) = re.findall(r'<img alt="" loading="lazy" src="([^"]+)"', card["html"])
        assert f'poster="{link}"' in client.json("sample/0")["html"]
        status, headers, data = client.get(link)
    assert (status, headers["Content-Type"]) == (200, "image/jpeg")
    assert Image.open(io.BytesIO(data)).size == (320, 240)


def test_facts_of_films(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page and ``wids info`` state the length, size and rate of a film by its header."""
    spec = written(tmp_path / "site", [film(50), b"no film"])
    with browsing(spec) as client:
        assert "2.0 s, 64 x 48, 25 frames per second" in client.json("sample/0")["html"]
        broken = client.json("sample/1")["html"]
        assert "frames" not in broken
        assert "not decoded: InvalidDataError: " in broken
        assert ".mp4 not decoded: Inva" in client.json("samples")["cards"][1]["html"]
    capsys.readouterr()
    assert main(["info", str(spec)]) == 0
    line = ".mp4 of the first sample: 2.0 s, 64 x 48, 25 frames per second"
    assert line in capsys.readouterr().out.splitlines()


def test_lengths_on_cards(tmp_path: Path) -> None:
    """A card states the length of its audio or video, and what plays it."""
    with wids.TarWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "film", "mp4": film(50)})
        writer.write({"__key__": "sound", "wav": wav()})
        writer.write({"__key__": "broken", "wav": b"RIFF"})
    with browsing(tmp_path / "a.tar") as client:
        moving, sound, broken = client.json("samples")["cards"]
        assert ".mp4 2.0 s (" in moving["html"]
        assert ".wav 1.0 s (32.0 kB)" in sound["html"]
        assert ".wav 4 B" in broken["html"]
        assert ".wav not decoded: " in broken["html"]
        assert moving["audio"] == ""
        assert client.get(sound["audio"])[2] == wav()
    with wids.ShardListDataset(tmp_path / "a.tar") as dataset:
        assert ".wav 1.0 s (32.0 kB)" in dataset.show()._repr_html_()


def test_lengths_take_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of films whose headers take long to read is shown without their lengths."""
    monkeypatch.setattr("wids.look.preview._LENGTHS_S", 0)
    with browsing(written(tmp_path / "site", [film(50)])) as client:
        assert ".mp4 2.0 s" not in client.json("samples")["cards"][0]["html"]


def test_films_that_no_browser_plays(tmp_path: Path) -> None:
    """They show their poster, a sentence and a link, and no bytes."""
    with wids.TarWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "old", "avi": film(10, size=(320, 240), format_name="avi")})
    with browsing(tmp_path / "a.tar") as client:
        html = client.json("sample/0")["html"]
        assert "<video" not in html
        assert "RIFF" not in html
        assert "This browser cannot play .avi." in html
        assert '<a href="field/0/.avi?save=1" download="old.avi">Save it</a>' in html
        (link,) = re.findall(r'<img alt="" loading="lazy" src="([^"]+)"', html)
        assert client.get(link)[1]["Content-Type"] == "image/jpeg"


def test_films_that_cannot_be_decoded(tmp_path: Path) -> None:
    """A damaged film has an empty picture, and no error in the browser."""
    with browsing(written(tmp_path / "site", [b"no film"])) as client:
        status, headers, _ = client.get("poster/0/.mp4")
        assert (status, headers["Content-Type"]) == (200, "image/gif")
        assert client.get("poster/0/.txt")[0] == 404


def test_without_pyav(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PyAV no picture is named."""
    spec = written(tmp_path / "site", [film(5)])
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setattr("wids.look.page.pages.find_spec", lambda _: None)
    with browsing(spec) as client:
        assert "poster" not in client.json("sample/0")["html"]
        assert "<img" not in client.json("samples")["cards"][0]["html"]


def served(folder: Path, server: Server) -> str:
    """Serve three films of 10 MB and 45 short ones; return the URL of their spec."""
    long = film(600, size=(320, 240), bit_rate=4_000_000)
    assert len(long) > 10_000_000
    written(folder, [long] * 3 + [film(5)] * 45)
    for path in folder.iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    return f"{server.url}/films.json"


@pytest.mark.long
def test_remote_films(tmp_path: Path, server: Server) -> None:
    """The poster of a remote film costs at most 5 MB, and its facts nothing."""
    with browsing(served(tmp_path / "site", server)) as client:
        client.json("about")
        server.log.clear()
        assert "frames" not in client.json("sample/0")["html"]
        assert sum(request.num_sent for request in server.log) < 10_000
        assert client.get("poster/1/.mp4")[1]["Content-Type"] == "image/jpeg"
    assert sum(request.num_sent for request in server.log) < 5_000_000


@pytest.mark.alone
def test_a_page_of_films(tmp_path: Path, server: Server) -> None:
    """48 cards of remote films take a second of the processor at most, and no film is read."""
    with browsing(served(tmp_path / "site", server)) as client:
        client.json("about")
        server.log.clear()
        started_s = time.process_time()  # also of the server of films
        assert len(client.json("samples?count=48")["cards"]) == 48
        assert time.process_time() - started_s < 3  # on a slow machine; decoding takes minutes
    assert server.num_sent < 100_000
