"""What people do on the page of `wids browse`, in a real browser: search, filter, zoom, copy.

axe-core finds what a screen reader misses.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import need, write_tar
from looks import browsing, picture, serving
from loopback import Server
from PIL import Image
from recordings import film, wav
from scenery import SEASONS, write_scenery
from tabs import Chromium, Tab

import wids
from wids.cli.main import main
from wids.look.page.pages import Pages
from wids.look.page.questions import Scans
from wids.tables.search import Hits

pytestmark = pytest.mark.long

NUM_SAMPLES = 300


@pytest.fixture(scope="module")
def seasons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenery(tmp_path_factory.mktemp("seasons"), NUM_SAMPLES, width=160)


@pytest.fixture(scope="module")
def captions(seasons: Path) -> list[str]:
    with wids.ShardListDataset(seasons, fields=[".txt"]) as dataset:
        return [sample[".txt"] for sample in dataset]


@pytest.fixture
def tab(chromium: Chromium, seasons: Path) -> Iterator[Tab]:
    with browsing(seasons) as client, Tab(chromium, client.parts.geturl()) as tab:
        tab.page.wait_for_selector("#values button")
        yield tab


def test_search(tab: Tab, captions: list[str]) -> None:
    """Hits and progress stand beside the field; hits are marked; the address has it (LOOK-3)."""
    wanted = [n for n, text in enumerate(captions) if "winter" in text and "firs" in text]
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("firs WINTER")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(f"#hits:text('{len(wanted)} hits · {NUM_SAMPLES} searched')")
    tab.wait_for_first(wanted[0])
    tab.page.wait_for_selector(f"#grid a:last-child:nth-child({len(wanted)})")
    assert tab.indices() == wanted
    assert tab.page.inner_text("#grid mark >> nth=0").lower() in ("firs", "winter")
    tab.page.click("#grid a:nth-child(2)")
    tab.page.wait_for_selector(f"#key:text('{wanted[1]} ·')")
    tab.page.keyboard.press("ArrowRight")  # to the next hit, not to the next sample
    tab.page.wait_for_selector(f"#key:text('{wanted[2]} ·')")
    with Tab_of(tab) as other:
        other.page.wait_for_selector(f"#key:text('{wanted[2]} ·')")
        assert other.page.input_value("#query") == "firs WINTER"
    tab.page.keyboard.press("Escape")
    tab.page.click("#active button")
    tab.page.wait_for_selector(f"#shown-range:text('of {NUM_SAMPLES}')")
    assert tab.page.is_hidden("#hits-line")


def Tab_of(tab: Tab) -> Tab:  # noqa: N802 - another tab of the same address
    return Tab(tab.chromium, tab.page.url)


def test_a_long_search_is_watched_and_stopped(
    tab: Tab, monkeypatch: pytest.MonkeyPatch, captions: list[str]
) -> None:
    """Hits are shown while the search runs; it is stopped and continued by a button (LOOK-5)."""
    import threading

    gate, is_asked_to_stop = threading.Semaphore(0), threading.Event()
    visit, stop = Hits.visit, Scans.stop

    def slow(self: Any, *arguments: Any) -> bool:
        gate.acquire()
        return visit(self, *arguments)

    def stop_and_tell(self: Any) -> None:
        if self._latest:  # as the original does first: then the block that is read may end
            self._latest.stop()
        is_asked_to_stop.set()
        stop(self)

    monkeypatch.setattr(Hits, "visit", slow)
    monkeypatch.setattr(Scans, "stop", stop_and_tell)
    monkeypatch.setattr("wids.tables.search._BLOCK", 20)
    gate.release(2)
    tab.page.fill("#query", "hills")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#hits:text('40 hits · 13% of 300 searched')")
    tab.page.wait_for_selector("#grid a:last-child:nth-child(40)")
    assert tab.page.get_attribute("#hits-progress", "value") == str(40 / 300)
    is_asked_to_stop.clear()
    tab.page.click("#stop-hits")
    assert is_asked_to_stop.wait(30)
    gate.release(1)
    tab.page.wait_for_selector("#stop-hits:text('continue')")
    assert "60 hits" in tab.page.inner_text("#hits")
    gate.release(1000)
    tab.page.click("#stop-hits")
    tab.page.wait_for_selector(f"#hits:text('{len(captions)} hits · 300 searched')")
    # The page is complete before the server of its samples is closed.
    tab.page.wait_for_selector("#grid[aria-busy=false] a:last-child:nth-child(48)")


def test_classes_and_ranges(tab: Tab, captions: list[str]) -> None:
    """Classes have names and counts; a click filters; numbers have a histogram (LOOK-4, LOOK-6)."""
    counts = {name: sum(name in text for text in captions) for name in SEASONS}
    shown = tab.page.locator("#values button").all_inner_texts()
    assert shown == [f"{name}\n{count}" for name, count in counts.items()]
    tab.page.click("#values button:has-text('autumn')")
    tab.page.wait_for_selector(f"#shown-range:text('of {counts['autumn']}')")
    pressed = tab.page.locator("#values button[aria-pressed=true]").all_inner_texts()
    assert pressed == [f"autumn\n{counts['autumn']}"]
    tab.page.select_option("#column", ".json/score")
    tab.page.wait_for_selector("#histogram span")
    assert tab.page.locator("#histogram").get_attribute("aria-label").startswith("distribution of")
    tab.page.fill("#low", "6")
    tab.page.press("#low", "Enter")
    tab.page.wait_for_selector("#active >> text=.json/score ≥ 6")
    where = [{"column": ".cls", "value": "2"}, {"column": ".json/score", "low": 6}]
    table = wids_scores(tab)
    wanted = [n for n, (label, score) in enumerate(table) if label == 2 and score >= 6]
    tab.page.wait_for_selector(f"#hits:text('{len(wanted)} hits')")
    assert tab.indices() == wanted[:48]
    assert len(where) == tab.page.locator("#active li").count()


def wids_scores(tab: Tab) -> list[tuple[int, float]]:
    found = []
    for start in range(0, NUM_SAMPLES, 100):
        for index in range(start, min(start + 100, NUM_SAMPLES)):
            answer = tab.page.request.get(f"{tab.url}field/{index}/.json")
            label = tab.page.request.get(f"{tab.url}field/{index}/.cls")
            found.append((int(label.text()), json.loads(answer.text())["score"]))
    return found


def test_counts_and_code_follow_the_search(chromium: Chromium, seasons: Path) -> None:
    """Values are counted in what was found; the code opens it; chips have names (LOOK-6)."""
    python = "wids.ShardListDataset('seasons.json')"
    with (
        wids.ShardListDataset(seasons, access="range") as dataset,
        serving(Pages(dataset, python=python)) as client,
        Tab(chromium, client.parts.geturl()) as tab,
    ):
        page = tab.page
        page.wait_for_selector("#values button")
        before = page.locator("#values small").all_inner_texts()
        page.fill("#query", "firs")
        page.keyboard.press("Enter")
        page.wait_for_selector("#python:text(\"view = dataset.search('firs')\")")
        found = dataset.search("firs")
        counts = [sum(s[".cls"] == number for s in found) for number in range(len(SEASONS))]
        page.wait_for_selector(f"#values li:first-child small:text-is('{counts[0]}')")
        assert page.locator("#values small").all_inner_texts() == list(map(str, counts))
        page.click("#values button:has-text('autumn')")
        page.wait_for_selector("#active >> text='.cls = autumn'")
        page.wait_for_selector("#python:text('.cls == \"autumn\"')")
        view = eval(page.inner_text("#python").rpartition("view = ")[2])  # noqa: S307 - ours
        wanted = [sample["__index__"] for sample in view[:48]]
        page.wait_for_selector(f"#grid a:last-child:nth-child({len(wanted)})")
        assert tab.indices() == wanted
        assert page.locator("#values small").all_inner_texts() == list(map(str, counts))
        with Tab_of(tab) as other:  # the name is not in the address
            other.page.wait_for_selector("#active >> text='.cls = autumn'")
            assert "autumn" not in other.page.url
        page.click("#active button:has-text('search')")
        page.wait_for_selector(f"#values li:first-child small:text-is('{before[0]}')")


def test_axis_lines_and_sizes(tab: Tab) -> None:
    """A histogram has an axis, a line of JSON its first values, a sample each size (LOOK-18)."""
    page = tab.page
    line = page.locator("#grid p.line:has-text('.json')").first.inner_text()
    assert re.fullmatch(r"\.json width 160 · height \d+ · time \w+ · …", line)
    page.select_option("#column", ".json/score")
    page.wait_for_selector("#axis span")
    low, middle, high = map(float, page.locator("#axis span").all_inner_texts())
    assert low < middle < high
    assert int(page.inner_text("#most")) > 1
    page.select_option("#column", ".cls")
    page.wait_for_selector("#axis", state="hidden")
    assert page.is_hidden("#most")
    page.click("#grid a:first-child")
    page.wait_for_selector("#stage img")
    (size,) = page.locator("#sample tr:has(code:text-matches('jpg|png|webp', 'i')) th small").all()
    assert page.inner_text("#viewer").count(size.inner_text()) == 1


def test_texts_alone_have_room(chromium: Chromium, tmp_path: Path) -> None:
    """Without pictures, cards are wider and show nine lines of a text."""
    text = " ".join(f"word{n}" for n in range(90))
    members = [(f"{n}.txt", text.encode()) for n in range(6)]
    with browsing(write_tar(tmp_path / "a.tar", members)) as client:
        with Tab(chromium, client.parts.geturl()) as tab:
            card = tab.page.locator("#grid a").first
            assert card.bounding_box()["width"] >= 360
            assert "word80" in card.inner_text()
            (lines,) = card.locator("p").evaluate_all(
                "ps => ps.map(p => p.offsetHeight / parseFloat(getComputedStyle(p).lineHeight))"
            )
            assert 7 < lines < 9.5


def test_audio_is_played_on_its_card(chromium: Chromium, tmp_path: Path) -> None:
    """The player of a card plays, and opens no sample; a screen reader finds it (LOOK-21)."""
    with wids.TarWriter(tmp_path / "a.tar") as writer:
        for number in range(3):
            writer.write({"__key__": f"{number}", "wav": wav(), "cls": number})
        writer.write({"__key__": "3", "mp3": b"no audio", "cls": 3})
    with browsing(tmp_path / "a.tar") as client, Tab(chromium, client.parts.geturl()) as tab:
        page = tab.page
        assert tab.indices() == [0, 1, 2, 3]
        assert ".wav 1.0 s" in page.inner_text("#grid a >> nth=1")
        assert page.inner_text("#grid a >> nth=1").startswith(".cls 1")
        violations_of(page)
        box = page.locator("#grid audio").nth(1).bounding_box()
        page.mouse.click(box["x"] + 20, box["y"] + box["height"] / 2)
        page.wait_for_function("() => document.querySelectorAll('#grid audio')[1].currentTime > 0")
        assert page.url == client.parts.geturl()
        page.evaluate("document.querySelectorAll('#grid audio')[3].load()")
        page.evaluate("document.querySelectorAll('#grid audio')[3].play().catch(() => 0)")
        page.wait_for_selector("#grid .with-player:nth-child(4):has-text('cannot play the audio')")
        page.click("#grid a >> nth=2")
        page.wait_for_selector("#sample audio")
        page.keyboard.press("Escape")
        page.fill("#query", "3")
        page.keyboard.press("Enter")
        page.wait_for_selector("#shown-range:text-is('1 of 1')")


def test_a_film_that_the_browser_cannot_play(chromium: Chromium, tmp_path: Path) -> None:
    """Its poster, a sentence and a link take the place of the player (LOOK-21)."""
    with wids.TarWriter(tmp_path / "a.tar") as writer:
        # Chromium has no decoder of MPEG-4 part 2, in whatever container.
        writer.write({"__key__": "new", "mp4": film(30, size=(320, 240))})
        writer.write({"__key__": "old", "avi": film(30, size=(320, 240), format_name="avi")})
    with browsing(tmp_path / "a.tar") as client, Tab(chromium, client.parts.geturl()) as tab:
        page = tab.page
        page.click("#grid a >> nth=0")
        page.wait_for_selector("#sample video")
        assert page.is_hidden("#sample .unplayed")
        page.evaluate("document.querySelector('#sample video').play().catch(() => 0)")
        for text in ("cannot play .mp4", "cannot play .avi"):
            page.wait_for_selector(f"#sample .unplayed:has-text('This browser {text}')")
            page.wait_for_function(
                "() => document.querySelector('#sample img').naturalWidth === 320"
            )
            assert page.locator("#sample video").count() == 0
            violations_of(page)
            with page.expect_download() as download:
                page.click("#sample .unplayed a")
            assert (
                download.value.suggested_filename
                == f"{'new' if 'mp4' in text else 'old'}.{text[-3:]}"
            )
            page.keyboard.press("ArrowRight")


def test_classes_are_there_before_they_are_counted(chromium: Chromium, many: Path) -> None:
    """Classes that the spec names can be clicked at once, and their counts follow (LOOK-19)."""
    names = [f"class {n}" for n in range(4)]
    spec = many.with_name("named.json")
    spec.write_text(json.dumps({**json.loads(many.read_text()), "classes": names}))
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        page = tab.page
        page.wait_for_selector("#values button >> nth=3")
        assert page.locator("#values span").all_inner_texts() == names
        assert page.locator("#values small").all_inner_texts() == [""] * 4
        page.click("#values button:has-text('class 3')")
        page.wait_for_selector("#shown-range:text-is('1 to 48 of 2,500')")
        page.wait_for_selector("#active >> text='.cls = class 3'")
        page.click("#count-column")
        page.wait_for_selector("#values small:text-is('2,501')")
        assert page.locator("#values small").all_inner_texts() == ["2,501", *["2,500"] * 3]


def test_an_address_of_an_earlier_start(chromium: Chromium, seasons: Path) -> None:
    """It leads to a sentence that says what to do, also in a page that is still open (LOOK-12)."""
    chromium.causes("status of 404", "banner: `wids browse` was started again")
    with browsing(seasons) as client, Tab(chromium, client.parts.geturl()) as tab:
        page = chromium.new_page()
        page.goto(client.parts._replace(path="/earlier/").geturl())
        assert "open the address that it printed last" in page.inner_text("body")
        tab.page.route(
            "**/samples?*",
            lambda route: route.continue_(
                url=route.request.url.replace(client.parts.path, "/earlier/")
            ),
        )
        tab.page.click("#next-page")
        tab.page.wait_for_selector("#banner-text:text('with another address')")


def test_shuffle(tab: Tab) -> None:
    """The same seed is the same order, also in another tab; another seed is another (LOOK-7)."""
    tab.page.fill("#seed", "7")
    tab.page.click("#shuffle")
    tab.page.wait_for_selector("#active >> text=shuffled by seed 7")
    tab.page.wait_for_selector("#grid[aria-busy=false] a:first-child:not([data-index='0'])")
    first = tab.indices()
    assert sorted(first) != first
    tab.page.click("#next-page")
    tab.page.wait_for_selector("#shown-range:text('49 to 96 of 300')")
    tab.page.wait_for_selector("#grid[aria-busy=false]")
    assert not set(first) & set(tab.indices())
    tab.page.go_back()
    with Tab_of(tab) as other:
        other.page.wait_for_selector("#shown-range:text('1 to 48 of 300')")
        assert other.indices() == first
    tab.page.fill("#seed", "8")
    tab.page.press("#seed", "Enter")
    tab.page.wait_for_selector("#active >> text=shuffled by seed 8")
    tab.page.wait_for_selector(f"#grid a:first-child:not([data-index='{first[0]}'])")


def test_zoom(tab: Tab) -> None:
    """A picture fits its place; keys, buttons and clicks zoom it (LOOK-9)."""
    tab.page.click("#grid a:first-child")
    tab.page.wait_for_selector("#stage img")
    width = "document.querySelector('#stage img').getBoundingClientRect().width"
    stage = tab.page.locator("#stage").bounding_box()["width"]
    fitted = tab.page.evaluate(width)
    assert fitted <= stage
    assert fitted % 160 == 0  # by a whole number, since it has few pixels
    tab.page.keyboard.press("+")
    assert tab.page.evaluate(width) == pytest.approx(fitted * 1.5, rel=0.001)
    tab.page.click("#zoom-out")
    tab.page.click("#zoom-out")
    assert tab.page.evaluate(width) == pytest.approx(fitted / 1.5, rel=0.001)
    tab.page.keyboard.press("0")
    assert tab.page.evaluate(width) == fitted
    tab.page.click("#stage img")
    assert tab.page.evaluate(width) > stage
    assert "zoomed" in tab.page.get_attribute("#stage", "class")
    rendering = "getComputedStyle(document.querySelector('#stage img')).imageRendering"
    assert tab.page.evaluate(rendering) == "pixelated"


def test_size_of_cards(tab: Tab) -> None:
    """The slider changes the cards, requests sharper pictures, and is remembered (LOOK-9)."""
    before = tab.page.locator("#grid a").first.bounding_box()["width"]
    with tab.page.expect_request(lambda request: "pixels=512" in request.url):
        tab.page.focus("#size")
        for _ in range(8):
            tab.page.keyboard.press("ArrowRight")
    assert tab.page.locator("#grid a").first.bounding_box()["width"] > before + 50
    tab.page.reload()
    tab.page.wait_for_selector("#grid a")
    assert tab.page.input_value("#size") == "340"


def test_links_and_python_are_copied(chromium: Chromium, seasons: Path, tmp_path: Path) -> None:
    """Address and expression are copied; a field is saved under its key (LOOK-11)."""
    context = chromium.new_context(accept_downloads=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    with browsing(seasons) as client:
        page = context.new_page()
        page.goto(f"{client.parts.geturl()}#sample=123")
        page.wait_for_selector("#key:text('123 ·')")
        for button, wanted in (("#copy-python", "dataset[123]"), ("#copy-link", page.url)):
            page.click(button)
            page.wait_for_selector(f"{button}:text('copied')")
            assert page.evaluate("navigator.clipboard.readText()") == wanted
        with page.expect_download() as download:
            page.click("#sample a[aria-label='save .txt']")
        assert download.value.suggested_filename == "000123.txt"
        download.value.save_as(tmp_path / "saved")
        assert (tmp_path / "saved").read_text().startswith("Hills in ")
    context.close()


def test_the_picture_of_each_sample_is_shown(chromium: Chromium, tmp_path: Path) -> None:
    """Formats and cases are mixed; a mask can be preferred; tiny pictures are sharp (LOOK-8)."""
    names = ["a.jpg", "b.JPG", "c.png", "d.WebP", "e.mask.png", "e.jpg", "f.jpeg"]
    forms = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}
    for name in names:
        path = tmp_path / name
        colour = (200, 0, 0) if "mask" in name else (0, 0, 200)
        Image.new("RGB", (16, 12), colour).save(path, forms[path.suffix.lower()])
    shard = write_tar(tmp_path / "mixed.tar", [(n, (tmp_path / n).read_bytes()) for n in names])
    with browsing([(shard, 6)]) as client, Tab(chromium, client.parts.geturl()) as tab:
        loaded = "[...document.querySelectorAll('#grid img')].every(image => image.complete)"
        tab.page.wait_for_function(loaded)
        images = "images => images.map(i => [i.naturalWidth, getComputedStyle(i).imageRendering])"
        assert tab.page.eval_on_selector_all("#grid img", images) == [[16, "pixelated"]] * 6
        first = tab.page.get_attribute("#grid a:nth-child(5) img", "src")
        tab.page.select_option("#picture", ".mask.png")
        tab.page.wait_for_selector(f"#grid a:nth-child(5) img:not([src='{first}'])")
        tab.page.click("#grid a:nth-child(5)")
        tab.page.wait_for_selector("#strip button")
        labels = tab.page.locator("#strip button").all_inner_texts()
        assert labels == [".mask.png", ".jpg"]
        tab.page.click("#strip button:has-text('.jpg')")
        tab.page.wait_for_selector("#picture-text:text('.jpg · JPEG 16 x 12')")


def test_problems_are_shown_once(chromium: Chromium, tmp_path: Path) -> None:
    """A broken shard is one message with its reason; so is a server that is gone (LOOK-12)."""
    chromium.causes("banner: ", "0.tar", "`wids browse` does not answer", "ERR_CONNECTION_REFUSED")
    members = [(f"{n}.jpg", picture(n)) for n in range(60)]
    shards = [write_tar(tmp_path / f"{n}.tar", members) for n in range(2)]
    wids.build_spec(shards, pack=tmp_path / "a.index").save(tmp_path / "a.json")
    shards[0].write_bytes(b"?" * 2048)
    with wids.ShardListDataset(tmp_path / "a.json") as dataset, serving(dataset) as client:
        tab = Tab(chromium, client.parts.geturl())
        tab.page.wait_for_selector("#banner-text:text('48 samples')")
        assert tab.page.inner_text("#banner-text").count("0.tar") == 1
        assert "0.tar" not in tab.page.inner_text("#grid")
        tab.page.click("#next-page")
        tab.wait_for_first(48)
        tab.page.click("#next-page")
        tab.wait_for_first(96)
        assert tab.page.is_hidden("#banner")
        tab.page.fill("#query", "nowhere")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#banner-text:text('0.tar')")
        tab.page.wait_for_selector("#stop-hits:text('continue')")
        assert tab.page.inner_text("#banner-text").count("0.tar") == 1
        tab.page.click("#active button")
        tab.wait_for_first(0)
    tab.page.click("#next-page")
    tab.page.wait_for_selector("#banner-text:text('`wids browse` does not answer')")
    tab.page.click("#dismiss")
    assert tab.page.is_hidden("#banner")
    tab.page.close()


def test_hits_are_marked_in_any_language(chromium: Chromium, tmp_path: Path) -> None:
    """Texts whose length changes in lower case, and words with signs, are marked too (LOOK-3)."""
    texts = ["İİİİ (dog)+", "a DOG, and a (dog)+", "cat"]
    members = [(f"{n}.txt", text.encode()) for n, text in enumerate(texts)]
    with browsing(write_tar(tmp_path / "a.tar", members)) as client:
        tab = Tab(chromium, client.parts.geturl())
        for query, wanted in (("dog", ["dog", "DOG", "dog"]), ("(DOG)+", ["(dog)+"] * 2)):
            tab.page.fill("#query", query)
            tab.page.keyboard.press("Enter")
            tab.page.wait_for_selector("#hits:text('2 hits · 3 searched')")
            tab.page.wait_for_selector(f"#grid mark:text-is('{wanted[-1]}')")
            assert tab.page.locator("#grid mark").all_inner_texts() == wanted
            assert tab.page.inner_text("#grid a:nth-child(1)").startswith(texts[0])
        tab.page.fill("#query", "bird")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#status:text-is('no samples match')")
        tab.page.close()


def test_a_sample_that_cannot_be_shown_states_why(chromium: Chromium, tmp_path: Path) -> None:
    """The reason stands in the dialog, with nothing of the sample before (LOOK-12)."""
    chromium.causes("status of 404")
    spec = write_scenery(tmp_path, 3, width=40)
    with browsing(spec) as client:
        tab = Tab(chromium, f"{client.parts.geturl()}#sample=1")
        tab.page.wait_for_selector("#sample-python:text('dataset[1]')")
        tab.page.evaluate("location.hash = '#sample=7'")
        tab.page.wait_for_selector("#sample [role=alert]:text('from 0 to 2, found 7')")
        assert tab.page.inner_text("#place") == ""
        assert tab.page.inner_text("#sample-python") == "dataset[7]"
        tab.page.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1300), ("dark", 1300), ("dark", 360)])
def test_screen_readers_find_everything(
    scheme: str, width: int, chromium: Chromium, seasons: Path
) -> None:
    """axe-core finds no violation on the page, while it filters, and in a sample (LOOK-13)."""
    options = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    with browsing(seasons) as client, Tab(chromium, client.parts.geturl(), **options) as tab:
        if width < 800:
            tab.page.click("#filters > summary")
        tab.page.wait_for_selector("#values button")
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        violations_of(tab.page)
        tab.page.click("#values button")
        tab.page.wait_for_selector("#active button")
        tab.page.select_option("#column", ".json/score")
        tab.page.wait_for_selector("#histogram span")
        violations_of(tab.page)
        tab.page.click("#grid a")
        tab.page.wait_for_selector("#stage img")
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        violations_of(tab.page)


def violations_of(page: Any) -> None:
    need(importlib.util.find_spec("axe_playwright_python"), "pip install axe-playwright-python")
    from axe_playwright_python.sync_playwright import Axe

    found = [
        (each["id"], node["html"][:200], node["failureSummary"][:300])
        for each in Axe().run(page).response["violations"]
        for node in each["nodes"]
    ]
    assert found == []


def test_everything_by_keyboard(chromium: Chromium, seasons: Path) -> None:
    """The Tab key reaches every control of the page and of a sample, and each has a name."""
    with browsing(seasons) as client, Tab(chromium, client.parts.geturl()) as tab:
        tab.page.wait_for_selector("#values button")
        for place, others in (("body", "#viewer *"), ("#viewer", "")):
            if place == "#viewer":
                tab.page.keyboard.press("Enter")  # on the first sample
                tab.page.wait_for_selector("#stage img")
            controls = tab.page.evaluate(
                """([place, others]) => [
                    ...document.querySelectorAll(`${place} :is(button, input, select, a)`)
                ].filter((each) => each.checkVisibility() && !each.disabled
                    && !(others && each.matches(others))).length""",
                [place, others],
            )
            reached = []
            for _ in range(controls + 8):
                tab.page.keyboard.press("Tab")
                reached.append(
                    tab.page.evaluate(
                        "[...document.querySelectorAll('button, input, select, a')]"
                        ".indexOf(document.activeElement)"
                    )
                )
            assert len({at for at in reached if at >= 0}) >= controls
            tab.page.focus("#grid a:first-child")


# Datasets whose values are not counted unasked.


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spec of 10,001 samples with a caption, a class and a number."""
    folder = tmp_path_factory.mktemp("many")
    members = [
        member
        for n in range(10_001)
        for member in [
            (f"{n:05d}.txt", b"caption %d" % n),
            (f"{n:05d}.cls", b"%d" % (n % 4)),
            (f"{n:05d}.json", b'{"n": %d}' % n),
        ]
    ]
    shard = write_tar(folder / "many.tar", members)
    wids.build_spec([shard], pack=folder / "many.index").save(folder / "many.json")
    return folder / "many.json"


def count_and_search(tab: Tab, num_samples: int, num_found: int) -> None:
    """Count the values of the first column by a click, filter by one, and search."""
    page = tab.page
    page.wait_for_selector(f"#count-column:text-is('count the values of {num_samples:,} samples')")
    assert page.is_hidden("#column-progress")
    assert (page.locator("#values button").count(), page.inner_text("#column-note")) == (0, "")
    page.click("#count-column")
    page.wait_for_selector("#values button >> nth=3")
    page.wait_for_selector("#column-line", state="hidden")
    page.click("#values button >> nth=2")
    page.wait_for_selector(f"#hits:has-text('hits · {num_samples:,} searched')")
    tab.wait_for_first(2)
    page.fill("#query", "caption 10")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"#hits:text-is('{num_found} hits · {num_samples:,} searched')")
    page.select_option("#column", ".json/n")
    page.wait_for_selector(f"#count-column:text-is('count the values of {num_samples:,} samples')")
    page.click("#count-column")
    page.wait_for_selector("#histogram span")
    page.wait_for_selector("#grid[aria-busy=false]")


def test_more_than_10000_samples(chromium: Chromium, many: Path) -> None:
    """Their page opens without a problem, and counts values when it is asked to (LOOK-6)."""
    wanted = sum(n % 4 == 2 and "10" in str(n) for n in range(10_001))
    with browsing(many) as client, Tab(chromium, client.parts.geturl()) as tab:
        count_and_search(tab, 10_001, wanted)


def test_a_remote_dataset(chromium: Chromium, seasons: Path, server: Server) -> None:
    """Its page opens without a problem, and counts values when it is asked to (LOOK-6)."""
    for path in seasons.parent.iterdir():
        if path.is_file():
            server.page(f"/{path.name}", path.read_bytes())
    url = f"{server.url}/{seasons.name}"
    with browsing(url) as client, Tab(chromium, client.parts.geturl()) as tab:
        assert tab.page.locator("#grid img").count() == 48
        tab.page.wait_for_selector("#count-column:text('count the values of 300 samples')")
        tab.page.click("#count-column")
        tab.page.wait_for_selector("#values button >> nth=3")
        tab.page.fill("#query", "winter")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#hits:has-text('hits · 300 searched')")
        tab.page.wait_for_selector("#grid[aria-busy=false] mark")


def test_a_saved_table(chromium: Chromium, many: Path) -> None:
    """Its columns are counted when the page opens, however many samples there are (LOOK-6)."""
    pytest.importorskip("pyarrow")
    columns = "label=.cls,n=.json/n"
    table = str(many.with_suffix(".parquet"))
    assert main(["table", str(many), "--columns", columns, "--output", table]) == 0
    with browsing(many) as client, Tab(chromium, client.parts.geturl()) as tab:
        tab.page.wait_for_selector("#values button >> nth=3")
        assert tab.page.is_hidden("#column-line")
        tab.page.select_option("#column", "n")
        tab.page.wait_for_selector("#histogram span")
        tab.page.wait_for_selector("#grid[aria-busy=false]")
