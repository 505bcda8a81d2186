"""How a notebook shows datasets and samples."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from conftest import optional, write_shards
from looks import write
from loopback import Server

import wids
from wids.look import in_notebooks


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("looks"))


def test_dataset_shows_itself(spec: Path) -> None:
    """The summary has name, counts, fields with shares and sizes, location and first samples."""
    with wids.ShardListDataset(spec) as dataset:
        html = dataset._repr_html_()
    assert "<h3>looks</h3>" in html
    for text in ("100", "all shards", "published", ".npy", "15%", "caption 0", "data:image/png"):
        assert text in html
    assert "<script" not in html
    assert html.count('class="card"') == 6


def test_dataset_without_fields_shows_itself(tmp_path: Path) -> None:
    """A small dataset shows its samples, and an empty view has none to show."""
    with wids.ShardListDataset(write_shards(tmp_path, [3, 2])) as dataset:
        assert "text 0" in dataset._repr_html_()
        assert 'class="card"' not in dataset[:0]._repr_html_()


def test_no_shard_is_downloaded_for_display(server: Server, tmp_path: Path) -> None:
    """A remote dataset is shown from its spec, or with an index from a few byte ranges."""
    spec = write(tmp_path)
    for path in tmp_path.iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    document = json.loads(spec.read_text())
    del document["index"]
    with wids.ShardListDataset(server.page("/bare.json", document)) as dataset:
        html = dataset._repr_html_()
        gallery = dataset.show()
    assert "no shards" in html
    assert "`wids create` makes an index" in html
    assert gallery.indices == []
    assert "12 samples not shown: no index of the shard is available; wids.peek() shows" in (
        gallery._repr_html_()
    )
    assert {r.path for r in server.log} == {"/bare.json"}

    with wids.ShardListDataset(f"{server.url}/looks.json") as dataset:
        before = server.num_sent
        assert "caption 5" in dataset._repr_html_()
        assert dataset[60:70].show().indices == list(range(10))
    assert server.num_sent - before < 100_000
    assert not [r for r in server.log if r.path.endswith(".tar") and r.range is None]


def test_show(spec: Path) -> None:
    """`show` takes the first samples, random ones, or those a predicate accepts."""
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


def test_a_shard_read_by_range_is_not_downloaded_for_display(
    server: Server, tmp_path: Path
) -> None:
    """Neither the summary nor a predicate tried on many samples downloads a shard."""
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
    full = [r for r in server.log if r.path.endswith(".tar") and r.range is None]
    assert len(full) <= 1, "from reading samples, not from showing them"


def test_replacements_are_not_shown_as_samples(tmp_path: Path) -> None:
    """With ``on_error`` too a bad sample shows that it is bad, and the reason is shown once."""
    write(tmp_path, 60)
    (tmp_path / "looks-000000.tar").write_bytes(b"?" * 10240)
    with wids.ShardListDataset(tmp_path / "looks.json", on_error=lambda _: None) as dataset:
        html = dataset[38:42].show()._repr_html_()
    assert "caption 41" in html
    assert html.count('<p class="bad">cannot be read</p>') == 2
    assert html.count("2 samples: ") == html.count("looks-000000.tar") == 1


def test_samples_stay_plain_dicts(spec: Path) -> None:
    """A sample is a plain ``dict``, not a subclass that displays itself."""
    with wids.ShardListDataset(spec) as dataset:
        sample = dataset[0]
    assert type(sample) is dict


def test_ipython_shows_samples_and_no_other_dicts(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real IPython shell formats samples as HTML and other dicts as before."""
    interactive = optional("IPython.core.interactiveshell")
    # IPython warns where the environment that was activated is not that of the interpreter.
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
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
    monkeypatch.setitem(sys.modules, "IPython", None)
    in_notebooks.show_in_notebooks()
