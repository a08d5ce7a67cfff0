"""Runs the blocks of a page in its folder, top to bottom, and compares what they print with what it shows."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.docs.block_checks import missing, wanted
from tests.docs.markdown_page import RUN, Block, Page, PageError
from tests.support import warm

SECONDS = 600.0
"""Time limit of a block. Far more than any needs: machines may be busy."""
_DROPPED = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "PACKTRAIN_", "SLURM_", "PYTEST", "COV_", "HF_", "AWS_")


@dataclass
class PageRun:
    """One page, run. A context manager.

    Its `packtrain` and its `python` are those of `tests.support.warm`; tests/pipeline/test_package.py
    has installed ones.
    """

    page: Page
    folder: Path
    home: Path
    """Becomes HOME; not in the folder, where caches would be looked at."""
    environment: dict[str, str] = field(default_factory=dict)
    said: list[tuple[Block, str]] = field(default_factory=list)
    """Each block that was run, and what it wrote, without the page's folder where paths begin with it."""
    left_out: list[str] = field(default_factory=list)
    """`docs/x.md:3: torch is missing`"""
    _programs: Path = Path()

    def __enter__(self) -> "PageRun":
        self._programs = Path(tempfile.mkdtemp(prefix="packtrain-tests-"))
        warm.install(self._programs, self._modules)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        shutil.rmtree(self._programs)

    @property
    def _blocks(self) -> list[Block]:
        return [block for block in self.page.blocks if block.reason is None]

    @property
    def _modules(self) -> tuple[str, ...]:
        """What its processes have imported."""
        trains = "model" in self.page.starts or any("torch" in wanted(block) for block in self._blocks)
        return warm.TRAINING if trains else warm.PIPELINE

    def run(self) -> None:
        """All blocks that can be run here. Raises PageError at the first failure."""
        for block in self._blocks:
            lacking = missing(block) if block.language in RUN else None
            if lacking is not None:
                self.left_out.append(f"{block.where}: {lacking} is missing")
            elif (name := block.mark("file")) is not None:
                place = self.folder / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(block.tested, encoding="utf-8")
            elif block.language in RUN:
                self._run(block)
            elif block.language == "text":
                self._compare(block)

    @property
    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_DROPPED)}
        nowhere = "http://127.0.0.1:9"
        return (
            kept
            | {
                "PATH": f"{self._programs}:{Path(sys.executable).parent}:{os.environ.get('PATH', '/usr/bin:/bin')}",
                "HOME": str(self.home),
                "XDG_CACHE_HOME": str(self.home / ".cache"),
                "PYTHONPATH": "",
                # Without a network, here as anywhere else.
                "HF_HUB_OFFLINE": "1",
                "PIP_NO_INDEX": "1",
                "http_proxy": nowhere,
                "https_proxy": nowhere,
                "no_proxy": "127.0.0.1,localhost",
                # Two cores are enough for what is tiny, and tests run beside each other.
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
            }
            | warm.python(self._modules)
            | self.environment
        )

    def _run(self, block: Block) -> None:
        words = ["bash", "-euo", "pipefail", "-c"] if block.language == "sh" else [sys.executable, "-c"]
        # Into a file: a pipe would be read until the last process that has it is gone, such as one in the background.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
            code: object = f"no end within {SECONDS:.0f} s"
            with suppress(subprocess.TimeoutExpired):
                code = subprocess.run(
                    [*words, block.tested],
                    cwd=self.folder,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    timeout=SECONDS,
                    check=False,
                ).returncode
            printed.seek(0)
            text = printed.read()
        if code != 0:
            raise PageError(f"{block.where}: ended with {code}\n{block.tested}\n--- said:\n{text}")
        self.said.append((block, text.replace(f"{self.folder}/", "")))

    def _compare(self, block: Block) -> None:
        """Looks for a text block in what was said, unless what would have said it was left out."""
        source = source_of(self.page, block)
        for one, text in self.said:
            if one is source and not shows(block.text, text, roughly=block.mark("roughly") is not None):
                raise PageError(f"{block.where}: shows\n{block.text}\n--- but {source.where} said:\n{text}")


def source_of(page: Page, block: Block) -> Block:
    """The block whose output a text block shows. Raises PageError if there is none, or none that is ever run."""
    before = [one for one in page.blocks if one.line < block.line and one.language in RUN and one.mark("file") is None]
    words = block.mark("output of")
    found = [one for one in before if one.reason is None and (words is None or words in one.text)]
    if not found or (words is None and found[-1] is not before[-1]):
        raise PageError(f"{block.where}: shows an output, but of nothing before it that is run; say why it is not run")
    return found[-1]


_NUMBER = re.compile(r"[-+−]?\d(?:[\d,.]*\d)?(?:[eE][-+]?\d+)?[kMG]?")


def shows(shown: str, said: str, *, roughly: bool = False) -> bool:
    """Whether a page's text is a stretch of what was said.

    Spaces, line breaks and the length of drawn lines do not count; `…` stands for anything, also for nothing.
    `roughly`: a number stands for any other.
    """
    pattern = r".*?".join(re.escape(part) for part in _plain(shown, roughly).split("…"))
    return re.search(pattern, _plain(said, roughly), re.DOTALL) is not None


def _plain(text: str, roughly: bool) -> str:
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    text = re.sub(r"([━─═])\1*", r"\1", text)
    if roughly:
        text = _NUMBER.sub("0", text)
    return re.sub(r"\s+", "", text)
