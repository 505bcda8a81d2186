"""What a browser alone can show of the page of `wids browse`: one pass through it in Chromium.

What the server answers is tested in tests/look/page. A test that causes a problem, such as a
banner, says so; every other problem fails it.
"""

from __future__ import annotations

import importlib.util
import io
import json
import re
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from conftest import need, write_tar
from events import LONG_S
from looks import HOSTILE, Client, browse_command, browsing, peeking, picture, serving, tar_of
from loopback import Server
from PIL import Image
from recordings import film, wav
from tabs import Chromium, Tab

import wids
from wids.look.page.pages import Pages
from wids.look.page.questions import Scans
from wids.look.page.tally import Tally
from wids.shards.indexes.dataset_index_writer import write_dataset_index
from wids.shards.tars.index import index_tar
from wids.tables.search import Hits

pytestmark = [pytest.mark.long, pytest.mark.timeout(150)]  # a browser that hangs ends

SEASONS = ["spring", "summer", "autumn", "winter"]
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
TEXTS = 192  # the page of samples without pictures begins here
NUM_SAMPLES = 240


def drawn(number: int) -> dict[str, bytes]:
    """Return the pictures, audio and video of a sample: formats and cases are mixed."""
    forms = {".jpg": "JPEG", ".JPG": "JPEG", ".png": "PNG", ".WebP": "WEBP", ".mask.png": "PNG"}
    names = {6: [".JPG"], 8: [".png"], 9: [".WebP"], 10: [".mask.png", ".jpg"]}
    fields = {}
    for name in names.get(number, [".jpg"]):
        stream = io.BytesIO()
        size = (16, 12) if number in names else (160, 120)
        Image.new("RGB", size, (number, len(name) * 30, 90)).save(stream, forms[name])
        fields[name] = stream.getvalue()
    if 144 <= number < 150:
        # Chromium has no decoder of MPEG-4 part 2, in whatever container.
        mp4, avi = (film(30, size=(320, 240), format_name=name) for name in ("mp4", "avi"))
        played = [(".wav", wav())] * 3 + [(".mp3", b"no audio"), (".mp4", mp4), (".avi", avi)]
        return dict([played[number - 144]])
    odd = {5: {".jpg": b"not a jpeg"}, 60: {f".{HOSTILE.replace('/', '')}": b"x", **fields}}
    return {} if number >= TEXTS else odd.get(number, fields)


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of a local dataset are counted when they are shown, however slow the machine is."""
    monkeypatch.setattr("wids.look.page.questions._WAIT_S", LONG_S)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of all that the page shows, with names of classes."""
    folder = tmp_path_factory.mktemp("looks")
    with wids.ShardWriter(folder / "looks-%06d.tar", maxcount=80) as writer:
        for number in range(NUM_SAMPLES):
            text = f"Caption {number} in {SEASONS[number % 4]}" + " (dog)+" * (number == 6)
            facts = {"width": 160, "height": 120, "time": "noon", "score": number / 10, "more": 1}
            sample: dict[str, Any] = {"__key__": f"k/{number:04d}", **drawn(number)}
            sample[".txt"] = {3: HOSTILE, 7: "İİİİ a DOG, and a (dog)+"}.get(number, text)
            if number >= TEXTS:
                sample[".txt"] += " with many words" * 30
            writer.write({**sample, ".cls": number % 4, ".json": facts})
    path = folder / "looks.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "classes": SEASONS}))
    return path


@pytest.fixture(scope="module")
def dataset(spec: Path) -> Iterator[Any]:
    with wids.ShardListDataset(spec, access="range") as dataset:
        for number in (0, 80, 160):
            dataset[number]  # each shard is open before a test begins
        yield dataset


@pytest.fixture(scope="module")
def local(dataset: Any) -> Iterator[str]:
    """The address of its page."""
    with serving(Pages(dataset, python="wids.ShardListDataset('looks.json')")) as client:
        yield client.parts.geturl()


@pytest.fixture
def tab(chromium: Chromium, local: str) -> Iterator[Tab]:
    with Tab(chromium, local) as tab:
        tab.page.wait_for_selector("#values button")
        yield tab


def other_tab(tab: Tab) -> Tab:
    """Open the address of a tab in another one."""
    return Tab(tab.chromium, tab.page.url)


def leave_sample(page: Any) -> None:
    """Close the dialog: behind it, nothing takes a text."""
    page.keyboard.press("Escape")
    page.wait_for_selector("#viewer", state="hidden")


def ask(tab: Tab, selector: str, text: str) -> None:
    """Fill a field of the page, and submit it."""
    tab.page.fill(selector, text)
    tab.page.press(selector, "Enter")


def violations_of(page: Any) -> None:
    """Fail on what axe-core finds."""
    need(importlib.util.find_spec("axe_playwright_python"), "pip install axe-playwright-python")
    from axe_playwright_python.sync_playwright import Axe

    found = [
        (each["id"], node["html"][:200], node["failureSummary"][:300])
        for each in Axe().run(page).response["violations"]
        for node in each["nodes"]
    ]
    assert found == []


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


def test_pages_and_samples(tab: Tab) -> None:
    """Buttons, arrow keys, addresses, indices and keys lead to pages and samples."""
    page = tab.page
    assert tab.indices() == list(range(48))
    assert page.is_disabled("#previous-page")
    page.click("#next-page")
    tab.wait_for_first(48)
    page.keyboard.press("ArrowRight")
    tab.wait_for_first(96)
    page.keyboard.press("ArrowLeft")
    tab.wait_for_first(48)
    assert page.inner_text("#shown-range") == f"49 to 96 of {NUM_SAMPLES}"
    page.go_back()
    tab.wait_for_first(96)
    for first in (144, 192):
        page.click("#next-page")
        tab.wait_for_first(first)
    assert page.is_disabled("#next-page")

    page.focus("#jump-to")
    page.keyboard.type("150")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key:text('150 · k/0150')")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#key:text('151 · k/0151')")
    with other_tab(tab) as other:
        other.page.wait_for_selector("#key:text('151 · k/0151')")
    leave_sample(page)
    assert "sample" not in page.url
    tab.wait_for_first(144)
    ask(tab, "#jump-to", "k/0033")
    page.wait_for_selector("#key:text('33 · k/0033')")
    leave_sample(page)
    ask(tab, "#jump-to", "unknown")
    page.wait_for_selector("#banner-text:text('no sample has the key')")
    tab.chromium.causes("status of 404", "no sample has the key 'unknown'")


def test_a_step_of_training(chromium: Chromium, spec: Path, tmp_path: Path) -> None:
    """The command shows its samples alone, among which is searched."""
    with wids.ShardListDataset(spec) as dataset:
        ranks = [
            wids.DistributedChunkedSampler(dataset, num_replicas=2, rank=rank, seed=1)
            for rank in range(2)
        ]
        (tmp_path / "state.json").write_text(json.dumps(ranks[1].state_dict(96)))
        batch = sorted(index for rank in ranks for index in list(rank)[32:64])
    asked = ("--state", str(tmp_path / "state.json"), "--batch-size", "32", "--step", "1")
    with (
        browse_command(str(spec), options=asked) as (client, _),
        Tab(chromium, client.parts.geturl()) as tab,
    ):
        page = tab.page
        assert page.url.endswith("#step=1")
        assert tab.indices() == batch[:48]
        assert page.inner_text("#python").endswith(f"view = dataset[{batch}]")
        page.click("#next-page")
        tab.wait_for_first(batch[48])
        page.click("#grid a")
        page.wait_for_selector(f"#key:text('{batch[48]} ·')")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector(f"#key:text('{batch[49]} ·')")
        leave_sample(page)
        ask(tab, "#query", "winter")
        tab.wait_for_first(next(index for index in batch if index % 4 == 3))
        page.wait_for_selector(f"#hits:has-text('{NUM_SAMPLES} searched')")
        wanted = [index for index in batch if index % 4 == 3]
        page.wait_for_selector(f"#shown-range:text('1 to {len(wanted)} of {len(wanted)}')")
        assert tab.indices() == wanted
        page.click("#active button:has-text('step 1 of training')")
        page.wait_for_selector("#shown-range:text('1 to 48 of 58')")


def test_search(tab: Tab) -> None:
    """Hits and progress stand beside the field; hits are marked in any language."""
    page = tab.page
    wanted = [n for n in range(3, NUM_SAMPLES, 4) if str(n).startswith("1")]
    page.keyboard.press("/")
    page.keyboard.type('"caption 1" WINTER')
    page.keyboard.press("Enter")
    page.wait_for_selector(f"#hits:has-text('hits · {NUM_SAMPLES} searched')")
    tab.wait_for_first(wanted[0])
    assert tab.indices() == wanted
    assert set(page.locator("#grid mark").all_inner_texts()) == {"Caption 1", "winter"}
    page.click("#grid a:nth-child(2)")
    page.wait_for_selector(f"#key:text('{wanted[1]} ·')")
    page.keyboard.press("ArrowRight")  # to the next hit, not to the next sample
    page.wait_for_selector(f"#key:text('{wanted[2]} ·')")
    with other_tab(tab) as other:
        other.page.wait_for_selector(f"#key:text('{wanted[2]} ·')")
        assert other.page.input_value("#query") == '"caption 1" WINTER'
    leave_sample(page)
    page.click("#active button")
    page.wait_for_selector(f"#shown-range:text('of {NUM_SAMPLES}')")
    assert page.is_hidden("#hits-line")
    for query, marks in (("dog", ["dog", "DOG", "dog"]), ("(DOG)+", ["(dog)+"] * 2)):
        ask(tab, "#query", query)
        page.wait_for_selector(f"#hits:text('2 hits · {NUM_SAMPLES} searched')")
        page.wait_for_selector(f"#grid a:nth-child(2) mark:text-is('{marks[-1]}')")
        assert page.locator("#grid mark").all_inner_texts() == marks
        assert "İİİİ a DOG" in page.inner_text("#grid a:nth-child(2)")
    ask(tab, "#query", "bird")
    page.wait_for_selector("#status:text-is('no samples match')")


def test_a_long_search_is_watched_and_stopped(tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hits are shown while the search runs; it is stopped and continued by a button.

    Buttons that stay the same are not replaced, so that a click on them is not lost.
    """
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
    page = tab.page
    gate.release(2)
    ask(tab, "#query", "k")
    page.wait_for_selector("#hits:text('40 hits · 16% of 240 searched')")
    page.wait_for_selector("#grid a:last-child:nth-child(40)")
    assert page.get_attribute("#hits-progress", "value") == str(40 / 240)
    page.evaluate("document.querySelector('#active button').isFirst = true")
    is_asked_to_stop.clear()
    page.click("#stop-hits")
    assert is_asked_to_stop.wait(LONG_S)
    gate.release(1)
    page.wait_for_selector("#stop-hits:text('continue')")
    assert "60 hits" in page.inner_text("#hits")
    gate.release(1000)
    page.click("#stop-hits")
    page.wait_for_selector("#hits:text('240 hits · 240 searched')")
    # The page is complete before the server of its samples is closed.
    page.wait_for_selector("#grid[aria-busy=false] a:last-child:nth-child(48)")
    assert page.evaluate("document.querySelector('#active button').isFirst")


def test_filters_and_code(tab: Tab, dataset: Any) -> None:
    """A click filters; values are counted in what was found; the code opens it.

    A histogram has an axis, and the name of a class is not in the address.
    """
    page = tab.page
    assert page.locator("#values button").all_inner_texts() == [f"{name}\n60" for name in SEASONS]
    assert page.is_hidden("#most")
    ask(tab, "#query", '"caption 1"')
    counts = [
        sum(str(n).startswith("1") for n in range(k, NUM_SAMPLES, 4)) for k in range(len(SEASONS))
    ]
    page.wait_for_selector(f"#values li:first-child small:text-is('{counts[0]}')")
    page.click("#values button:has-text('autumn')")
    page.wait_for_selector("#active >> text='.cls = autumn'")
    page.wait_for_selector(f"#shown-range:text-is('1 to {counts[2]} of {counts[2]}')")
    pressed = page.locator("#values button[aria-pressed=true]").all_inner_texts()
    assert pressed == [f"autumn\n{counts[2]}"]
    assert page.locator("#values small").all_inner_texts() == list(map(str, counts))
    page.wait_for_selector("#python:text('.cls == \"autumn\"')")
    code = page.inner_text("#python").rpartition("view = ")[2]
    view = eval(code, {"dataset": dataset})  # noqa: S307 - ours
    assert tab.indices() == [sample["__index__"] for sample in view]
    with other_tab(tab) as other:
        other.page.wait_for_selector("#active >> text='.cls = autumn'")
        assert "autumn" not in other.page.url
    page.select_option("#column", ".json/score")
    page.wait_for_selector("#histogram span")
    page.wait_for_selector("#axis span")
    low, middle, high = map(float, page.locator("#axis span").all_inner_texts())
    assert low < middle < high
    assert int(page.inner_text("#most")) > 1
    assert page.locator("#histogram").get_attribute("aria-label").startswith("distribution of")
    ask(tab, "#low", "19")
    page.wait_for_selector("#active >> text=.json/score ≥ 19")
    page.wait_for_selector("#shown-range:text-is('1 to 3 of 3')")
    assert tab.indices() == [190, 194, 198]
    page.click("#active button:has-text('search')")
    page.wait_for_selector("#shown-range:text('of 13')")
    page.goto(tab.url)
    page.click("#fields button[data-field='.wav']")
    page.wait_for_selector("#shown-range:text-is('1 to 3 of 3')")
    assert "field=.wav" in page.url


def test_a_count_is_followed_once(tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the samples to count change: one request at a time asks for the progress."""
    gate, visit = threading.Event(), Tally.visit

    def slow(self: Any, *arguments: Any) -> bool:
        gate.wait(LONG_S)
        return visit(self, *arguments)

    monkeypatch.setattr(Tally, "visit", slow)
    monkeypatch.setattr("wids.look.page.questions._WAIT_S", 0.0)
    page = tab.page
    page.clock.install(time=0)
    page.clock.pause_at(1000)

    def wait_for_progress() -> None:
        page.wait_for_selector("#column-note:has-text('% counted')")
        page.evaluate("document.querySelector('#column-note').textContent = ''")

    for word in ("caption", "in", "winter"):
        ask(tab, "#query", word)
        wait_for_progress()
    asked: list[str] = []
    page.on("request", lambda each: asked.append(each.url.removeprefix(tab.url)))
    page.clock.run_for(300)
    wait_for_progress()
    gate.set()
    assert [url for url in asked if "column" in url] == ["column?q=winter&name=.cls"]
    page.clock.resume()
    page.wait_for_selector("#column-line", state="hidden")


def test_shuffle(tab: Tab) -> None:
    """The same seed is the same order, also in another tab; another seed is another."""
    page = tab.page
    page.fill("#seed", "7")
    page.click("#shuffle")
    page.wait_for_selector("#active >> text=shuffled by seed 7")
    page.wait_for_selector("#grid[aria-busy=false] a:first-child:not([data-index='0'])")
    first = tab.indices()
    assert sorted(first) != first
    page.click("#next-page")
    page.wait_for_selector("#shown-range:text('49 to 96 of 240')")
    page.wait_for_selector("#grid[aria-busy=false]")
    assert not set(first) & set(tab.indices())
    page.go_back()
    with other_tab(tab) as other:
        other.page.wait_for_selector("#shown-range:text('1 to 48 of 240')")
        assert other.indices() == first
    tab.wait_for_first(first[0])
    ask(tab, "#seed", "8")
    page.wait_for_selector("#active >> text=shuffled by seed 8")
    page.wait_for_selector(f"#grid a:first-child:not([data-index='{first[0]}'])")


def test_pictures(tab: Tab) -> None:
    """They fit, are zoomed, chosen and described; tiny ones are sharp.

    A sample states each size once.
    """
    page = tab.page
    page.wait_for_function(
        "() => [...document.querySelectorAll('#grid img')].every(image => image.complete)"
    )
    images = "seen => seen.map(i => [i.naturalWidth, getComputedStyle(i).imageRendering])"
    small = "#grid a:nth-child(7) img, #grid a:nth-child(9) img, #grid a:nth-child(10) img"
    assert page.eval_on_selector_all(small, images) == [[16, "pixelated"]] * 3
    before = page.locator("#grid a").first.bounding_box()["width"]
    with page.expect_request(lambda request: "pixels=512" in request.url):
        page.focus("#size")
        for _ in range(8):
            page.keyboard.press("ArrowRight")
    assert page.locator("#grid a").first.bounding_box()["width"] > before + 50
    page.reload()
    page.wait_for_selector("#grid[aria-busy=false] a")
    assert page.input_value("#size") == "340"

    page.click("#grid a:first-child")
    page.wait_for_selector("#stage img")
    (size,) = page.locator("#sample tr:has(code:text-is('.jpg')) th small").all()
    assert page.inner_text("#viewer").count(size.inner_text()) == 1
    width = "document.querySelector('#stage img').getBoundingClientRect().width"
    stage = page.locator("#stage").bounding_box()["width"]
    fitted = page.evaluate(width)
    assert fitted <= stage
    assert fitted % 160 == 0  # by a whole number, since it has few pixels
    page.keyboard.press("+")
    assert page.evaluate(width) == pytest.approx(fitted * 1.5, rel=0.001)
    page.click("#zoom-out")
    page.click("#zoom-out")
    assert page.evaluate(width) == pytest.approx(fitted / 1.5, rel=0.001)
    page.keyboard.press("0")
    assert page.evaluate(width) == fitted
    page.click("#stage img")
    assert page.evaluate(width) > stage
    assert "zoomed" in page.get_attribute("#stage", "class")
    page.wait_for_function("document.querySelector('#stage img').complete")
    assert page.eval_on_selector_all("#stage img", images) == [[160, "pixelated"]]
    leave_sample(page)

    first = page.get_attribute("#grid a:nth-child(11) img", "src")
    page.select_option("#picture", ".mask.png")
    page.wait_for_selector(f"#grid a:nth-child(11) img:not([src='{first}'])")
    page.click("#grid a:nth-child(11)")
    page.wait_for_selector("#strip button")
    assert page.locator("#strip button").all_inner_texts() == [".mask.png", ".jpg"]
    page.click("#strip button:has-text('.jpg')")
    page.wait_for_selector("#picture-text:text('.jpg · JPEG 16 x 12')")
    page.goto(f"{tab.url}#sample=5")
    page.wait_for_selector("#stage .none:text('its bytes are those of no JPEG')")
    page.wait_for_selector("#grid .none:has-text('its bytes are those of no JPEG')")


def test_texts(tab: Tab) -> None:
    """Scripts are shown and not run (SEC-13); texts without pictures have room."""
    page = tab.page
    assert "<script>" in page.inner_text("#grid a:nth-child(4)")
    line = page.locator("#grid p.line:has-text('.json')").first.inner_text()
    assert line == ".json width 160 · height 120 · time noon · …"
    for index in (3, 60):
        page.goto(f"{tab.url}#sample={index}")
        page.wait_for_selector(f"#key:text('{index} ·')")
    page.wait_for_timeout(200)
    assert page.title() == "looks · wids"
    assert page.locator("script").count() == 1
    page.goto(f"{tab.url}#start={TEXTS}")
    tab.wait_for_first(TEXTS)
    card = page.locator("#grid a").first
    assert card.bounding_box()["width"] >= 360
    lines = card.locator("p").first.evaluate(
        "p => p.offsetHeight / parseFloat(getComputedStyle(p).lineHeight)"
    )
    assert 7 < lines < 9.5


def test_players(tab: Tab) -> None:
    """Audio plays on its card; what the browser cannot play has a sentence and a link."""
    page = tab.page
    page.goto(f"{tab.url}#start=144")
    tab.wait_for_first(144)
    page.wait_for_selector("#grid[aria-busy=false] audio >> nth=3")
    violations_of(page)
    box = page.locator("#grid audio").nth(1).bounding_box()
    page.mouse.click(box["x"] + 20, box["y"] + box["height"] / 2)
    page.wait_for_function("() => document.querySelectorAll('#grid audio')[1].currentTime > 0")
    assert page.url == f"{tab.url}#start=144"
    page.evaluate("void document.querySelectorAll('#grid audio')[3].play().catch(() => 0)")
    page.wait_for_selector("#grid .with-player:nth-child(4):has-text('cannot play the audio')")
    page.wait_for_function(
        """() => ["148", "149"].every(index =>
            document.querySelector(`#grid a[data-index="${index}"] img`).naturalWidth === 320)"""
    )
    source = page.get_attribute("#grid a[data-index='148'] img", "src")
    page.click("#grid a >> nth=2")
    page.wait_for_selector("#sample audio")
    page.goto(f"{tab.url}#start=144&sample=148")
    page.wait_for_selector("#sample video")
    assert page.get_attribute("#sample video", "poster") == source
    assert page.is_hidden("#sample .unplayed")
    page.evaluate("void document.querySelector('#sample video').play().catch(() => 0)")
    for index, kind in ((148, "mp4"), (149, "avi")):
        page.wait_for_selector(f"#sample .unplayed:has-text('This browser cannot play .{kind}')")
        page.wait_for_function("() => document.querySelector('#sample img').naturalWidth === 320")
        assert page.locator("#sample video").count() == 0
        violations_of(page)
        with page.expect_download() as download:
            page.click("#sample .unplayed a")
        assert download.value.suggested_filename == f"{index:04d}.{kind}"
        page.keyboard.press("ArrowRight")


def test_links_and_python_are_copied(chromium: Chromium, local: str, tmp_path: Path) -> None:
    """Address and expression are copied; a field is saved under its key."""
    rights = ["clipboard-read", "clipboard-write"]
    with Tab(chromium, f"{local}#sample=123", permissions=rights) as tab:
        page = tab.page
        page.wait_for_selector("#key:text('123 ·')")
        page.evaluate("window.setTimeout = () => 0")  # the word stays
        for button, wanted in (("#copy-python", "dataset[123]"), ("#copy-link", page.url)):
            page.click(button)
            page.wait_for_selector(f"{button}:text('copied')")
            assert page.evaluate("navigator.clipboard.readText()") == wanted
        with page.expect_download() as download:
            page.click("#sample a[aria-label='save .txt']")
        assert download.value.suggested_filename == "0123.txt"
        download.value.save_as(tmp_path / "saved")
        assert (tmp_path / "saved").read_text() == "Caption 123 in winter"


def reached(page: Any, times: int) -> set[str]:
    """Press the Tab key some times, and return what it reaches."""
    found = set()
    for _ in range(times):
        page.keyboard.press("Tab")
        found.add(page.evaluate("document.activeElement.outerHTML.slice(0, 200)"))
    return found


@pytest.mark.parametrize(("scheme", "is_phone"), [("light", False), ("dark", True)])
def test_everything_is_reached(scheme: str, is_phone: bool, chromium: Chromium, local: str) -> None:
    """The keyboard reaches every control, and axe-core finds no violation.

    Neither on the page, nor while it filters, nor in a sample; nothing overflows sideways.
    """
    options: dict[str, Any] = {"color_scheme": scheme, **(PHONE if is_phone else {})}
    overflow = "document.documentElement.scrollWidth > innerWidth"
    with Tab(chromium, local, **options) as tab:
        page = tab.page
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(re.findall(r"\d+", colour)[0]) < 80) == (scheme == "dark")
        if is_phone:
            page.tap("#filters > summary")
        page.wait_for_selector("#values button")
        assert not page.evaluate(overflow)
        violations_of(page)
        for place, others in (("body", "#viewer *"), ("#viewer", "none")):
            if place == "#viewer":
                page.focus("#grid a:first-child")
                page.keyboard.press("Enter")
                page.wait_for_selector("#stage img")
                assert not page.evaluate(overflow)
                violations_of(page)
            controls = page.evaluate(
                """([place, others]) => [
                    ...document.querySelectorAll(`${place} :is(button, input, select, a)`)
                ].filter((each) => each.checkVisibility() && !each.disabled
                    && !each.matches(others)).map((each) => each.outerHTML.slice(0, 200))""",
                [place, others],
            )
            assert set(controls) <= reached(page, len(controls) + 8)
        box = page.locator("#close").bounding_box()
        assert box["x"] + box["width"] <= page.viewport_size["width"]
        page.click("#close")
        page.wait_for_selector("#viewer", state="hidden")
        page.click("#values button >> nth=0")
        page.wait_for_selector("#active button")
        page.select_option("#column", ".json/score")
        page.wait_for_selector("#histogram span")
        violations_of(page)


def test_problems_are_shown_once(chromium: Chromium, tmp_path: Path) -> None:
    """A broken shard, no such sample, a server that is another or gone: one sentence."""
    chromium.causes("banner: ", "0.tar", "ERR_CONNECTION_REFUSED", "status of 404")
    members = [(f"{n}.jpg", picture(n)) for n in range(60)]
    shards = [write_tar(tmp_path / f"{n}.tar", members) for n in range(2)]
    wids.build_spec(shards, dataset_index=tmp_path / "a.index").save(tmp_path / "a.json")
    shards[0].write_bytes(b"?" * 2048)
    with browsing(tmp_path / "a.json") as client:
        tab = Tab(chromium, client.parts.geturl())
        page = tab.page
        page.wait_for_selector("#banner-text:text('48 samples')")
        assert page.inner_text("#banner-text").count("0.tar") == 1
        assert "0.tar" not in page.inner_text("#grid")
        page.click("#next-page")
        tab.wait_for_first(48)
        page.click("#next-page")
        tab.wait_for_first(96)
        assert page.is_hidden("#banner")
        ask(tab, "#query", "nowhere")
        page.wait_for_selector("#banner-text:text('0.tar')")
        page.wait_for_selector("#stop-hits:text('continue')")
        assert page.inner_text("#banner-text").count("0.tar") == 1
        page.click("#active button")
        tab.wait_for_first(0)
        page.goto(f"{tab.url}#start=96&sample=100")
        page.wait_for_selector("#sample-python:text('dataset[100]')")
        page.evaluate("location.hash = '#start=96&sample=777'")
        page.wait_for_selector("#sample [role=alert]:text('from 0 to 119, found 777')")
        assert page.inner_text("#place") == ""
        assert page.inner_text("#sample-python") == "dataset[777]"
        leave_sample(page)
        earlier = client.parts._replace(path="/earlier/").geturl()
        page.route(
            "**/samples?*",
            lambda route: route.continue_(url=route.request.url.replace(tab.url, earlier)),
        )
        page.click("#previous-page")
        page.wait_for_selector("#banner-text:text('with another address')")
        page.unroute("**/samples?*")
    page.click("#shuffle")
    page.wait_for_selector("#banner-text:text('`wids browse` does not answer')")
    page.click("#dismiss")
    assert page.is_hidden("#banner")


def test_a_remote_million(chromium: Chromium, server: Server, tmp_path: Path) -> None:
    """Of a million remote samples pages and jumps are shown, and classes at once."""
    shard = write_tar(
        tmp_path / "a.tar", [(f"{n:06d}.cls", b"%d" % (n % 4)) for n in range(50_000)]
    ).read_bytes()
    index = index_tar(shard, checksums=True)
    names = [f"tiny-{number:02d}.tar" for number in range(20)]
    for name in names:
        server.page(f"/{name}", shard)
    with (tmp_path / "tiny.index").open("w+b") as file:
        write_dataset_index(file, [(name, len(shard), index) for name in names])
    server.page("/tiny.index", (tmp_path / "tiny.index").read_bytes())
    shards = [{"url": name} for name in names]
    document = {"name": "tiny", "index": "tiny.index", "classes": SEASONS, "shardlist": shards}
    with browsing(server.page("/tiny.json", document)) as client:
        with Tab(chromium, client.parts.geturl()) as tab:
            page = tab.page
            assert "1,000,000 samples" in page.inner_text("#summary")
            page.wait_for_selector("#count-column:text('count the values of 1,000,000 samples')")
            assert page.is_hidden("#column-progress")
            assert page.locator("#values button").all_inner_texts() == SEASONS
            ask(tab, "#jump-to", "987,654")
            page.wait_for_selector("#key:text('987,654 · 037654')")
            leave_sample(page)
            tab.wait_for_first(987_648)
            page.goto(f"{tab.url}#start=999984")
            tab.wait_for_first(999_984)
            assert tab.indices() == list(range(999_984, 1_000_000))


def test_a_remote_dataset(chromium: Chromium, spec: Path, server: Server) -> None:
    """It opens without a problem; classes and values are counted by a click."""
    for path in spec.parent.iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    with browsing(f"{server.url}/looks.json") as client:
        with Tab(chromium, client.parts.geturl()) as tab:
            page = tab.page
            assert page.locator("#grid img").count() == 47
            page.click("#values button:has-text('winter')")
            page.wait_for_selector("#shown-range:text('of 60')")
            page.wait_for_selector("#active >> text='.cls = winter'")
            page.click("#count-column:text('count the values of 240 samples')")
            page.wait_for_selector("#column-line", state="hidden")
            assert page.locator("#values small").all_inner_texts() == ["60"] * 4
            page.select_option("#column", ".json/score")
            page.click("#count-column:text('count the values of 240 samples')")
            page.wait_for_selector("#histogram span")
            page.wait_for_selector("#grid[aria-busy=false]")


# Shards without an index.


@pytest.fixture
def peeked(server: Server, tmp_path: Path) -> Iterator[Client]:
    """Three shards of 30 samples of 400 kB, of which the last has a film first, and a bad one."""
    for number in range(3):
        members = [("film.mp4", bytes(9_000_000)), ("film.txt", b"a film")] * (number == 2)
        for n in range(30):
            members.append((f"s{number}-{n:02d}.jpg", picture(n)))
            members.append((f"s{number}-{n:02d}.bin", bytes(400_000)))
            members.append((f"s{number}-{n:02d}.txt", b"caption %d" % n))
        server.page(f"/train-{number}.tar", tar_of(iter(members), 10**9))
    server.page("/train-3.tar", b"<html>log in</html>" * 100)
    with peeking(f"{server.url}/train-{{0..4}}.tar", cache_dir=tmp_path) as client:
        yield client


def test_shards_on_a_phone(chromium: Chromium, peeked: Client) -> None:
    """Each control of shards has a name, and the Tab key reaches it."""
    with Tab(chromium, peeked.parts.geturl(), **PHONE) as tab:
        page = tab.page
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
        names = [
            "next shard",
            "shard",
            "index this shard",
            "go to position in the shard, or to key",
        ]
        for role, name in zip(["button", "spinbutton", "button", "textbox"], names, strict=True):
            is_exact = name != "index this shard"
            assert page.get_by_role(role, name=name, exact=is_exact).count() == 1
        seen = " ".join(reached(page, 30))
        for name in ("shard", "next-shard", "make-index", "copy-command"):
            assert f'id="{name}"' in seen


def test_shards_without_an_index(chromium: Chromium, peeked: Client, server: Server) -> None:
    """Samples are shown shard by shard; a button makes the index of one."""
    with Tab(chromium, peeked.parts.geturl()) as tab:
        page = tab.page
        assert "samples not counted yet" in page.inner_text("#summary")
        assert page.inner_text("#command").startswith(f"wids create '{server.url}/train-")
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
        ask(tab, "#query", "caption 29")
        page.wait_for_selector("#hits:text('1 hit · 30 searched')")

        ask(tab, "#shard", "2")
        page.wait_for_selector("#grid a:first-child:has-text('a film')")
        page.click("#grid a:first-child")
        page.wait_for_selector("#key:text('0 · film')")
        assert page.get_attribute("#sample video", "src") == "shard/2/field/0/.mp4"
        with other_tab(tab) as other:
            other.page.wait_for_selector("#key:text('0 · film')")
            assert other.page.input_value("#shard") == "2"
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#key:text('1 · s2-00')")
        leave_sample(page)
        ask(tab, "#jump-to", "s2-03")
        page.wait_for_selector("#key:text('4 · s2-03')")
        leave_sample(page)

        chromium.causes("banner: http", "train-4.tar: not found", "status of 502")
        ask(tab, "#shard", "3")
        page.wait_for_selector("#shard-remark:text('HTML or XML')")
        page.click("#next-shard")
        page.wait_for_selector("#banner-text:text('train-4.tar: not found')")
        assert page.locator("#grid a").count() == 0
