"""Datasets and samples that show themselves, as a notebook asks them to."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import raises, write_shards
from loopback import Server
from PIL import Image
from test_browse import HOSTILE, write

import wids
from wids.looking import notebook
from wids.looking.html import field_html, sample_html, thumbnail


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("looks"))


def test_dataset_shows_itself(spec: Path) -> None:
    """Name, counts, fields with shares and sizes, where it is, and its first samples."""
    with wids.ShardListDataset(spec) as dataset:
        html = dataset._repr_html_()
    assert "<h3>looks</h3>" in html
    for text in ("100", "all shards", "published", ".npy", "15%", "caption 0", "data:image/jpeg"):
        assert text in html
    assert "<script" not in html
    assert html.count('class="card"') == 6


def test_dataset_without_fields_shows_itself(tmp_path: Path) -> None:
    """One that is small, and one that has nothing to see."""
    with wids.ShardListDataset(write_shards(tmp_path, [3, 2])) as dataset:
        assert "text 0" in dataset._repr_html_()
        assert 'class="card"' not in dataset[:0]._repr_html_()


def test_nothing_is_fetched_to_be_looked_at(server: Server, tmp_path: Path) -> None:
    """A remote dataset without an index is described by its spec; with one, by a few ranges."""
    spec = write(tmp_path)
    for path in tmp_path.iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    document = json.loads(spec.read_text())
    del document["index"]
    with wids.ShardListDataset(server.page("/bare.json", document)) as dataset:
        html = dataset._repr_html_()
    assert "no shards" in html
    assert "`wids create` makes an index" in html
    assert {r.path for r in server.log} == {"/bare.json"}

    with wids.ShardListDataset(f"{server.url}/looks.json") as dataset:
        before = server.num_sent
        assert "caption 5" in dataset._repr_html_()
        assert dataset[60:70].show().indices == list(range(10))
    assert server.num_sent - before < 100_000
    assert not [r for r in server.log if r.path.endswith(".tar") and r.range is None]


def test_show(spec: Path) -> None:
    """The first samples, random ones, those of a view, or those that a predicate picks."""
    with wids.ShardListDataset(spec) as dataset:
        assert dataset.show().indices == list(range(12))
        assert dataset.show(3).indices == [0, 1, 2]
        random = dataset.show(5, seed=1)
        assert random.indices == dataset.show(5, seed=1).indices != dataset.show(5, seed=2).indices
        assert "caption 52" in dataset[50:].show(3)._repr_html_()
        chosen = dataset[6:].show(3, where=lambda sample: sample[".json"]["n"] % 10 == 0)
        assert chosen.indices == [4, 14, 24]
        assert "3 of 25 samples tested" in chosen._repr_html_()
        assert repr(chosen) == "<Gallery of 3 samples: [4, 14, 24]>"
        assert dataset.show(0).indices == []


def test_a_shard_that_was_read_much_is_not_fetched_to_be_looked_at(
    server: Server, tmp_path: Path
) -> None:
    """Neither for the summary nor for a predicate that looks at many samples."""
    write(tmp_path, 40)
    for path in tmp_path.iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    with wids.ShardListDataset(f"{server.url}/looks.json") as dataset:
        for index in range(20):  # more than a quarter
            if index != 5:
                dataset[index]
        dataset._repr_html_()
        shown = dataset.show(3, where=lambda sample: sample[".json"]["n"] > 30)
    assert shown.indices == [31, 32, 33]
    whole = [r for r in server.log if r.path.endswith(".tar") and r.range is None]
    assert len(whole) <= 1, "by reading samples, not by looking"


def test_stand_ins_are_not_shown_for_samples(tmp_path: Path) -> None:
    """A dataset with ``on_error`` shows what is wrong, and the rest."""
    write(tmp_path, 60)
    (tmp_path / "looks-000000.tar").write_bytes(b"?" * 10240)
    with wids.ShardListDataset(tmp_path / "looks.json", on_error=lambda _: None) as dataset:
        html = dataset[38:42].show()._repr_html_()
    assert "caption 41" in html
    assert html.count('class="bad"') == 2


def test_samples_stay_plain_dicts(spec: Path) -> None:
    """Whatever a notebook shows, a sample is a ``dict`` and nothing else."""
    with wids.ShardListDataset(spec) as dataset:
        sample = dataset[0]
    assert type(sample) is dict


def test_ipython_shows_samples_and_no_other_dicts(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The formatter of a real IPython shell."""
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    shell = interactive.InteractiveShell.instance()
    try:
        shell.display_formatter.active_types = ["text/plain", "text/html"]
        with wids.ShardListDataset(spec) as dataset:
            data, _ = shell.display_formatter.format(dataset[3])
            assert "&lt;script&gt;" in data["text/html"]
            assert "text/plain" in data
            assert "text/html" not in shell.display_formatter.format({"a": 1})[0]

            class Own(dict):  # type: ignore[type-arg]
                def _repr_html_(self) -> str:
                    return "<b>own</b>"

            assert shell.display_formatter.format(Own(a=1))[0]["text/html"] == "<b>own</b>"
            assert "looks" in shell.display_formatter.format(dataset)[0]["text/html"]
    finally:
        interactive.InteractiveShell.clear_instance()
    monkeypatch.setitem(notebook.sys.modules, "IPython", None)
    notebook.show_samples_in_notebooks()


@pytest.mark.parametrize(
    ("field", "value", "parts"),
    [
        (".txt", HOSTILE, ["&lt;script&gt;"]),
        (".txt", "a\nb", ["<pre>a\nb</pre>"]),
        (".txt", "x" * 5000, ["<details>", "5,000 characters"]),
        (".json", {"a": HOSTILE, "b": list(range(99))}, ["<details>", "2 keys", "&lt;script&gt;"]),
        (".json", {"a": 1}, ["<code>{&quot;a&quot;: 1}</code>"]),
        (".jpg", Image.new("RGB", (9, 8)), ["data:image/jpeg", "image 9 x 8 RGB"]),
        (".png", Image.new("RGBA", (9, 8)), ["data:image/png"]),
        (".jpg", np.zeros((16, 17, 3), np.uint8), ["data:image", "ndarray (16, 17, 3) uint8"]),
        (".jpg", torch.zeros((3, 16, 17)), ["data:image", "Tensor (3, 16, 17) torch.float32"]),
        (".npy", np.zeros((2, 3)), ["ndarray (2, 3) float64"]),
        (".npy", np.full((16, 16), 7.5), ["ndarray (16, 16) float64"]),
        (".wav", b"RIFF", ["<audio controls", "data:audio/wav"]),
        (".mp4", b"x", ["<video controls"]),
        (".mp4", memoryview(bytes(21_000_000)), ["21.0 MB"]),
        (".cls", 3, ["3"]),
        (".cls", b"cat", ['class="bad"', "cannot be decoded"]),
        (".jpg", b"\x00", ['class="bad none"', "not a picture that can be shown, 1 B"]),
        (".bin", b"\x00<b>", ["&lt;b&gt;"]),
    ],
)
def test_values_as_html(field: str, value: object, parts: list[str]) -> None:
    """Each kind of value, decoded or not; never as something that is run."""
    html = field_html(field, value)
    for part in parts:
        assert part in html
    assert "<script" not in html


def test_samples_as_html() -> None:
    """Fields in rows, then where the sample is from, without secrets."""
    html = sample_html(
        {
            ".txt": "x",
            f".{HOSTILE}": "y",
            "__key__": HOSTILE,
            "__index__": 7,
            "__shard__": "https://user:pw@h/a.tar?token=secret",
            "__shardindex__": 3,
            "__dataset__": "d",
        }
    )
    assert "<script" not in html
    assert "sample 7" in html
    assert "position 3" in html
    assert "secret" not in html
    assert "pw" not in html


def test_looking_changes_nothing() -> None:
    """A picture of the user's own is what it was, and numbers are told."""
    stream = io.BytesIO()
    Image.new("RGB", (4000, 300)).save(stream, "JPEG")
    image = Image.open(stream)
    sample_html({".jpg": image})
    assert image.size == (4000, 300)
    assert field_html(".cls", np.int64(3)) == "<small>3</small>"


def test_huge_pictures_are_not_decoded() -> None:
    """A picture that says it has ten billion pixels is not made (SEC-13)."""
    stream = b"P5 100000 100000 255\n" + bytes(100)
    with raises(ValueError, "pixels"):
        thumbnail(stream)
