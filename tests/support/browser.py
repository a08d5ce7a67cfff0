"""A browser to look at pages: fixtures, which a conftest imports."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Looked:
    """What a page said and asked for while it was open."""

    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium. While it is open, an event loop runs in this thread: no longer than for a module."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = os.environ.get("PACKTRAIN_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no Chromium")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def look(browser: Any) -> Any:
    """A context: (page, what it said and asked for) of a file, opened from disk."""

    @contextmanager
    def looking(path: Path, **keys: Any) -> Iterator[tuple[Any, Looked]]:
        context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **keys})
        page, looked = context.new_page(), Looked()
        page.on("console", lambda message: looked.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: looked.said.append(f"error: {error}"))
        page.on("request", lambda request: looked.asked.append(request.url))
        page.goto(path.as_uri())
        if keys.get("java_script_enabled", True):
            page.wait_for_selector("html[data-drawn]", state="attached", timeout=30_000)
        yield page, looked
        context.close()

    return looking
