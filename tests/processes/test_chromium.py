"""The pages in a real browser: headless Chromium, driven by Playwright.

A test that causes a problem, such as a banner, says so; every other problem fails it.
"""

from __future__ import annotations

import io
import re
import tarfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from conftest import write_tar
from looks import browsing, peeking, picture, write
from loopback import Server
from recordings import film
from tabs import Chromium, Tab

import wids
from wids.look.html import sample_html

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("looks"), 200)


def test_every_problem_of_a_page_is_noticed(chromium_program: Any) -> None:
    """A banner, an error of the console or of a script fails a test that does not cause it."""
    page = """<div id='banner' hidden>too late</div><script>
        console.error("wrong");
        setTimeout(() => {
            setTimeout(() => { document.title = "late"; });
            banner.hidden = false;
            lost.value = 1;
        });
        </script>"""
    problems = ("banner: too late", "wrong", "uncaught: lost is not defined")
    for causes in (problems, problems[1:], problems[:2], (*problems, "more")):
        chromium = Chromium(chromium_program)
        chromium.causes(*causes)
        tab = chromium.new_page()
        tab.goto(f"data:text/html,{quote(page)}")
        tab.wait_for_function("document.title == 'late'")
        with pytest.raises(AssertionError) if causes != problems else nullcontext():
            chromium.close()


def test_paging(chromium: Chromium, spec: Path) -> None:
    """Buttons and arrow keys turn pages forwards and backwards, to the end."""
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        assert tab.indices() == list(range(48))
        assert tab.page.is_disabled("#previous-page")
        tab.page.click("#next-page")
        tab.wait_for_first(48)
        tab.page.keyboard.press("ArrowRight")
        tab.wait_for_first(96)
        tab.page.keyboard.press("ArrowLeft")
        tab.wait_for_first(48)
        assert tab.page.inner_text("#shown-range") == "49 to 96 of 200"
        tab.page.go_back()
        tab.wait_for_first(96)
        for first in (144, 192):
            tab.page.click("#next-page")
            tab.wait_for_first(first)
        assert tab.page.is_disabled("#next-page")


def test_samples_and_links(chromium: Chromium, spec: Path) -> None:
    """A click opens a sample, arrow keys move to the next, and the address opens it again."""
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        tab.page.click("#grid a:nth-child(8)")
        tab.page.wait_for_selector("#key:text('7 · k/0007')")
        assert "ndarray (16, 16) float32" in tab.page.inner_text("#sample")
        tab.page.keyboard.press("ArrowRight")
        tab.page.wait_for_selector("#key:text('8 · k/0008')")
        link = tab.page.url
        tab.page.keyboard.press("Escape")
        tab.page.wait_for_selector("#viewer", state="hidden")
        assert "sample" not in tab.page.url
        with Tab(chromium, link) as other:
            other.page.wait_for_selector("#key:text('8 · k/0008')")


def test_jumping(chromium: Chromium, spec: Path) -> None:
    """An index or a key leads to its sample; an unknown key shows an error (LOOK-12)."""
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        tab.page.focus("#jump-to")
        tab.page.keyboard.type("150")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#key:text('150 · k/0150')")
        tab.page.keyboard.press("Escape")
        tab.wait_for_first(144)
        tab.page.fill("#jump-to", "k/0033")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#key:text('33 · k/0033')")
        tab.page.keyboard.press("Escape")
        tab.page.fill("#jump-to", "unknown")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#banner-text:text('no sample has the key')")
        chromium.causes("status of 404", "no sample has the key 'unknown'")


def test_filtering(chromium: Chromium, spec: Path) -> None:
    """The grid shows only samples with the chosen field."""
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        tab.page.click("#fields button[data-field='.npy']")
        tab.page.wait_for_selector('#grid a:nth-child(2)[href*="sample=7"]')
        tab.page.wait_for_selector("#grid a:last-child:nth-child(29)")
        assert tab.indices() == list(range(0, 200, 7))
        assert "field=.npy" in tab.page.url


def test_a_hostile_dataset_runs_nothing(chromium: Chromium, spec: Path) -> None:
    """Scripts in captions, JSON, keys and field names are shown as text (SEC-13)."""
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        assert "<script>" in tab.page.inner_text("#grid a:nth-child(4)")
        for index in (3, 60):
            tab.page.goto(f"{client.parts.geturl()}#sample={index}")
            tab.page.wait_for_selector(f"#key:text('{index} ·')")
        tab.page.wait_for_timeout(200)
        assert tab.page.title() == "looks · wids"
        assert tab.page.locator("script").count() == 1


def test_a_corrupt_picture_is_described(chromium: Chromium, spec: Path) -> None:
    """The grid and the sample state the reason in place of the picture (LOOK-10)."""
    with browsing(spec) as client, Tab(chromium, f"{client.parts.geturl()}#sample=5") as tab:
        tab.page.wait_for_selector("#stage .none:text('not a picture')")
        assert tab.page.locator("#grid .none").count() == 1
        for place in ("#grid .none", "#stage .none"):
            assert "its bytes are those of no JPEG" in tab.page.inner_text(place)


def test_phone(chromium: Chromium, spec: Path) -> None:
    """At the width of a phone nothing overflows sideways, and everything can be reached."""
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    with browsing(spec) as client, Tab(chromium, client.parts.geturl(), **phone) as tab:
        width = "document.documentElement.scrollWidth"
        assert tab.page.evaluate(width) <= 360
        tab.page.tap("#grid a:nth-child(2)")
        tab.page.wait_for_selector("#key:text('1 · k/0001')")
        assert tab.page.evaluate(width) <= 360
        box = tab.page.locator("#close").bounding_box()
        assert box["x"] + box["width"] <= 360
        tab.page.tap("#close")
        tab.page.wait_for_selector("#viewer", state="hidden")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(scheme: str, chromium: Chromium, spec: Path) -> None:
    """The page and the output in a notebook follow the colour scheme of the reader."""
    background = "getComputedStyle(document.body).backgroundColor"
    with browsing(spec) as client, Tab(chromium, client.parts.geturl(), color_scheme=scheme) as tab:
        red = int(re.findall(r"\d+", tab.page.evaluate(background))[0])
        assert (red < 80) == (scheme == "dark")
    html = sample_html({".txt": "text", ".json": {"a": list(range(50))}, "__key__": "k"})
    page = chromium.new_page()
    page.set_content(f"<body style='background:#111;color:#eee'>{html}</body>")
    assert (
        page.evaluate("getComputedStyle(document.querySelector('td')).color")
        == "rgb(238, 238, 238)"
    )
    background = page.evaluate("getComputedStyle(document.querySelector('pre')).backgroundColor")
    assert background == "rgba(0, 0, 0, 0)"
    page.close()


def test_a_million_samples(chromium: Chromium, tmp_path: Path) -> None:
    """A dataset of a million tiny samples shows the first page, a jump and the last page."""
    path = write_tar(
        tmp_path / "a.tar", [(f"{n:06d}.cls", b"%d" % (n % 10)) for n in range(50_000)]
    )
    shards = []
    for number in range(20):  # twenty names for the same bytes, each a shard of its own
        other = tmp_path / f"tiny-{number:02d}.tar"
        other.hardlink_to(path)
        shards.append(other)
    spec = tmp_path / "tiny.json"
    wids.build_spec(shards, name="tiny", pack=tmp_path / "tiny.index").save(spec)
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        assert "1,000,000 samples" in tab.page.inner_text("#summary")
        tab.page.fill("#jump-to", "987,654")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#key:text('987,654 · 037654')")
        tab.page.keyboard.press("Escape")
        tab.wait_for_first(987_648)
        tab.page.goto(f"{client.parts.geturl()}#start=999984")
        tab.wait_for_first(999_984)
        assert tab.indices() == list(range(999_984, 1_000_000))


def test_posters_are_seen(chromium: Chromium, tmp_path: Path) -> None:
    """The card of a film shows its picture, and its player has the same one."""
    with wids.ShardWriter(tmp_path / "films-%06d.tar") as writer:
        for number in range(3):
            writer.write({"__key__": f"{number}", "mp4": film(30, size=(320, 240))})
    with (
        browsing(tmp_path / "films.json") as client,
        Tab(chromium, client.parts.geturl()) as tab,
    ):
        page = tab.page
        page.wait_for_function(
            """() => {
                const seen = [...document.querySelectorAll("#grid a img")];
                return seen.length == 3 && seen.every(each => each.complete && each.naturalWidth);
            }"""
        )
        sizes = "seen => seen.map(each => [each.naturalWidth, each.naturalHeight])"
        assert page.eval_on_selector_all("#grid a img", sizes) == [[320, 240]] * 3
        source = page.get_attribute("#grid a:first-child img", "src")
        page.click("#grid a:first-child")
        page.wait_for_selector("#sample video")
        assert page.get_attribute("#sample video", "poster") == source


# Shards without an index.


@pytest.fixture
def pattern(server: Server) -> str:
    """The pattern of three shards of 30 samples of 400 kB, of which the last has a film first."""
    for number in range(3):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            members = (
                [("film.mp4", bytes(9_000_000)), ("film.txt", b"a film")] if number == 2 else []
            )
            for n in range(30):
                members.append((f"s{number}-{n:02d}.jpg", picture(n)))
                members.append((f"s{number}-{n:02d}.bin", bytes(400_000)))
                members.append((f"s{number}-{n:02d}.txt", b"caption %d" % n))
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        server.page(f"/train-{number}.tar", stream.getvalue())
    return f"{server.url}/train-{{0..2}}.tar"


def test_shards_are_looked_at_and_indexed(
    chromium: Chromium,
    pattern: str,
    server: Server,
    tmp_path: Path,
) -> None:
    """Samples are shown shard by shard; a button makes the index of one (INDEX-23, INDEX-24)."""
    with (
        peeking(pattern, cache_dir=tmp_path) as client,
        Tab(chromium, client.parts.geturl()) as tab,
    ):
        page = tab.page
        assert "samples not counted yet" in page.inner_text("#summary")
        assert page.inner_text("#command") == f"wids create '{pattern}' -o train.json"
        assert "found so far" in page.inner_text("#shard-known")
        assert page.is_hidden("#fields-heading"), "nothing is below it"
        first = len(tab.indices())
        assert 10 < first < 30
        assert f"1 to {first} · " in page.inner_text("#shown-range")
        page.click("#next-page")
        tab.wait_for_first(first)
        page.wait_for_selector("#shard-known:text-is('30 samples')")
        assert set(server.requests) == {"/train-0.tar"}

        page.keyboard.press("]")
        page.wait_for_selector("#shard-url:text('train-1.tar')")
        page.wait_for_selector("#grid:has-text('s1-00')")
        assert "shard=1" in page.url
        page.focus("#make-index")
        assert "index this shard (reads about" in page.inner_text("#make-index")
        page.keyboard.press("Enter")
        page.wait_for_selector("#status:text('shard 1 is indexed: 30 samples')")
        assert page.is_hidden("#make-index")
        assert page.is_visible("#fields-heading")
        assert tab.indices() == list(range(30))
        page.click("#fields button[data-field='.txt']")
        page.wait_for_selector("#shown-range:text('1 to 30 of 30')")
        page.fill("#query", "caption 29")
        page.keyboard.press("Enter")
        page.wait_for_selector("#hits:text('1 hit · 30 searched')")

        page.fill("#shard", "2")
        page.keyboard.press("Enter")
        page.wait_for_selector("#grid a:first-child:has-text('a film')")
        page.click("#grid a:first-child")
        page.wait_for_selector("#key:text('0 · film')")
        assert page.get_attribute("#sample video", "src") == "shard/2/field/0/.mp4"
        link = page.url
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#key:text('1 · s2-00')")
        with Tab(chromium, link) as other:
            other.page.wait_for_selector("#key:text('0 · film')")
            assert other.page.input_value("#shard") == "2"
        page.keyboard.press("Escape")
        page.fill("#jump-to", "s2-03")
        page.keyboard.press("Enter")
        page.wait_for_selector("#key:text('4 · s2-03')")


def test_everything_has_a_name_and_can_be_reached(
    chromium: Chromium,
    pattern: str,
    tmp_path: Path,
) -> None:
    """Each control has a label, the Tab key reaches it, and a phone shows it without scrolling."""
    phone = {"viewport": {"width": 360, "height": 740}}
    with (
        peeking(pattern, cache_dir=tmp_path) as client,
        Tab(chromium, client.parts.geturl(), **phone) as tab,
    ):
        page = tab.page
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        for role, name in (
            ("button", "next shard"),
            ("spinbutton", "shard"),
            ("button", "index this shard"),
            ("textbox", "go to position in the shard, or to key"),
        ):
            assert page.get_by_role(role, name=name, exact=name != "index this shard").count() == 1
        page.evaluate("document.activeElement.blur()")
        reached = set()
        for _ in range(30):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id"))
        assert {"shard", "next-shard", "make-index", "copy-command"} <= reached


def test_a_shard_that_cannot_be_read(chromium: Chromium, server: Server) -> None:
    """The page shows why, once, and other shards can be reached."""
    chromium.causes("banner: http", "a.tar: not found", "status of 502")
    server.page("/b.tar", b"<html>log in</html>" * 100)
    with peeking([server.url + "/a.tar", server.url + "/b.tar"]) as client:
        page = chromium.new_page()
        page.goto(client.parts.geturl())
        page.wait_for_selector("#banner-text:text('a.tar: not found')")
        assert page.locator("#grid a").count() == 0
        page.click("#next-shard")
        page.wait_for_selector("#shard-remark:text('HTML or XML')")
        page.close()
