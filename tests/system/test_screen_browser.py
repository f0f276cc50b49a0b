"""The mail page in Chromium: attacks, reloads, keys, sizes, accessibility. Skipped where there is no Chromium."""

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from screens import Served, served
from support import Box, letter, tree

playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: the page is not tested in a browser")
pytest.importorskip("starlette")

CHROMIUM = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium (apt-get install chromium): not tested in a browser"),
    pytest.mark.xdist_group("browser"),
]
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
WAIT = 10_000
LATER = "2026-03-05T10:00:00Z"
ARTEFACTS = Path(os.environ.get("POSTMASTER_ARTEFACTS", Path(__file__).parents[2] / ".artefacts"))

ATTACKS = [
    "<script>window.owned=1</script>",
    "<img src=x onerror=window.owned=1>",
    "[click](javascript:window.owned=1)",
    "[click](JaVaScRiPt&#58;window.owned=1)",
    "[click](data:text/html,<script>opener.owned=1</script>)",
    "[click](file:///etc/passwd)",
    "![pixel](http://evil.example/pixel.png)",
    "![x](/static/icon.svg)",
    '<a href="http://evil.example" ping="http://evil.example/p">x</a>',
    "<svg onload=window.owned=1>",
    "<iframe srcdoc='<script>parent.owned=1</script>'></iframe>",
    "<form action=http://evil.example><button>Log in</button></form>",
    "<style>body{display:none}</style>",
    "<meta http-equiv=refresh content='0;url=http://evil.example'>",
    "<base href=http://evil.example>",
    '<div hx-get="http://evil.example" hx-trigger="load" hx-on:load="window.owned=1">x</div>',
    "[a]: javascript:window.owned=1\n\n[a]",
    "<http://evil.example/auto>",
    "{{ 7*7 }} {% raw %}",
    "# Mailboxes\n\n- forged",
    "\u202egnp.exe \u2066hidden\u2069 \u200b \x1b[31m \x07 \x00 end",
]
TRAPS = """() => {
    const traps = '<img src="http://evil.example/a"><b onclick="owned=1" id="trap">x</b>';
    document.body.insertAdjacentHTML('beforeend', traps);
    const script = document.createElement('script');
    script.textContent = 'window.owned = 1';
    document.body.append(script);
}"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A Chromium."""
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


class Tab:
    """A tab, with what it complained of and where it went outside the page."""

    def __init__(self, browser: Any, page: Served, **options: Any) -> None:
        self.context = browser.new_context(viewport=DESKTOP, **options)
        self.tab = self.context.new_page()
        self.tab.set_default_timeout(WAIT)
        self.base = page.base
        self.outside: list[str] = []
        self.errors: list[str] = []
        self.dialogs: list[str] = []
        self.tab.on("request", lambda one: None if one.url.startswith(page.base) else self.outside.append(one.url))
        self.tab.on("pageerror", lambda fault: self.errors.append(str(fault)))
        self.tab.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.tab.on("dialog", lambda one: (self.dialogs.append(one.message), one.dismiss()))

    def open(self, path: str) -> Any:
        """Open an address of the page."""
        self.tab.goto(self.base + path)
        return self.tab

    def calm(self) -> None:
        """Assert that nothing went wrong, and nothing went elsewhere."""
        assert self.outside == []
        assert self.dialogs == []
        assert self.errors == []


@pytest.fixture
def office(lab: Box) -> Box:
    """An office with two flows, the longer of 80 messages, and a dead letter."""
    for number in range(80):
        lab.drop(
            f"{number}.md", letter(subject=f"job {number:02d}", body=f"Job **{number}**.\n", correlation_id="long")
        )
    lab.drop("x.md", letter(subject="hello", body="# Hello\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quoted\n"))
    lab.drop("y.md", letter(to="nobody@lab.internal", subject="lost"))
    lab.run("route")
    return lab


@pytest.fixture
def page(office: Box) -> Iterator[Served]:
    """The page of that office."""
    with served(office) as there:
        yield there


@pytest.fixture
def tab(browser: Any, page: Served) -> Iterator[Tab]:
    """A tab at desktop size."""
    made = Tab(browser, page)
    yield made
    made.context.close()


def newest(office: Box, agent: str = "lab.builder") -> str:
    """Return the address of the newest message of an agent."""
    return f"/box/{agent}/{max(mail.name for mail in office.unread(agent))}"


def test_attacks(lab: Box, browser: Any) -> None:
    """A message runs nothing, loads nothing from elsewhere, forges nothing of the page, in body and header alike."""
    for number, attack in enumerate(ATTACKS):
        subject = "".join(
            f"\\x{ord(c):02x}" if ord(c) < 32 else c for c in attack.replace("\\", "\\\\").replace('"', '\\"')
        )
        lab.drop(f"{number}.md", letter(subject=f'"{subject}"', body=attack + "\n", correlation_id=f"attack-{number}"))
        lab.drop(f"raw-{number}.md", letter(to="nobody@lab.internal", subject=f'"{subject}"', body=attack + "\n"))
    lab.run("route")
    mails = lab.unread("lab.builder")
    assert len(mails) == len(ATTACKS)
    with served(lab) as page:
        tab = Tab(browser, page)
        paths = ["/box/lab.builder", "/dead", "/flows", "/map", "/flow?name=run-1"]
        paths += [f"/box/lab.builder/{mail.name}" for mail in mails] + [f"/dead/{name}" for name in lab.dead()[:5]]
        for path in paths:
            opened = tab.open(path)
            opened.wait_for_load_state("networkidle") if "flow" in path or path == "/map" else None
            assert opened.evaluate("window.owned") is None, path
            assert opened.locator("article img, article iframe, article form, article svg, article style").count() == 0
            assert opened.locator("#pane-main").is_visible(), path
            assert opened.locator("#pane-boxes h2").all_inner_texts() == ["Mailboxes", "Office"]
            text = opened.evaluate("document.body.innerText")
            assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\x1b\x07]", text), path
            for link in opened.locator(".body a").all():
                assert re.match("https?:|mailto:", link.get_attribute("href") or "https:")
                assert "noopener" in link.get_attribute("rel")
        tab.calm()
        tab.context.close()


def test_policy_stops_what_escaping_would_miss(tab: Tab) -> None:
    """Even a script that got into the page would not run, and nothing could be loaded or sent elsewhere."""
    opened = tab.open("/")
    opened.evaluate(TRAPS)
    opened.evaluate("document.getElementById('trap').click()")
    assert opened.evaluate("window.owned") is None
    assert opened.evaluate("fetch('http://evil.example/').then(() => 'sent', () => 'stopped')") == "stopped"
    assert any("Content Security Policy" in error for error in tab.errors)


def test_rebinding_in_a_browser(browser: Any, page: Served) -> None:
    """A name that somebody points to this machine (DNS rebinding) shows nothing."""
    rules = ["--host-resolver-rules=MAP evil.example 127.0.0.1", "--no-sandbox"]
    launched = browser.browser_type.launch(executable_path=CHROMIUM, args=rules)
    opened = launched.new_page()
    assert opened.goto(f"http://evil.example:{page.port}/").status == 421
    assert "lab.builder" not in opened.content()
    launched.close()


def test_without_javascript(browser: Any, page: Served, office: Box) -> None:
    """Everything can be read with JavaScript off: by links, a form, and back."""
    tab = Tab(browser, page, java_script_enabled=False)
    opened = tab.open("/")
    opened.click("text=lab.builder")
    opened.fill("#q", "hello")
    opened.click("text=Search >> nth=-1")
    assert opened.locator(".row").count() == 1
    opened.click(".row")
    assert opened.locator("article h2").inner_text() == "hello"
    assert opened.locator(".thread > li").count() == 2
    address = opened.url
    opened.go_back()
    assert opened.locator("article").count() == 0
    opened.goto(address)
    assert opened.locator("article h2").inner_text() == "hello"
    opened.goto(page.base + "/map")
    assert opened.locator("main table tr").count() == 2
    tab.context.close()


def test_links_exchange_the_panes_and_back_works(tab: Tab) -> None:
    """A click loads no new page, gives a new address, and back returns to the old view."""
    opened = tab.open("/")
    opened.evaluate("window.sameOne = 1")
    opened.click("text=lab.builder")
    opened.wait_for_selector("#rows")
    opened.locator(".row").nth(3).click()
    opened.wait_for_selector("article h2")
    assert "/box/lab.builder/" in opened.url
    title = opened.locator("article h2").inner_text()
    assert opened.evaluate("window.sameOne") == 1
    opened.go_back()
    opened.wait_for_selector("article", state="detached")
    assert opened.locator("#rows").count() == 1
    opened.go_forward()
    opened.wait_for_selector("article h2")
    assert opened.locator("article h2").inner_text() == title
    tab.calm()


def test_keys(tab: Tab, office: Box) -> None:
    """j and k move through the list, Enter opens, Esc goes back, / searches."""
    opened = tab.open("/box/lab.builder")
    rows = opened.locator(".row")
    for key, at in (("j", 0), ("j", 1), ("j", 2), ("k", 1)):
        opened.keyboard.press(key)
        assert rows.nth(at).evaluate("row => row === document.activeElement"), (key, at)
    opened.keyboard.press("Enter")
    opened.wait_for_selector("article h2")
    assert rows.nth(1).get_attribute("aria-current") == "true"
    opened.keyboard.press("Escape")
    opened.wait_for_selector("article", state="detached")
    opened.keyboard.press("/")
    opened.keyboard.type("jjk")
    assert opened.locator("#q").input_value() == "jjk"
    opened.keyboard.press("Escape")
    opened.keyboard.press("Escape")
    opened.wait_for_url(tab.base + "/")
    tab.calm()


def test_news_keeps_place_and_selection(tab: Tab, office: Box) -> None:
    """New mail shows by itself; what is scrolled, selected, opened and typed stays; at rest nothing is loaded."""
    opened = tab.open(newest(office))
    opened.wait_for_selector(".thread")
    opened.locator("#pane-list").evaluate("pane => pane.scrollTop = 300")
    opened.locator("#pane-main details").first.evaluate("one => one.open = true")
    opened.evaluate("getSelection().selectAllChildren(document.querySelector('article .body'))")
    marked = opened.evaluate("getSelection().toString()")
    assert marked
    asked: list[str] = []
    opened.on("request", lambda one: asked.append(one.url))
    opened.wait_for_timeout(2500)
    assert [url for url in asked if "/box/" in url] == []
    office.drop("news.md", letter(subject="fresh news", body="n\n", correlation_id="other", sent_at=LATER))
    office.run("route")
    opened.wait_for_selector("text=fresh news")
    assert opened.locator("#pane-list").evaluate("pane => pane.scrollTop") == 300
    assert opened.evaluate("getSelection().toString()") == marked
    assert opened.locator("#pane-main details").first.evaluate("one => one.open")
    opened.fill("#q", "half a wo")
    office.drop("more.md", letter(subject="more news", body="m\n", correlation_id="other", sent_at=LATER))
    office.run("route")
    opened.wait_for_timeout(1500)
    assert opened.locator("#q").input_value() == "half a wo"
    tab.calm()


def test_reload_marks_nothing_as_seen(tab: Tab, office: Box) -> None:
    """The page that reloads by itself is no person who looks, and looking never moves mail."""
    before = tree(office.root, (".postmaster",))
    opened = tab.open(newest(office))
    opened.wait_for_selector("article")
    assert tree(office.root, (".postmaster",)) == before
    opened.goto(tab.base + "/box/lab.builder")
    assert opened.locator("text=seen by you").count() == 1


def test_pictures(tab: Tab, office: Box) -> None:
    """The map and the timeline are drawn, under the page's strict policy; the map's counts follow the mail."""
    opened = tab.open("/map")
    opened.wait_for_selector("[data-drawn]")
    drawn = "document.querySelector('[data-picture]').picture?.edges().map(edge => edge.data('label'))"
    assert opened.evaluate(drawn) == ["job.run (81)"]
    office.drop("news.md", letter(subject="fresh news", body="n\n", correlation_id="other", sent_at=LATER))
    office.run("route")
    end = time.monotonic() + 10
    while opened.evaluate(drawn) != ["job.run (82)"] and time.monotonic() < end:
        opened.wait_for_timeout(100)
    assert opened.evaluate(drawn) == ["job.run (82)"]
    opened.goto(tab.base + "/flow?name=run-1")
    opened.wait_for_selector("[data-drawn]")
    assert opened.evaluate("document.querySelector('[data-picture]').picture.$('.bad').length") == 1
    tab.calm()


def test_phone(browser: Any, page: Served, office: Box) -> None:
    """On a phone one pane shows at a time, nothing is wider than the screen, and there is a way back."""
    tab = Tab(browser, page)
    opened = tab.tab
    opened.set_viewport_size(PHONE)
    tab.open("/")
    panes = ["#pane-boxes", "#pane-list", "#pane-main"]

    def shown() -> list[str]:
        wide = opened.evaluate("document.documentElement.scrollWidth")
        assert wide <= PHONE["width"], opened.url
        return [pane for pane in panes if opened.locator(pane).is_visible()]

    assert shown() == ["#pane-boxes"]
    opened.click("text=lab.builder")
    opened.wait_for_selector("#rows")
    assert shown() == ["#pane-list"]
    opened.locator(".row").first.click()
    opened.wait_for_selector("article")
    assert shown() == ["#pane-main"]
    opened.click("text=Back to lab.builder")
    opened.wait_for_selector("article", state="detached")
    assert shown() == ["#pane-list"]
    opened.click("#pane-list [data-back]")
    opened.wait_for_selector("#rows", state="detached")
    assert shown() == ["#pane-boxes"]
    for path in ("/map", "/dead", "/flow?name=long", newest(office)):
        tab.open(path)
        assert len(shown()) == 1
    tab.calm()
    tab.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_accessible(browser: Any, page: Served, office: Box, scheme: str, size: dict[str, int]) -> None:
    """axe-core finds nothing (WCAG 2.2 AA and good practice) on any kind of page; screenshots are kept."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    tab = Tab(browser, page, color_scheme=scheme)
    tab.tab.set_viewport_size(size)
    name = f"{scheme}-{'phone' if size is PHONE else 'desktop'}"
    ARTEFACTS.mkdir(exist_ok=True)
    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    hello = next(mail.name for mail in office.unread("lab.builder") if mail.fields["subject"] == "hello")
    kinds = {
        "home": "/",
        "mailbox": "/box/lab.builder",
        "message": f"/box/lab.builder/{hello}",
        "dead": "/dead/y.md",
        "flow": "/flow?name=run-1",
        "map": "/map",
        "missing": "/box/nobody",
    }
    for kind, path in kinds.items():
        opened = tab.open(path)
        if kind in ("flow", "map"):
            opened.wait_for_selector("[data-drawn]")
            opened.wait_for_timeout(300)
        opened.screenshot(path=ARTEFACTS / f"{kind}-{name}.png")
        if name in ("dark-desktop", "light-phone") and kind not in ("message", "flow"):
            continue  # its colours are those of the phone, its sizes those of the other desktop
        found = axe.Axe().run(opened, options={"runOnly": {"type": "tag", "values": rules}})
        told = [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in found.response["violations"]]
        assert told == [], (kind, told)
    tab.context.close()
