"""The attention page in a real Chromium: mouse, keyboard, dark mode, no requests to outside.

These tests are skipped if Chromium is not installed; Debian's package is `chromium`.
"""

import io
import re

import chromium
import matplotlib.image
import numpy as np
import pytest

from t2t_repro.paper.attention_figure import AttentionFigure, Kind, Piece

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="no Chromium on the PATH")

SOURCE = ["the", "dog", "</script>", "<b>bold</b>", "<EOS>"]
TARGET = ["der", "Hund", "<EOS>"]
LAYERS, HEADS = 3, 4


def weights(queries, keys):
    """Head h of layer l attends to key q + l + h (mod keys) with 0.9, and evenly to the rest."""
    maps = np.full((LAYERS, HEADS, queries, keys), 0.1 / (keys - 1))
    for layer, head, query in np.ndindex(maps.shape[:3]):
        maps[layer, head, query, (query + layer + head) % keys] = 0.9
    return maps


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    source, target = ([Piece(text, True) for text in texts] for texts in (SOURCE, TARGET))
    kinds = {
        "encoder": Kind("Encoder self-attention", source, source, weights(5, 5)),
        "decoder": Kind("Decoder self-attention", target, target, weights(3, 3)),
        "cross": Kind("Encoder-decoder attention", target, source, weights(3, 5)),
    }
    figure = AttentionFigure("the dog </script>", "der Hund", kinds)
    path = tmp_path_factory.mktemp("page") / "figure.html"
    path.write_text(figure.html(figure.view(layer=2), "a model"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    page = chromium.Page(tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


@pytest.fixture
def page(browser, path):
    browser.size(1200, 800)
    browser.scheme("light")
    browser.open(path)
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    yield browser
    failures = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
    assert [event for event in browser.events if event["method"] in failures] == []


def items(page, side):
    return page(f"[...document.querySelectorAll('#{side} li')].map(item => item.textContent)")


def selected(page):
    """Return (side, index) of the only piece shown, or None."""
    found = page(
        "[...document.querySelectorAll('[aria-selected=true]')].map(item => "
        "[item.closest('section').id, [...item.parentElement.children].indexOf(item)])"
    )
    return tuple(*found) if found else None


def most(page):
    """Return {head: (the piece it attends to most, the weight)} from the page's list."""
    lines = page("[...document.querySelectorAll('#readout li')].map(item => item.textContent)")
    found = [re.match(r"(\d+)\s+(\S+) (\d\.\d\d)", line) for line in lines]
    return {int(match[1]): (match[2], float(match[3])) for match in found if match}


def looked_at(query, layer, heads=range(HEADS), keys=SOURCE):
    return {head + 1: (keys[(query + layer + head) % len(keys)], 0.9) for head in heads}


def picture(page):
    image = matplotlib.image.imread(io.BytesIO(page.screenshot()), format="png")
    return image[:, :, :3]


def differ(one, other):
    """Return the number of pixels that differ."""
    return int((np.abs(one - other) > 0.02).any(-1).sum())


def test_the_sentence_is_text_whatever_it_holds(page):
    assert items(page, "from") == SOURCE
    assert items(page, "to") == SOURCE
    assert page("document.title") == "Attention: the dog </script>"
    assert page("document.querySelector('h1').textContent") == "the dog </script>"
    assert page("document.querySelectorAll('b').length") == 0
    assert page("document.querySelector('#translation').textContent") == "der Hund"
    assert page("document.querySelector('#model').textContent") == "a model"


def test_nothing_is_asked_for_from_outside(page):
    sent = [event for event in page.events if event["method"] == "Network.requestWillBeSent"]
    urls = {event["params"]["request"]["url"] for event in sent}
    assert [url for url in urls if not url.startswith("file:")] == []
    assert page("performance.getEntriesByType('resource').length") == 0


def test_the_mouse_shows_a_word_and_leaving_it_shows_all_again(page):
    before = picture(page)
    assert selected(page) is None
    page.point("#from li:nth-child(2)")
    assert selected(page) == ("from", 1)
    assert most(page) == looked_at(1, layer=1)
    assert differ(before, picture(page)) > 1000
    page.point("h1")
    assert selected(page) is None
    assert differ(before, picture(page)) == 0


def test_a_key_shows_who_looks_at_it(page):
    page.point("#to li:nth-child(4)")
    assert selected(page) == ("to", 3)
    # Key 3 is query + 1 + head (mod 5).
    assert most(page) == {head + 1: (SOURCE[(3 - 1 - head) % 5], 0.9) for head in range(HEADS)}


def test_layers_and_kinds_are_switched(page):
    choose = (
        "{{ const list = document.querySelector('{}'); list.value = '{}'; "
        "list.dispatchEvent(new Event('change')); }}"
    )
    page.point("#from li:nth-child(1)")
    page(choose.format("#layer", 2))
    page.point("h1")
    page.point("#from li:nth-child(1)")
    assert most(page) == looked_at(0, layer=2)
    for kind, queries, keys in (("decoder", TARGET, TARGET), ("cross", TARGET, SOURCE)):
        page.point("h1")
        page(choose.format("#kind", kind))
        assert (items(page, "from"), items(page, "to")) == (queries, keys)
        page.point("#from li:nth-child(3)")
        expected = looked_at(2, 2, keys=keys)
        assert most(page) == expected


def test_heads_are_switched(page):
    page.point("#from li:nth-child(1)")
    page.click("#head1")
    page.point("#from li:nth-child(1)")
    assert page("document.querySelector('#head1').ariaPressed") == "false"
    assert most(page) == looked_at(0, 1, heads=[0, 2, 3])
    page.click("#heads button:last-child")  # none
    page.point("#from li:nth-child(1)")
    assert most(page) == {}
    page.click("#head2")
    page.point("#from li:nth-child(1)")
    assert most(page) == looked_at(0, 1, heads=[2])
    page.click("#heads button:nth-last-child(2)")  # all
    page.point("#from li:nth-child(1)")
    assert most(page) == looked_at(0, 1)


def test_everything_is_reached_by_keyboard(page):
    order = []
    for _ in range(2 + HEADS + 2 + 2):
        page.press("Tab")
        order.append(page("document.activeElement.id || document.activeElement.textContent"))
    heads = [f"head{head}" for head in range(HEADS)]
    assert order == ["kind", "layer", *heads, "All", "None", "the", "the"]
    assert selected(page) == ("to", 0)
    page.press("ArrowLeft", "ArrowDown", "ArrowDown")
    assert selected(page) == ("from", 2)
    assert most(page) == looked_at(2, layer=1)
    assert page("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press("End")
    assert selected(page) == ("from", 4)
    page.press("ArrowDown", "ArrowRight")
    assert selected(page) == ("to", 4)
    page.press("Home", "ArrowUp")
    assert selected(page) == ("to", 0)
    page.press("Escape")
    assert selected(page) is None
    page("document.querySelector('#head0').focus()")
    page.press(" ")
    assert page("document.querySelector('#head0').ariaPressed") == "false"


def luminance(colour):
    """Return the relative luminance of "rgb(r, g, b)", as WCAG 2 defines it."""
    channels = np.array([int(part) for part in re.findall(r"\d+", colour)[:3]]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable(page, scheme):
    """All text has a contrast of at least 7 or 5.5; WCAG requires 4.5."""
    page.scheme(scheme)
    style = "getComputedStyle(document.querySelector('{}')).{}"
    background = luminance(page(style.format("body", "backgroundColor")))
    assert (background < 0.05) == (scheme == "dark")
    for selector, least in (("#from li", 7), ("h1", 7), ("#about", 5.5), ("footer", 5.5)):
        light, dark = sorted([luminance(page(style.format(selector, "color"))), background])[::-1]
        assert (light + 0.05) / (dark + 0.05) >= least, selector
    light = picture(page)
    page.scheme("dark" if scheme == "light" else "light")
    assert differ(light, picture(page)) > 0.9 * light[:, :, 0].size


@pytest.mark.parametrize("width", [1200, 420])
def test_nothing_is_wider_than_the_window(page, width):
    page.size(width, 800)
    assert page("document.documentElement.scrollWidth") <= width
