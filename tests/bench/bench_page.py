"""How soon a report's page is visible: `python tests/bench/bench_page.py REPORT.html …`. Needs Chromium and playwright.

Times are medians (and the least) from the beginning of the navigation, in milliseconds, of a window of 1440 by 900: the
first text, the first chart, and every chart, which are drawn one by one when the browser is idle. Pages are opened in
turn, and an empty one between them, so that what else the machine does falls on all of them: give the page from before
a change, too. A page that is opened right after a browser's start is not counted.
"""

import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

OPENED = 9
WATCH = """
new MutationObserver(() => {
  const now = performance.now();
  if (!window.firstChart && document.querySelector('.chart .main-svg')) window.firstChart = now;
  if (!window.allCharts && document.documentElement.dataset.drawn) window.allCharts = now;
}).observe(document, {subtree: true, childList: true, attributes: true});
"""
EMPTY = '<!DOCTYPE html><html lang="en" data-drawn="0"><title>Empty</title><p>Nothing.</p></html>'


def main(paths: list[Path]) -> int:
    """Print a table."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None or not paths:
        print("there is no Chromium" if paths else __doc__)
        return 1
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        empty = Path(folder, "empty.html")
        empty.write_text(EMPTY)
        pages = [empty, *(path.resolve() for path in paths)]
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened(browser, pages[-1])
        times: list[list[tuple[float, ...]]] = [[] for _ in pages]
        for _ in range(OPENED):
            for path, rows in zip(pages, times, strict=True):
                rows.append(opened(browser, path))
        browser.close()
        print("| | MB | first text | first chart | all charts |\n|---|---:|---:|---:|---:|")
        for path, rows in zip(pages, times, strict=True):
            cells = [f"{path.name}", f"{path.stat().st_size / 1e6:.1f}", *map(said, zip(*rows, strict=True))]
            print("| " + " | ".join(cells) + " |")
    return 0


def opened(browser: Any, path: Path) -> tuple[float, ...]:
    """Milliseconds to the first text, the first chart, all charts; 0 for what is missing."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.add_init_script(WATCH)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached", timeout=120_000)
    page.wait_for_timeout(100)
    text = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    rest = page.evaluate("[window.firstChart || 0, window.firstChart ? window.allCharts : 0]")
    page.close()
    return (text, *rest)


def said(times: tuple[float, ...]) -> str:
    """Median, and the least."""
    return f"{statistics.median(times):,.0f} ({min(times):,.0f})" if any(times) else ""


if __name__ == "__main__":
    sys.exit(main([Path(one) for one in sys.argv[1:]]))
