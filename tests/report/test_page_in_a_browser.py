"""The page in a real browser: charts are drawn, nothing is asked for, nothing from data runs, it fits a phone.

Runs where Debian's `chromium` and `chromium-driver` (or another Chrome with its driver) and selenium are installed.
"""

import dataclasses
import json
import shutil

import pytest
from made_up import HOSTILE, made_up

from peftlab.report import render

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
VISIBLE = "return [...document.querySelectorAll('svg')].filter(e => e.getBoundingClientRect().width > 100).length"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if BROWSER is None or DRIVER is None:
        pytest.skip("no Chromium with its chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    profile = tmp_path_factory.mktemp("profile")
    flags = "headless no-sandbox disable-gpu disable-background-networking no-first-run disable-dev-shm-usage"
    for flag in (*flags.split(), f"user-data-dir={profile}", "window-size=1280,900"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser, tmp_path):
    """The page, just opened on a wide screen."""
    attack = made_up()
    runs = [dataclasses.replace(r, method="head" + HOSTILE) if r.method == "head" else r for r in attack.runs]
    (tmp_path / "report.html").write_text(render(dataclasses.replace(attack, runs=runs)), encoding="utf-8")
    browser.get_log("performance"), browser.get_log("browser")
    screen(browser, 1280)
    browser.get((tmp_path / "report.html").as_uri())
    return browser


def screen(browser, width, scheme="light"):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def test_charts_are_drawn(opened):
    assert opened.execute_script(VISIBLE) >= 3 + 2 + 1 + 16
    circles = "return [...document.querySelectorAll('.of-cost-parameters .wide .point circle')].map(e => %s)"
    tops = opened.execute_script(circles % "e.getBoundingClientRect().top")
    assert len(tops) == 3 * 8
    assert len(set(tops)) > 12
    fills = opened.execute_script(circles % "getComputedStyle(e).fill")
    assert len(set(fills)) >= 3  # the chosen one, those on the front, the rest


def test_nothing_is_asked_for_and_nothing_is_complained_of(opened):
    sent = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"]
    assert any(url.endswith("report.html") for url in urls)
    assert [url for url in urls if not url.startswith(("file:", "data:"))] == []
    assert sum(url.startswith("file:") for url in urls) == 1
    assert opened.get_log("browser") == []


def test_an_injected_label_stays_text(opened):
    assert HOSTILE in opened.find_element("tag name", "main").text
    assert opened.execute_script("return document.querySelectorAll('script, img, [onerror]').length") == 0


def test_the_switch_changes_the_axis(opened):
    shown = "return getComputedStyle(document.querySelector('.of-cost-%s')).display !== 'none'"
    keys = ("parameters", "memory", "time", "bytes")
    assert [opened.execute_script(shown % key) for key in keys] == [True, False, False, False]
    opened.find_element("css selector", "label[for=cost-time]").click()
    assert [opened.execute_script(shown % key) for key in keys] == [False, False, True, False]
    assert "time of a run" in opened.find_element("css selector", ".of-cost-time").text


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_the_screen(opened, width):
    screen(opened, width)
    assert opened.execute_script("return document.documentElement.scrollWidth") <= width
    small = "return Math.min(...[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect())"
    heights = opened.execute_script(f"{small}.filter(r => r.height > 0).map(r => r.height))")
    assert heights >= 10  # text that can be read


def test_a_dark_screen_gets_a_dark_page(opened):
    def lightness():
        paper, ink = opened.execute_script(
            "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
        )
        return [sum(map(int, color[4:-1].split(","))) for color in (paper, ink)]

    paper, ink = lightness()
    assert paper > ink
    screen(opened, 1280, "dark")
    paper, ink = lightness()
    assert paper < ink
