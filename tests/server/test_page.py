"""The server's page in a real Chromium, with scripted answers in place of a model's.

`Page` opens any address, so that the same steps can be taken on a real server. These tests are
skipped if Chromium is not installed; Debian's package is `chromium`.
"""

import collections
import contextlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import chromium
import pytest
from paths import ROOT
from served import BEAM, exported, server

from t2t_repro.serving import exports, litert, saved_model

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="no Chromium on the PATH")

TEMPLATE = (ROOT / "t2t_repro/server/page.html").read_text(encoding="utf-8")
FIGURE = (ROOT / "t2t_repro/paper/attention_figure.html").read_text(encoding="utf-8")
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-src 'self' blob: ; base-uri 'none'; form-action 'none'; "
    "img-src data:"
)
SETTINGS = {
    "model": "ende",
    "description": "toy_ende, base: 2 layers of 4 heads",
    "format": "litert",
    "output": "text",
    "beam_size": 4,
    "attention": True,
    "needs_token": False,
    "max_characters": 1000,
}
HOSTILE = (
    '<img src=x onerror="window.harmed=1"></script><script>window.harmed=1</script><b>&amp;</b>'
)
TREE = "(TOP (S (NP (DT The) (NN cat)) (VP (VBZ knows) (SBAR (S (NP (PRP it))))) (. .)))"


class Answer:
    """What the site answers: as JSON, or as the text of a page."""

    def __init__(self, content, status=200, **headers):
        self.body = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.status, self.headers = status, headers


def wrong(status, text, **headers):
    return Answer({"error": text}, status, **headers)


def predicted(*translations, cut=False, beam=4):
    """Return an answer with these translations, best first, and the rest of the beam unfilled."""
    unfilled = beam - len(translations)
    scores = [-0.25 * (rank + 1) for rank in range(len(translations))] + [-1e9] * unfilled
    row = {"translations": [*translations, *[""] * unfilled], "scores": scores, "cut": cut}
    return Answer({"predictions": [row]})


def filled(template, name, content):
    return template.replace(name, json.dumps(content).replace("<", "\\u003c"))


def figure(sentence):
    """Return the page of `visualize` for a sentence whose pieces attend evenly to one another."""
    pieces = [[word, True] for word in sentence.split()]
    row = [1000 // len(pieces)] * len(pieces)
    weights = [[[row] * len(pieces)] * 2] * 2
    kind = {"name": "Encoder", "queries": pieces, "keys": pieces, "weights": weights}
    content = {"sentence": sentence, "translation": "", "model": "", "colours": ["#1f77b4"]}
    content["view"] = {"kind": "encoder", "layer": 1, "heads": [0, 1], "word": None}
    return filled(FIGURE, "ATTENTION_FIGURE", content | {"kinds": {"encoder": kind}})


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        page = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": POLICY}
        html = filled(TEMPLATE, "PAGE_SETTINGS", self.server.site.settings)
        known = {"/": Answer(html, **page), "/readyz": Answer("")}
        self.reply(known.get(self.path, wrong(404, "unknown")))

    def do_POST(self):
        if self.server.gone:  # a connection that the browser had opened in advance
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reply(self.server.site.answer(self.path, body, self.headers["Authorization"]))

    def reply(self, answer):
        with contextlib.suppress(ConnectionError):  # the page has cancelled the request
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(answer.body)

    def log_message(self, *_):
        pass


class Site:
    """The page and scripted answers on a port of its own, which can go away and come back."""

    def __init__(self):
        self.settings = dict(SETTINGS)
        self.answers = {}  # {sentence: the answers to its requests in turn; the last one stays}
        self.held = collections.defaultdict(threading.Event)  # {sentence: set when it may answer}
        self.figures = {}  # {sentence: the answer to POST /attention}
        self.token = None
        self.asked = []  # the sentences of all requests
        self.lock, self.open, self.most_open = threading.Lock(), 0, 0
        self.start()

    def start(self, port=0):
        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.site, self.server.gone = self, False
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}/"
        threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()

    def stop(self):
        self.server.gone = True
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path, body, authorization):
        if self.token and authorization != f"Bearer {self.token}":
            return wrong(401, "a token is needed")
        if path == "/attention":
            return self.figures.get(body["text"]) or Answer(figure(body["text"]))
        assert path == f"/v1/models/{self.settings['model']}:predict", path
        assert body.keys() == {"signature_name", "instances"}, body
        assert body["signature_name"] == "nbest", body
        (instance,) = body["instances"]
        return self.predict(**instance)

    def wait(self, requests):
        """Wait until this number of requests has come."""
        until = time.monotonic() + 20
        while len(self.asked) < requests:
            assert time.monotonic() < until, self.asked
            time.sleep(0.01)

    def predict(self, text):
        with self.lock:
            self.asked.append(text)
            self.open += 1
            self.most_open = max(self.most_open, self.open)
        if text in self.held:
            self.held[text].wait(20)
        with self.lock:
            self.open -= 1
        answers = self.answers.get(text, [predicted(f"[{text}]", f"({text})")])
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Page:
    """The steps of a user, and what a user sees."""

    def __init__(self, browser):
        self.browser = browser

    def open(self, url):
        self.browser.open(url)

    def write(self, text, where="text"):
        self.browser(f"document.getElementById('{where}').focus()")
        self.browser(f"document.getElementById('{where}').select()")
        self.browser.write(text)

    def translate(self, text):
        self.write(text)
        self.browser.click("#start")

    def finish(self, text):
        """Translate a text and wait until nothing is under way."""
        self.translate(text)
        self.browser.wait("document.querySelector('#sentences .more, #sentences .wrong')")
        waiting = "p => ['Translating…', 'Parsing…', 'Waiting'].includes(p.textContent)"
        self.browser.wait(f"![...document.querySelectorAll('li p')].some({waiting})")

    def all(self, selector, what="textContent"):
        return self.browser(
            f"[...document.querySelectorAll({json.dumps(selector)})].map(each => each.{what})"
        )

    def wait(self, selector, text):
        """Wait until the first element that matches has the text."""
        found = f"document.querySelector({json.dumps(selector)})?.textContent"
        self.browser.wait(f"{found} === {json.dumps(text)}")

    @property
    def places(self):
        """What stands beside each sentence: its translation, or what became of it."""
        found = ".translation, p.dim, .wrong span"
        return self.browser(
            "[...document.querySelectorAll('#sentences > li > div:first-of-type')]"
            f".map(each => each.querySelector('{found}').textContent)"
        )

    @property
    def status(self):
        return self.browser("document.getElementById('status').textContent")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = chromium.Page(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def site():
    site = Site()
    yield site
    for event in site.held.values():
        event.set()
    site.stop()


def faults(browser, url):
    """Return what the browser blames on the page, and requests to elsewhere."""
    browser("1")  # brings the events that are still under way
    for event in browser.events:
        method, about = event["method"], event["params"]
        if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            yield about
        elif method == "Log.entryAdded":
            if about["entry"]["source"] != "network" and about["entry"]["level"] != "info":
                yield about["entry"]
        elif method == "Network.requestWillBeSent" and not about["request"]["url"].startswith(url):
            yield about["request"]["url"]


@pytest.fixture
def page(browser, site):
    browser.size(1200, 800)
    browser.scheme("light")
    page = Page(browser)
    page.open(site.url)
    yield page
    assert browser("window.harmed") is None
    assert list(faults(browser, site.url)) == []
    browser("sessionStorage.clear()")


def test_the_file_has_one_place_for_settings_and_no_way_to_write_html():
    assert TEMPLATE.count("PAGE_SETTINGS") == 1
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", TEMPLATE)
    assert set(re.findall(r"https?://[^\"\s]+", TEMPLATE)) == {"http://www.w3.org/2000/svg"}


def test_a_text_is_translated(page):
    assert page.all("title, h1") == ["Translate: ende"] * 2
    assert page.all("#description") == ["toy_ende, base: 2 layers of 4 heads · LiteRT · beam 4"]
    page.finish("The house is old.")
    assert page.all(".source") == ["The house is old."]
    assert page.places == ["[The house is old.]"]
    assert page.status == "1 of 1 sentence translated"
    paint = "performance.getEntriesByType('paint').map(each => [each.name, each.startTime])"
    print(f"{len(TEMPLATE)} characters;", page.browser(paint))


TEXT = (
    'He said "Stop!" to Dr. J. Smith, e.g. at 3.5 metres. Why?  Yes…\n\n  no stop\nz. B. so. Ende'
)
SENTENCES = [
    *('He said "Stop!" to Dr. J. Smith, e.g. at 3.5 metres.', "Why?", "Yes…", "no stop"),
    *("z. B. so.", "Ende"),
]


@pytest.mark.parametrize("segmenter", [True, False])
def test_a_text_is_split_into_sentences(page, site, segmenter):
    if not segmenter:
        page.browser("delete Intl.Segmenter")
    page.finish(TEXT)
    assert page.all(".source") == SENTENCES
    assert sorted(site.asked) == sorted(SENTENCES)
    assert page.status == "6 of 6 sentences translated"


def test_nothing_is_sent_for_a_blank_text(page, site):
    page.translate(" \n ")
    assert page.browser("document.getElementById('results').hidden")
    assert site.asked == []


def test_answers_appear_in_place_as_they_come_and_four_are_under_way(page, site):
    sentences = [f"Number {word}." for word in ("one", "two", "three", "four", "five", "six")]
    gates = [site.held[sentence] for sentence in sentences]
    page.translate(" ".join(sentences))
    site.wait(4)
    assert page.places == ["Translating…"] * 4 + ["Waiting"] * 2
    assert page.status == "0 of 6 sentences translated"
    gates[2].set()
    page.wait("#status", "1 of 6 sentences translated")
    expected = ["Translating…", "Translating…", "[Number three.]", *["Translating…"] * 2, "Waiting"]
    assert page.places == expected
    assert page.all("li", "ariaBusy") == ["true", "true", "false", "true", "true", "false"]
    for gate in reversed(gates):
        gate.set()
    page.wait("#status", "6 of 6 sentences translated")
    assert page.places == [f"[{sentence}]" for sentence in sentences]
    assert (len(site.asked), site.most_open) == (6, 4)


def test_a_new_text_cancels_the_old_one(page, site):
    site.held["Old one."]
    page.translate("Old one. Old two.")
    page.wait("#status", "1 of 2 sentences translated")
    page.write("New.")
    page.browser.press("Enter", control=True)
    page.wait("#status", "1 of 1 sentence translated")
    site.held["Old one."].set()
    cancelled = [event for event in page.browser.events if event["params"].get("canceled")]
    assert [event["method"] for event in cancelled] == ["Network.loadingFailed"]
    assert page.places == ["[New.]"]


def test_the_n_best_are_opened_by_keyboard(page, site):
    site.answers["Good."] = [predicted("Gut.", "Gute.", "", cut=True)]
    site.answers["One."] = [predicted("Eins.")]
    page.finish("Good. One.")
    assert page.all("summary") == ["3 best translations", "Score"]
    assert page.all(".note") == ["Too long: its end was not translated."]
    page.browser("document.querySelector('summary').focus()")
    page.browser.press("Enter")
    assert page.all("details", "open") == [True, False]
    assert page.all("details[open] td", "innerText") == [
        *("-0.2500", "Gut.", "-0.5000", "Gute.", "-0.7500", "(empty)"),
    ]
    assert page.all("details[open] th", "scope") == ["col", "col"]
    page.browser.press(" ")
    assert page.all("details", "open") == [False, False]


def test_hostile_text_stays_text(page, site):
    site.settings["description"] = site.settings["model"] = HOSTILE
    site.settings["model"] = "ende"
    page.open(site.url)
    site.answers[HOSTILE] = [predicted(HOSTILE, HOSTILE)]
    site.answers["bad"] = [wrong(400, HOSTILE)]
    site.figures[HOSTILE] = wrong(400, HOSTILE)
    page.finish(f"{HOSTILE}\nbad")
    page.browser.click(".more button")
    page.browser.wait("document.querySelector('.attention .wrong')")
    texts = "#description, .source, .translation, td:last-child, .wrong span, .attention .wrong"
    found = page.all(texts)
    found.remove("bad")
    assert found.pop(0).startswith(HOSTILE)
    assert found == [HOSTILE] * 6
    assert page.all("img, b, main script, iframe") == []


@pytest.mark.parametrize("answer", ["", "<html>", "[]", '{"predictions": []}', "null"])
def test_an_answer_of_something_else_is_said_to_be_one(page, site, answer):
    site.answers["One."] = [Answer(answer), predicted("Eins.")]
    page.finish("One.")
    assert page.places == ["The server's answer is not one that this page understands."]
    page.browser.click(".wrong button")
    page.wait(".translation", "Eins.")


def test_a_busy_server_is_asked_again_after_the_time_it_names(page, site):
    busy = wrong(429, "queue full", Retry_After="1")
    site.answers["One."] = [busy, predicted("Eins.")]
    site.answers["Two."] = [wrong(429, "queue full", Retry_After="40")]
    page.translate("One. Two. Three.")
    page.wait("li:nth-child(1) p.dim", "The server is busy; trying again in 1 s")
    page.wait("li:nth-child(2) p.dim", "The server is busy; trying again in 39 s")
    page.wait("li:nth-child(1) .translation", "Eins.")
    assert page.status == "2 of 3 sentences translated"
    assert sorted(site.asked) == ["One.", "One.", "Three.", "Two."]


def test_a_server_that_stays_busy_is_asked_four_times(page, site):
    page.browser("window.setTimeout = (done) => queueMicrotask(done)")  # no pauses
    site.answers["One."] = [wrong(429, "queue full", Retry_After="2")]
    page.finish("One.")
    assert page.places == ["The server is busy."]
    assert site.asked == ["One."] * 4
    site.answers["One."] = [predicted("Eins.")]
    page.browser.click(".wrong button")
    page.wait(".translation", "Eins.")


def test_errors_of_the_server_are_shown_and_only_some_can_be_tried_again(page, site):
    errors = {400: "no text", 413: "too long", 503: "still loading", 504: "took too long"}
    for status, error in errors.items():
        site.answers[f"Error {status}."] = [wrong(status, error), predicted("Gut.")]
    page.finish(" ".join(site.answers))
    assert page.places == list(errors.values())
    assert page.status == "0 of 4 sentences translated, 4 failed"
    again = page.all(".wrong button", "ariaLabel")
    assert again == ["Try again, sentence 3", "Try again, sentence 4"]
    page.browser.click(".wrong button")
    page.wait("#status", "2 of 4 sentences translated, 2 failed")
    assert page.places == ["no text", "too long", "Gut.", "Gut."]


def test_four_are_under_way_also_after_trying_again(page, site):
    sentences = [f"Number {word}." for word in ("one", "two", "three", "four", "five", "six")]
    site.answers = {each: [wrong(503, "no"), predicted("Gut.")] for each in sentences}
    site.held["Slow."]
    page.translate(" ".join(["Slow.", *sentences]))
    page.wait("#status", "0 of 7 sentences translated, 6 failed")
    for sentence in sentences:
        site.held[sentence]
    page.browser.click(".wrong button")
    site.wait(7 + 3)
    assert page.places == ["Translating…"] * 4 + ["Waiting"] * 3
    for event in site.held.values():
        event.set()
    page.wait("#status", "7 of 7 sentences translated")
    assert site.most_open == 4


def test_a_sentence_over_the_limit_is_not_sent(page, site):
    page.finish("x" * 1001)
    assert page.places == ["This sentence has 1001 characters; the server takes 1000."]
    page.finish("😀" * 1000)  # as the server counts them, not in UTF-16
    assert page.places == [f"[{'😀' * 1000}]"]
    assert len(site.asked) == 1


def test_a_server_that_is_gone_and_comes_back(page, site):
    site.stop()
    page.finish("One. Two. Three. Four. Five.")
    gone = "The server does not answer. Is it still running?"
    assert page.places[0] == gone
    assert page.places[-1] == "Not sent"
    page.wait("#status", "0 of 5 sentences translated, 4 failed")
    site.start(site.port)
    page.wait("#status", "The server is back.")
    page.browser("document.querySelector('.wrong button').focus()")
    page.browser.press("Enter")
    page.wait("#status", "5 of 5 sentences translated")
    assert page.places == [f"[{word}.]" for word in ("One", "Two", "Three", "Four", "Five")]
    assert page.browser("document.activeElement.tagName") == "LI"  # the button is gone


def test_the_token(page, site):
    site.settings["needs_token"], site.token = True, "a-secret"
    assert page.browser("document.getElementById('token-row').hidden")
    page.open(site.url)
    assert page.browser("document.getElementById('token').type") == "password"
    page.finish("One. Two.")
    assert page.places == ["a token is needed"] * 2
    assert page.all("#token-wrong") == ["The server wants a token."]
    assert page.browser("document.activeElement.id") == "token"
    page.browser.write("another")
    page.browser.press("Enter")
    page.wait("#token-wrong", "The server does not accept this token.")
    page.write(" a-secret ", "token")
    page.browser.press("Enter")
    page.wait("#status", "2 of 2 sentences translated")
    assert page.all("#token-wrong") == [""]
    page.browser.click(".more button")
    page.browser.wait("document.querySelector('iframe')")
    page.open(site.url)
    page.finish("Three.")
    assert page.places == ["[Three.]"]


def test_a_token_is_asked_for_if_the_server_wants_one_after_all(page, site):
    site.token = "a-secret"
    page.finish("One.")
    page.browser.wait("document.activeElement.id === 'token'")
    page.browser.write("a-secret")
    page.browser.press("Enter")
    page.wait(".translation", "[One.]")


def test_copying_keeps_the_lines(page, site):
    site.answers["Bad."] = [wrong(400, "no")]
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    page.browser.send("Browser.grantPermissions", permissions=permissions, origin=site.url)
    copied = "[One.] [Two.]\n\n[Three.]\n"
    page.finish("One. Two.\n\nThree.\nBad.")
    page.browser.click("#copy")
    page.wait("#status", "Copied 3 translations")
    assert page.browser("navigator.clipboard.readText()") == copied
    page.browser("navigator.clipboard.writeText('')")
    # On a page by plain http from another machine there is no clipboard to write to.
    page.browser("navigator.clipboard.writeText = undefined")
    page.finish("One. Two.\n\nThree.\nBad.")
    page.browser.click("#copy")
    page.wait("#status", "Copied 3 translations")
    assert page.browser("navigator.clipboard.readText()") == copied
    assert page.browser("document.activeElement.id") == "copy"


def open_trees(page, site):
    site.settings |= {"output": "trees", "model": "parsing"}
    page.open(site.url)


def test_a_tree_is_drawn(page, site):
    site.answers["The cat . Knows it"] = [predicted(TREE)]
    open_trees(page, site)
    assert "separated by spaces" in page.all("label[for=text]")[0]
    page.finish(" The cat . Knows it \n\nbroken")
    assert page.all(".source") == ["The cat . Knows it", "broken"]
    assert page.places == [TREE, "[broken]"]
    assert page.status == "2 of 2 sentences parsed"
    assert page.all("svg", "getAttribute('aria-label')") == [TREE]
    labels = re.findall(r"[^\s()]+", TREE)
    assert page.all("svg text") == labels
    assert page.all("svg .word") == re.findall(r"([^\s()]+)\)", TREE)
    assert len(page.all("svg path")) == len(labels) - 1


def overlap(one, other):
    return all(
        one[low] < other[high] and other[low] < one[high]
        for low, high in (("left", "right"), ("top", "bottom"))
    )


def test_nothing_in_a_tree_overlaps_and_the_words_are_a_row(page, site):
    uneven = "(VERY-WIDE-LABEL (A quite-long) (B b)) (VERY-WIDE-LABEL (A a) (B quite-long))"
    wide = f"(TOP {uneven} (X (VERY-WIDE-LABEL (B b)) {TREE} (C a-rather-long-word)))"
    site.answers["x"] = [predicted(wide)]
    open_trees(page, site)
    page.finish("x")
    boxes = page.all("svg text", "getBoundingClientRect().toJSON()")
    overlapping = [
        (one, other)
        for index, one in enumerate(boxes)
        for other in boxes[:index]
        if overlap(one, other)
    ]
    assert overlapping == []
    (frame,) = page.all("svg", "getBoundingClientRect().toJSON()")
    assert all(frame["left"] <= box["left"] and box["right"] <= frame["right"] for box in boxes)
    assert all(frame["top"] <= box["top"] and box["bottom"] <= frame["bottom"] for box in boxes)
    words = page.all("svg .word", "getBoundingClientRect().toJSON()")
    assert len({box["top"] for box in words}) == 1
    assert [box["left"] for box in words] == sorted(box["left"] for box in words)


@pytest.mark.parametrize("text", ["(A (B b)", "(A a) (B b)", "A", ")", "(A a))", "()x"])
def test_what_is_no_tree_is_only_text(page, site, text):
    site.answers["x"] = [predicted(text)]
    open_trees(page, site)
    page.finish("x")
    assert page.places == [text]
    assert page.all("svg") == []


def test_the_attention_of_a_sentence_is_shown_and_hidden(page, site):
    site.figures["It fails."] = wrong(503, "no engine for it")
    page.finish(f"The {HOSTILE} old house\nIt fails.")
    buttons = page.all(".more button", "ariaLabel")
    assert buttons == ["Attention, sentence 1", "Attention, sentence 2"]
    page.browser.click(".more button")
    page.browser.wait("document.querySelector('iframe')")
    assert page.all("iframe", "title") == [f"Attention: The {HOSTILE} old house"]
    assert page.all("iframe", "getAttribute('sandbox')") == ["allow-scripts"]
    with page.browser.inside() as frame:
        frame.wait("document.querySelectorAll('#from li').length")
        pieces = frame("[...document.querySelectorAll('#from li')].map(each => each.textContent)")
        assert pieces == f"The {HOSTILE} old house".split()
        assert frame("origin") == "null"
        assert frame("window.harmed") is None
    page.browser.click(".more button")
    assert page.all(".attention", "hidden") == [True, True]
    page.browser.click("li:nth-child(2) .more button")
    page.wait("li:nth-child(2) .attention", "no engine for it")
    assert page.all(".more button", "ariaExpanded") == ["false", "true"]
    del site.figures["It fails."]
    page.browser.click("li:nth-child(2) .more button")
    page.browser.wait("document.querySelector('li:nth-child(2) iframe')")


def test_no_attention_where_the_server_has_none(page, site):
    site.settings["attention"] = False
    page.open(site.url)
    page.finish("One.")
    assert page.all(".more button") == []


def show_everything(page, site):
    """Bring the page into a state with all that it can show, and return the waiting sentence."""
    long = "Donaudampfschifffahrt" * 12
    site.settings |= {"output": "trees", "needs_token": True}
    page.open(site.url)
    wide = predicted(f"(TOP (S {TREE} {TREE} (N {long})))", TREE, cut=True)
    site.answers = {"x": [wide], "bad": [wrong(503, long)]}
    site.held["slow"]
    page.translate(f"x\nbad\n{long}\nslow")
    page.wait("#status", "2 of 4 sentences parsed, 1 failed")
    page.browser.click("summary")
    page.browser.click(".more button")
    page.browser.wait("document.querySelector('iframe')")


def test_a_phone_needs_no_scrolling_sideways(page, site):
    page.browser.size(320, 640)
    show_everything(page, site)
    assert page.browser("document.documentElement.scrollWidth") <= 320
    scrolls = "scrollWidth > document.querySelector('.tree').clientWidth"
    assert page.all(".tree", scrolls) == [True]
    page.browser.click("#text")
    reach = "getBoundingClientRect().right <= 320"
    assert all(page.all("button, input, textarea, summary, td, th, iframe, p", reach))


def luminance(colour):
    """Return the relative luminance of [r, g, b], as WCAG 2 defines it."""
    parts = [part / 255 for part in colour]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# [text, its colour, the colour behind it] of all elements that have text of their own.
COLOURS = r"""
(() => {
  const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
  const behind = (each) => {
    const colour = parts(getComputedStyle(each).backgroundColor);
    return colour[3] === 0 ? behind(each.parentElement) : colour;
  };
  const own = (each) => [...each.childNodes].some(
    (node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  return [...document.querySelectorAll("body *, textarea, input")]
    .filter((each) => each.checkVisibility() && (own(each) || each.matches("input, textarea")))
    .map((each) => {
      const style = getComputedStyle(each);
      const colour = each instanceof SVGElement ? style.fill : style.color;
      return [each.textContent || each.id, parts(colour), behind(each)];
    });
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_contrast(page, site, scheme):
    page.browser.scheme(scheme)
    show_everything(page, site)
    found = page.browser(COLOURS)
    assert len(found) > 30
    for text, *colours in found:
        dark, light = sorted(luminance(colour[:3]) for colour in colours)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, text
    background = page.browser("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}[scheme]


def test_nothing_turns_for_those_who_want_no_motion(page, site):
    site.held["One."]
    page.translate("One.")
    turning = "getComputedStyle(document.querySelector('.working'), '::before').animationName"
    page.browser.wait("document.querySelector('.working')")
    assert page.browser(turning) == "turn"
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    page.browser.send("Emulation.setEmulatedMedia", features=features)
    assert page.browser(turning) == "none"


def test_the_keyboard_reaches_everything(page, site):
    show_everything(page, site)
    page.browser("document.querySelector('iframe').remove()")
    page.browser("document.getElementById('token').focus()")
    expected = [
        *("token", "text", "start", "copy", "Tree", "2 best trees", "Attention, sentence 1"),
        *("Try again, sentence 2", "3 best trees", "Attention, sentence 3"),
    ]
    site.held["slow"].set()
    name = "{ const each = document.activeElement; each.id || each.ariaLabel || each.textContent }"
    order = []
    for _ in expected:
        order.append(page.browser(name))
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.browser(outline) == "solid", order
        page.browser.press("Tab")
    assert order == [each.replace("3 best trees", "2 best trees") for each in expected]
    page.browser("document.getElementById('copy').focus()")
    page.browser.press("Tab", shift=True)
    assert page.browser(name) == "start"


def test_screen_readers_get_names_headings_and_news(page, site):
    show_everything(page, site)
    nodes = page.browser.send("Accessibility.getFullAXTree")["nodes"]
    names = collections.defaultdict(list)
    for node in nodes:
        if not node["ignored"]:
            names[node["role"]["value"]].append(node.get("name", {}).get("value", ""))
    assert all(names["button"] + names["textbox"] + names["DisclosureTriangle"])
    assert all(names["Iframe"] + names["image"])
    assert len(names["textbox"]) == 2
    assert {"Parse", "Copy", "Attention, sentence 1", "Try again, sentence 2"} <= set(
        names["button"]
    )
    assert names["heading"] == ["Parse: ende", "Trees"]
    assert len(names["main"]) == 1
    assert len(names["listitem"]) == 4
    assert names["columnheader"] == ["Score", "Tree"]
    assert page.browser("document.documentElement.lang") == "en"
    assert page.browser("document.getElementById('status').ariaLive") == "polite"


@pytest.mark.slow
@pytest.mark.parametrize("module", [litert, saved_model], ids=lambda module: module.__name__)
def test_the_real_server(browser, once, tiny_run, module):
    """From the keyboard to the model and back; only a SavedModel has attention to show."""
    pytest.importorskip("ai_edge_litert")
    export = exported(once, tiny_run, module)
    sentences = ["The house is old.", "We know that the king is old."]
    beams = exports.open_export(export).nbest(sentences, BEAM)
    page = Page(browser)
    with server(export, "--model_name=ende", "--timeout_s=300") as running:
        page.open(f"{running.address}/")
        page.finish(" ".join(sentences))
        assert page.all(".source") == sentences
        assert page.places == [beam[0].translation for beam in beams]
        page.browser.click("summary")
        rows = page.all("li:first-child tbody tr td:nth-child(2)")
        assert rows == [line.translation for line in beams[0]]
        buttons = page.all(".more button", "ariaLabel")
        if module is litert:
            assert buttons == []
        else:
            page.browser.click(".more button")
            page.browser.wait("document.querySelector('iframe')")
            with page.browser.inside() as frame:
                frame.wait("document.querySelectorAll('#from li').length")
                assert frame("document.querySelector('h1').textContent") == sentences[0]
        assert list(faults(browser, running.address)) == []
