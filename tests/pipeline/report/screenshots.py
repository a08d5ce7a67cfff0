"""Makes the report's pictures for docs/: `python tests/pipeline/report/screenshots.py`. Needs Chromium and playwright.

They show the report of the embedded sample in `docs/images/`, and are to be looked at before they are committed.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parents[3] / "docs" / "images"
PICTURES = {
    "report-choice": ("#choice", 905),
    "report-rows": ("#training article.row", 620),
}
"""What is shown, and how much of its height at most."""


EDGE = 16
"""Pixels around it."""


def main() -> int:
    """Run the sample, and take the pictures."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("there is no Chromium")
        return 1
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        out = Path(folder, "demo")
        command = Path(sys.executable).with_name("packtrain")
        subprocess.run([command, "run", "--demo", "--out", out], check=True, stdout=subprocess.DEVNULL)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light")
        page.goto((out / "report.html").as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached")
        for name, (what, height) in PICTURES.items():
            take(page, what, height, IMAGES / f"{name}.png")
        browser.close()
    return 0


def take(page: Page, what: str, height: int, path: Path) -> None:
    """The upper part of an element."""
    element = page.locator(what).first
    element.scroll_into_view_if_needed()
    box = element.evaluate(
        "e => { const b = e.getBoundingClientRect(); return [b.x + scrollX, b.y + scrollY, b.width, b.height] }"
    )
    x, y, width, tall = box
    clip = {"x": x - EDGE, "y": y - EDGE, "width": width + 2 * EDGE, "height": min(tall, height) + EDGE}
    page.screenshot(path=path, clip=clip, full_page=True)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    sys.exit(main())
