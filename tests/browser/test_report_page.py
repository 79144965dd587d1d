"""The report in a real browser: clicked, hovered, typed at, photographed; and what a hostile host can do to it."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import made_up
import pytest
from chromium import Chromium

from orchestrator.actions.ledger import Ledger
from orchestrator.reports.page import page
from orchestrator.workflows.report import report

WIDE, PHONE = (1280, 900), (390, 844)
EVIL = (
    "</script><script>document.title='owned'</script><img src=http://evil.example/x "
    "onerror=\"document.title='owned'\">\x1b[31m"
)


def written(home: Path, file: Path) -> Path:
    """The report of the one run in a ledger."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCH_HOME", str(home))
        file.write_text(page(report(None, None)), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def two_hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run of 200 checkpoints."""
    folder = tmp_path_factory.mktemp("long")
    made_up.fill_run(folder / "state", 200)
    return written(folder / "state", folder / "report.html")


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run of 8 checkpoints."""
    folder = tmp_path_factory.mktemp("short")
    made_up.fill_run(folder / "state", 8, change_at=0.25)
    return written(folder / "state", folder / "report.html")


def text(browser: Chromium, selector: str) -> str:
    found = browser.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
    assert isinstance(found, str)
    return found


def test_200_checkpoints_are_one_small_file_that_answers_at_once_and_asks_for_nothing(
    browser: Chromium, two_hundred: Path
) -> None:
    assert two_hundred.stat().st_size < 500_000
    browser.show(*WIDE)
    ready = []
    for _ in range(4):  # the least: the others tell how busy this machine is
        browser.open(two_hundred)
        assert browser.requests() == [two_hundred.as_uri()]
        assert browser.complaints() == []
        ready.append(int(browser.evaluate("document.documentElement.dataset.ready")))
    assert min(ready) < 1000, f"interactive after {ready} ms"
    assert browser.evaluate("document.querySelectorAll('#runs tbody tr').length") == 200


def test_a_click_chooses_a_checkpoint_everywhere(browser: Chromium, eight: Path) -> None:
    browser.show(*WIDE)
    browser.open(eight)
    assert text(browser, "#chosen") == "Step 4000"
    before = browser.evaluate("document.querySelector('svg.positions.wide .line.ours').getAttribute('d')")
    browser.click("svg.curve", across=0.45)
    assert text(browser, "#chosen") in ("Step 2000", "Step 2500")
    assert text(browser, "#runs tr.picked th") == text(browser, "#chosen").split()[1]
    assert browser.evaluate("document.querySelector('svg.positions.wide .line.ours').getAttribute('d')") != before
    browser.click("#runs tbody tr:nth-child(3)")
    assert text(browser, "#chosen") == "Step 3000" and "3000-" in text(browser, "#facts")


def test_hovering_tells_the_number_and_leaving_hides_it(browser: Chromium, eight: Path) -> None:
    browser.show(*WIDE)
    browser.open(eight)
    for chart in ("svg.curve", "svg.trees"):
        tip = f"(document.querySelector('{chart}').closest('figure').querySelector('.tip'))"
        browser.hover(chart, across=0.6)
        assert browser.evaluate(f"{tip}.hidden") is False
        assert browser.evaluate(f"{tip}.innerText").startswith("Step ")
        inside = (
            f"(() => {{ const b = {tip}.getBoundingClientRect(); return b.left >= 0 && b.right <= innerWidth; }})()"
        )
        assert browser.evaluate(inside)
        browser.hover("h1")
        assert browser.evaluate(f"{tip}.hidden") is True


def test_the_keyboard_reaches_everything_and_a_screen_reader_hears_it(browser: Chromium, eight: Path) -> None:
    browser.show(*WIDE)
    browser.open(eight)
    reached = []
    for _ in range(12):
        browser.key("Tab", 9)
        reached.append(browser.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"skip", "theme", "back", "slider", "forth", "scroll"} <= set(reached)
    browser.evaluate("document.getElementById('slider').focus()")
    browser.key("ArrowLeft", 37)
    assert text(browser, "#chosen") == "Step 3500"
    spoken = browser.evaluate("document.getElementById('slider').getAttribute('aria-valuetext')")
    assert spoken.startswith("step 3500, Acceptance length 3.")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if "role" in node]
    assert any(role == "image" and name.startswith("Step 4000: 3.") for role, name in named)
    assert ("region", "Runs and their receipts") in named
    assert [name for role, name in named if role in ("button", "slider", "radio", "region") and not name] == []


def test_the_measure_of_the_curve_by_position_can_be_chosen(browser: Chromium, eight: Path) -> None:
    browser.show(*WIDE)
    browser.open(eight)
    path = "document.querySelector('svg.positions.wide .line.base').getAttribute('d')"
    before = browser.evaluate(path)
    browser.click("label[for=m-conditional]")
    assert browser.evaluate(path) != before


def test_light_and_dark_follow_the_system_and_the_button(browser: Chromium, eight: Path) -> None:
    page_colour = "getComputedStyle(document.body).backgroundColor"
    colours = {}
    for scheme in ("light", "dark"):
        browser.show(*WIDE, scheme)
        browser.open(eight)
        colours[scheme] = browser.evaluate(page_colour)
        browser.click("#theme")
        colours[f"{scheme}, other"] = browser.evaluate(page_colour)
    assert colours["light"] == colours["dark, other"] != colours["dark"] == colours["light, other"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_it_fits_its_window_and_every_word_can_be_read(
    browser: Chromium, eight: Path, pictures: Path, size: tuple[int, int], scheme: str
) -> None:
    browser.show(*size, scheme, phone=size == PHONE)
    browser.open(eight)
    assert browser.evaluate("document.documentElement.scrollWidth") <= size[0], "no sideways scrolling"
    least = browser.evaluate("""Math.min(...[...document.querySelectorAll("svg text")].filter((one) =>
        one.getClientRects().length).map((one) => parseFloat(getComputedStyle(one).fontSize) *
        one.ownerSVGElement.getBoundingClientRect().width / one.ownerSVGElement.viewBox.baseVal.width))""")
    assert least >= 9.5, "the smallest letters in a drawing, in pixels"
    assert browser.evaluate(CONTRASTS) >= 4.5
    height = int(browser.evaluate("document.documentElement.scrollHeight"))
    browser.show(size[0], height, scheme, phone=size == PHONE)
    picture = browser.picture(pictures / f"report-{size[0]}-{scheme}.png")
    assert colours_in(picture) > 100, "a picture of something"


CONTRASTS = """(() => {
  const canvas = document.createElement("canvas").getContext("2d");
  const rgb = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => { const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) =>
    v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * x + 0.7152 * y + 0.0722 * z; };
  const behind = (one) => { for (; one; one = one.parentElement) {
    const back = rgb(getComputedStyle(one).backgroundColor);
    if (back[3] === 255) return back; } return [255, 255, 255]; };
  const worst = [...document.querySelectorAll("h1,h2,p,dt,dd,td,th,button,label,summary,li,footer,.word,.unlike code")]
    .filter((one) => one.getClientRects().length && one.innerText.trim()).map((one) => {
      const [a, b] = [light(rgb(getComputedStyle(one).color)), light(behind(one))];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); });
  return Math.min(...worst);
})()"""
"""the least contrast of text with what is behind it, as WCAG 2 computes it"""


def colours_in(picture: Path) -> int:
    """How many different bytes a PNG's data holds, at a sample: 1 for a blank page."""
    data = picture.read_bytes()
    pixels = b""
    at = 8
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        pixels += data[at + 8 : at + 8 + size] if data[at + 4 : at + 8] == b"IDAT" else b""
        at += size + 12
    return len(set(zlib.decompress(pixels)))


def test_without_its_script_the_page_still_shows_everything(browser: Chromium, eight: Path) -> None:
    browser.show(*WIDE)
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(eight)
        assert browser.evaluate("document.querySelectorAll('#runs tbody tr').length") == 8
        assert (
            browser.evaluate("document.querySelector('svg.curve.wide .line.ours').getBoundingClientRect().width") > 300
        )
        assert browser.evaluate("document.getElementById('slider').getClientRects().length") == 0
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_what_hosts_write_never_becomes_markup(browser: Chromium, tmp_path: Path) -> None:
    home = tmp_path / "state"
    scripts = {f"a/{EVIL}.py": b"print('</pre><script>document.title=1</script>')\n"}
    newer = {name: content + b"<img src=http://evil.example/y>\n" for name, content in scripts.items()}
    with Ledger(home) as ledger:
        for step, version in ((500, scripts), (1000, newer)):
            for content in version.values():
                ledger.keep_script(made_up.hashlib.sha256(content).hexdigest(), content)
            files = made_up.result_files(step, 3.0, version, prompts=6, seed=step)
            spec = json.loads(files["spec.json"])
            spec.update(run=EVIL, job=EVIL, origin=EVIL, digests=dict.fromkeys(spec["digests"], EVIL))
            spec["digests"]["harness"] = f"{step}{EVIL}"
            spec["rule"]["headline"] = "acceptance_length.pooled"
            result = json.loads(files[made_up.RULE.file])
            result["provenance"]["versions"] = {EVIL: EVIL}
            files.update({"spec.json": json.dumps(spec).encode(), made_up.RULE.file: json.dumps(result).encode()})
            made_up.add(ledger, files)
    file = written(home, tmp_path / "report.html")
    browser.show(*WIDE)
    browser.open(file)
    assert browser.evaluate("document.querySelectorAll('img, iframe, object, embed, link').length") == 0
    assert browser.evaluate("document.querySelectorAll('script').length") == 2
    assert "owned" not in browser.evaluate("document.title").split("document.title=")[0]
    assert browser.requests() == [file.as_uri()] and browser.complaints() == []
    assert "\x1b" not in file.read_text()


def test_the_policy_stops_a_script_a_style_and_a_connection_that_are_not_the_page_s(
    browser: Chromium, eight: Path, tmp_path: Path
) -> None:
    added = (
        "<script>document.title='owned'</script><img src='http://127.0.0.1:9/x.png'><p style='color:red'>x</p></body>"
    )
    file = tmp_path / "tampered.html"
    file.write_text(eight.read_text().replace("</body>", added))
    browser.show(*WIDE)
    browser.open(file)
    assert browser.evaluate("document.title") != "owned"
    said = " ".join(browser.complaints())
    assert all(rule in said for rule in ("script-src", "style-src", "img-src"))


def test_a_job_that_is_not_dflash_has_its_curve_and_says_what_is_left_out(browser: Chromium, tmp_path: Path) -> None:
    home = tmp_path / "state"
    with Ledger(home) as ledger:
        for step in (500, 1000, 1500):
            files = made_up.result_files(step, 3.0, made_up.SCRIPTS, prompts=4, seed=step)
            spec = json.loads(files["spec.json"])
            spec["rule"] = {"file": "score.json", "headline": "accuracy", "better": "higher"}
            files = {**files, "spec.json": json.dumps(spec).encode(), "score.json": b'{"accuracy": 0.%d}' % step}
            del files[made_up.RULE.file]
            made_up.add(ledger, files)
    file = written(home, tmp_path / "report.html")
    browser.show(*WIDE)
    browser.open(file)
    assert browser.complaints() == []
    assert text(browser, "#curve-title") == "accuracy over training" and text(browser, "#chosen") == "Step 1500"
    left_out = text(browser, "main")
    assert "no `positions`" in left_out and "no `ddtree`" in left_out and "result.items" in left_out
    browser.hover("svg.curve", across=0.4)
    browser.click("svg.curve", across=0.1)
    assert text(browser, "#chosen") == "Step 500" and browser.complaints() == []


def test_results_without_a_headline_are_a_table(browser: Chromium, tmp_path: Path) -> None:
    home = tmp_path / "state"
    with Ledger(home) as ledger:
        files = made_up.result_files(500, 3.0, made_up.SCRIPTS, prompts=4, seed=1)
        spec = json.loads(files["spec.json"])
        spec["rule"] = {"file": made_up.RULE.file}
        made_up.add(ledger, {**files, "spec.json": json.dumps(spec).encode()})
    file = written(home, tmp_path / "report.html")
    browser.show(*WIDE)
    browser.open(file)
    assert browser.complaints() == [] and text(browser, "#chosen") == "Step 500"
    assert browser.evaluate("document.querySelectorAll('#runs tbody tr').length") == 1
