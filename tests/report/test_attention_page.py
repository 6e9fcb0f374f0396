"""The page of attention: every map is there and right, text stays text; in a browser it is drawn and asks nothing."""

import json
import struct
import time
import zlib
from base64 import b64decode

import pytest
import test_page_in_a_browser
import torch
from made_up import HOSTILE
from test_page_in_a_browser import screen
from test_report import Elements

from peftlab.errors import UserError
from peftlab.report.attention import SHADES, page, write
from peftlab.report.page import POLICY
from peftlab.train.looking import Maps, Seen

browser = test_page_in_a_browser.browser


def maps(layers=2, heads=3, rows=5, columns=5, virtual=0, title="to itself") -> Maps:
    """Attention as diffuse and as sharp as it comes, the same each time."""
    draw = torch.Generator().manual_seed(0)
    scores = 2 * torch.randn(layers, heads, rows, virtual + columns, generator=draw)
    tokens = [f"token{i}" for i in range(columns)]
    return Maps(title, "about", [f"row{i}" for i in range(rows)], tokens, list(scores.softmax(-1)))


def labelled(*kinds: Maps, text="a text", label="good") -> Seen:
    return Seen({"text": text, "label": label, "probabilities": {label: 0.75}, "logits": [1.0]}, list(kinds))


def styles(text: str, class_: str) -> list[str]:
    """The styles of the shades inside elements of a class, as they stand on the page."""
    [first, *rest] = text.split(f'class="{class_}"')
    assert first
    return [part.split('style="', 1)[1].split('"', 1)[0] for part in rest]


def alpha(style: str) -> torch.Tensor:
    """The alpha of a PNG of grey and alpha, by the format's own rules."""
    png = b64decode(style.split("base64,")[1].split(")")[0])
    place, chunks = 8, {}
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        kind, data = png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        assert struct.unpack(">I", png[place + 8 + length : place + 12 + length])[0] == zlib.crc32(kind + data)
        chunks[kind] = data
        place += 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    lines = torch.tensor(list(zlib.decompress(chunks[b"IDAT"]))).view(height, 1 + 2 * width)
    assert (lines[:, 0] == 0).all()
    return lines[:, 2::2] / 255


def test_every_layer_and_head_is_there_with_its_weights():
    kind = maps(layers=2, heads=3, rows=4, columns=6)
    text = page([labelled(kind)], "a run")
    elements = Elements(text)
    names = [value for name, key, value in elements.attributes if (name, key) == ("div", "title")]
    for layer in (1, 2):
        for head in (1, 2, 3):
            assert names.count(f"layer {layer}, head {head}") == 1
    expected = [kind.layers[-1].mean(0), *(weights for layer in kind.layers for weights in layer)]
    found = [alpha(style) for style in styles(text, "shade")]
    assert len(found) == len(expected)
    for shades, weights in zip(found, expected, strict=True):
        torch.testing.assert_close(shades, weights.sqrt(), rtol=0, atol=0.5 / SHADES + 1 / 255)
    said = " ".join(elements.text)
    assert "the stronger the colour" in said.split("a text")[0]
    for token in (*kind.rows, *kind.columns, "good, 75.0", "mean of 3 heads in layer 2, the last"):
        assert token in said


def test_virtual_columns_come_first_and_tooltips_name_the_strongest():
    kind = maps(virtual=2, columns=3)
    text = page([labelled(kind)], "a run")
    said = Elements(text).text
    place = said.index("virtual 1")
    assert said[place : place + 5] == ["virtual 1", "virtual 2", "token0", "token1", "token2"]
    assert "virtual tokens, which the method adds" in " ".join(said)
    row = kind.layers[-1].mean(0)[0].tolist()
    best = max(range(5), key=lambda i: row[i])
    assert f"row0 → {['virtual 1', 'virtual 2', *kind.columns][best]} {row[best]:.2f}, " in text
    assert "virtual" not in " ".join(Elements(page([labelled(maps())], "a run")).text)


def test_one_head_is_shown_once_and_no_text_has_no_map():
    one = Seen({"text": "a b", "translation": "c"}, [maps(layers=1, heads=1, rows=2, title="decoder to source")])
    none = Seen({"text": " ", "translation": ""}, [])
    text = page([one, none], "a run")
    assert len(styles(text, "shade")) == 1
    assert "one head in the only layer" in text
    assert "(an empty text)" in text
    assert "(nothing)" in text


def test_no_text_from_data_becomes_markup():
    kind = maps()
    hostile = Maps(HOSTILE, HOSTILE, [HOSTILE] * 5, [f'"{HOSTILE}'] * 5, kind.layers)
    text = page([labelled(hostile, text=(HOSTILE, HOSTILE), label=HOSTILE)], HOSTILE)
    elements = Elements(text)
    assert not {"script", "img", "iframe", "object"} & set(elements.names)
    assert not [attribute for attribute in elements.attributes if attribute[1].startswith("on")]
    assert HOSTILE in "".join(elements.text)
    assert ("meta", "content", POLICY) in elements.attributes
    assert {value for _, key, value in elements.attributes if key in ("href", "src")} == {"data:,"}
    assert text.count("url(") == text.count("url(data:image/png;base64,") == 1 + 6


def test_a_hundred_tokens_in_72_heads_are_light_and_five_hundred_not_much_heavier():
    assert len(page([labelled(maps(6, 12, 100, 100))], "a run")) < 1_000_000
    assert len(page([labelled(maps(6, 12, 500, 500))], "a run")) < 2_000_000


def test_a_page_is_not_written_over_a_folder(tmp_path):
    with pytest.raises(UserError, match=r"is a folder: give a file to write, such as .*page.html"):
        write([], "a run", tmp_path)
    write([labelled(maps())], "a run", tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").read_text(encoding="utf-8") == page([labelled(maps())], "a run")


def opened(browser, folder, *seen):
    """The page of these, just opened on a wide screen, and the seconds that took."""
    write(seen, "a run", folder / "attention.html")
    browser.get("about:blank")  # what a browser itself asks for when it starts is not the page's
    browser.get_log("performance"), browser.get_log("browser")
    screen(browser, 1280)
    start = time.perf_counter()
    browser.get((folder / "attention.html").as_uri())
    return time.perf_counter() - start


PIXELS = """
const [style, done] = arguments, image = new Image();
image.onload = () => {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [image.width, image.height];
  const paper = canvas.getContext('2d');
  paper.drawImage(image, 0, 0);
  done([...paper.getImageData(0, 0, image.width, image.height).data].filter((_, i) => i % 4 == 3));
};
image.onerror = () => done(null);
image.src = style.match(/url\\("?(data:[^")]*)/)[1];
"""


def test_in_a_browser_maps_are_drawn_and_nothing_is_asked_for(browser, tmp_path):
    kind = maps(rows=4, columns=6)
    opened(browser, tmp_path, labelled(kind, text=HOSTILE))
    assert browser.get_log("browser") == []
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"]
    assert [url.split(":")[0] for url in urls if not url.startswith("data:")] == ["file"]
    assert browser.execute_script("return document.querySelectorAll('script, img, [onerror]').length") == 0
    assert HOSTILE in browser.find_element("tag name", "h2").text
    sizes = "return [...document.querySelectorAll('.shade')].map(e => e.getBoundingClientRect().width)"
    assert min(browser.execute_script(sizes)) > 40
    masks = browser.execute_script(
        "return [...document.querySelectorAll('.shade')].map(e => getComputedStyle(e).maskImage)"
    )
    found = torch.tensor(browser.execute_async_script(PIXELS, masks[0])).view(4, 6) / 255
    torch.testing.assert_close(found, kind.layers[-1].mean(0).sqrt(), rtol=0, atol=0.5 / SHADES + 1 / 255)


def test_in_a_browser_a_label_stands_at_its_row_and_its_column(browser, tmp_path):
    opened(browser, tmp_path, labelled(maps(rows=4, columns=6)))
    middles = "return [...document.querySelectorAll('%s')].map(e => e.getBoundingClientRect()).map(r => %s)"
    rows = browser.execute_script(middles % (".rows span", "r.top + r.height / 2"))
    assert rows == browser.execute_script(middles % (".field .row", "r.top + r.height / 2"))
    [[left, width]] = browser.execute_script(middles % (".field .shade", "[r.left, r.width]"))
    columns = browser.execute_script(middles % (".columns span", "r.left + r.width / 2"))
    assert columns == pytest.approx([left + width * (i + 0.5) / 6 for i in range(6)], abs=0.6)


@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser_a_long_text_scrolls_beneath_its_labels(browser, tmp_path, width):
    seconds = opened(browser, tmp_path, labelled(maps(6, 12, 100, 100), text="word " * 100))
    assert seconds < 5
    screen(browser, width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    ends = "const r = document.querySelector('.rows').getBoundingClientRect(); return [r.left, r.right]"
    before = browser.execute_script(ends)
    moved = "const e = document.querySelector('.large'); e.scrollLeft = 200; return e.scrollLeft"
    assert browser.execute_script(moved) == 200
    assert browser.execute_script(ends) == before


def test_in_a_browser_a_dark_screen_gets_other_colours(browser, tmp_path):
    opened(browser, tmp_path, labelled(maps()))
    colour = "return getComputedStyle(document.querySelector('.shade')).backgroundColor"
    light = browser.execute_script(colour)
    screen(browser, 1280, "dark")
    assert browser.execute_script(colour) != light
