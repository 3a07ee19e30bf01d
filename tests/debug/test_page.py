"""The page in a real browser: Chromium without a window, where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from .jobs import HOSTILE, Job, running, until

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    if BROWSER is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium-headless-shell)")
    with running(tmp_path_factory.mktemp("page"), "auto") as job:
        yield job


@pytest.fixture
def browser(job: Job) -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


def test_other_pages_cannot_use_it(job: Job, browser: Any) -> None:
    """Neither embed it, nor read from it even with the token."""
    page = browser.new_page()
    page.goto("data:text/html,<p>elsewhere")
    answer = page.evaluate("url => fetch(url).then(() => 'read', error => error.name)", job.address("state"))
    assert answer == "TypeError"


def test_the_page(job: Job, browser: Any) -> None:
    page, said, asked = browser.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(job.url)

    before = until(lambda: page.title() if page.title().endswith("ranks 0 and 1 wait") else None, page.title)
    until(lambda: page.title() != before)  # it lives
    assert page.locator("header.late h1").inner_text().startswith("Rank 2 has been late for")
    assert page.locator("#ranks tbody tr").count() == 3 and "late" in page.locator("#ranks tbody tr").nth(2).inner_text()
    assert page.locator("#latency svg rect").count() > 10
    assert "messages" in page.locator("#links").inner_text()

    # Names are text.
    page.wait_for_selector("#records tbody tr >> text=broadcast")
    assert HOSTILE in page.locator("#records").inner_text() and HOSTILE in page.locator("#links").inner_text()
    assert page.locator("img").count() == 0

    page.select_option("#recorded", "1")
    page.wait_for_selector("#records td.late")
    page.select_option("#of", "1")
    page.select_option("#window", "10")
    page.click("#ask")
    page.wait_for_selector("#stacks details")
    assert page.locator("#stacks details[open]").count() == 1
    assert "load_the_next_batch" in page.locator("#stacks details[open] pre").inner_text()

    assert not said and all(url.startswith(job.url.partition("?")[0]) for url in asked if not url.startswith("data:"))
    job.agents[0].kill()
    page.wait_for_selector("header.bad")
    assert page.locator("h1").inner_text().startswith("No answer from the server for")
