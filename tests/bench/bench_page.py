"""How soon a report's page is there: `python tests/bench/bench_page.py REPORT.html`. Needs Chromium and playwright.

Times are from the beginning of the navigation, in milliseconds, of a window of 1440 by 900: the first text, the first
chart, and every chart, which are drawn one by one when the browser is idle.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

OPENED = 5
WATCH = """
new MutationObserver(() => {
  const now = performance.now();
  if (!window.firstChart && document.querySelector('.chart .main-svg')) window.firstChart = now;
  if (!window.allCharts && document.documentElement.dataset.drawn) window.allCharts = now;
}).observe(document, {subtree: true, childList: true, attributes: true});
"""


def main(path: Path) -> int:
    """Print a table, the fastest first."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("there is no Chromium")
        return 1
    rows = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(OPENED):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.add_init_script(WATCH)
            page.goto(path.resolve().as_uri())
            page.wait_for_selector("html[data-drawn]", state="attached", timeout=120_000)
            page.wait_for_timeout(100)
            text = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            rows.append((text, page.evaluate("window.firstChart"), page.evaluate("window.allCharts")))
            page.close()
        browser.close()
    print(
        f"{path.name}: {path.stat().st_size / 1e6:.1f} MB\n\n| first text | first chart | all charts |\n|---|---|---|"
    )
    for row in sorted(rows, key=lambda one: one[1]):
        print("| " + " | ".join(f"{time:,.0f} ms" for time in row) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
