"""A page of the documentation: its blocks, looked at one by one, and run from top to bottom in a folder.

For writers. What a fenced block of README.md, CONTRIBUTING.md or docs/*.md is, its language says:

- `sh`: run by `bash -euo pipefail`, as a whole. A line that fails, fails the page.
- `python`: run as a program of its own.
- `yaml`: a configuration of `packtrain run` or `packtrain train`, or some keys of one, which go over `mix.yaml` of
  docs/data.md or over a small configuration for training.
- `json`: loads.
- no language, or `text`: a stretch of what some block above it has printed. Spaces, line breaks and the length of drawn
  lines do not matter; `…` stands for anything. Paths are as from the folder.

The folder holds what `prepared.inputs` makes: the `mix.yaml` of docs/data.md with its data, a tokenizer, and more.
`stdin` is empty, no network is there, and HOME is elsewhere. Comments say the rest, on lines right before the fence:

    <!-- starts with: packed, model -->     what the folder holds besides; see `prepared`
    <!-- file: mix.yaml -->                 the block is written into the folder under this name
    <!-- roughly -->                        of a text: any number will do where it has one
    <!-- not run: needs Slurm -->           why it is not run, or nothing has printed it

What is not run is still looked at: bash must parse it, Python compile it, and packtrain have the commands and options.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
import yaml
from packtrain.pipeline.cli import main as cli
from packtrain.pipeline.configfile import load_as
from packtrain.schemas.config.config import RunConfig

from tests.docs.prepared import TRAINING

ROOT = Path(__file__).parents[2]
SECONDS = 600.0
"""Time limit of a block. Far more than any needs: machines may be busy."""
_BLOCK = re.compile(
    r"^(?P<marks>(?: *<!-- .* -->\n)*)(?P<indent> *)```(?P<language>\w*)\n(?P<text>(?:.*\n)*?)(?P=indent)```$", re.M
)
_MARK = re.compile(r"<!-- (starts with|file|roughly|not run)(?:: (.+))? -->")
_COMMAND = re.compile(r"(?<![\w/.=-])packtrain ([a-z][\w-]*)([^\n;|&']*)")
_NUMBER = re.compile(r"[-+−]?\d(?:[\d,.]*\d)?(?:[eE][-+]?\d+)?[kMG]?")
_DROPPED = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "PACKTRAIN_", "SLURM_", "PYTEST", "COV_", "HF_", "AWS_")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins (`docs/masks.md:12`), what it holds, and what comments before it say."""

    where: str
    language: str
    text: str
    marks: dict[str, str]

    @property
    def runs(self) -> bool:
        """Whether it is run."""
        return self.language in ("sh", "python") and not {"file", "not run"} & self.marks.keys()

    def check(self) -> None:
        """Look at it without running it."""
        match self.language:
            case "sh":
                subprocess.run(["bash", "-n"], input=self.text, text=True, check=True)
                for name, options in _commands(self.text):
                    assert options <= _options()[name], f"{self.where}: packtrain {name}"
            case "python":
                ast.parse(self.text, self.where)
            case "yaml" if not {"file", "not run"} & self.marks.keys():
                keys = yaml.safe_load(self.text)
                if set(keys) <= set(RunConfig.model_fields):
                    load_as(RunConfig, yaml.safe_load(mix()) | keys)
                else:
                    config = import_module("packtrain.training.trainer.train_config").TrainConfig
                    load_as(config, TRAINING | keys)
            case "yaml":
                list(yaml.safe_load_all(self.text))
            case "json":
                json.loads(self.text)


def _commands(script: str) -> list[tuple[str, set[str]]]:
    """(command, its options) of every call of packtrain in a script, also within quoted scripts."""
    plain = re.sub(r"(?m)(^|\s)#.*$", "", re.sub(r"\\\n\s*", " ", script))
    plain = re.sub(r"(python )?-m packtrain(\.pipeline\.cli)?\b", "packtrain", plain)
    words = ((name, rest.split()) for name, rest in _COMMAND.findall(plain))
    return [(name, {one.partition("=")[0] for one in rest if re.match("--?[A-Za-z]", one)}) for name, rest in words]


@cache
def _options() -> dict[str, set[str]]:
    """The options of every command."""
    group: Any = typer.main.get_command(cli.app)
    return {
        name: {"--help", *(one for parameter in command.params for one in (*parameter.opts, *parameter.secondary_opts))}
        for name, command in group.commands.items()
    }


def names() -> list[str]:
    """All pages, by their paths in the repository."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found]


def text_of(name: str) -> str:
    """The text of a page."""
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def blocks(name: str) -> list[Block]:
    """The fenced blocks of a page."""
    text, found = text_of(name), []
    for one in _BLOCK.finditer(text):
        marks = dict(_MARK.findall(one["marks"]))
        assert len(marks) == one["marks"].count("<!--"), f"{name}: a comment is not understood: {one['marks']}"
        body = re.sub(f"^{one['indent']}", "", one["text"], flags=re.M)
        line = text.count("\n", 0, one.start("indent")) + 1
        found.append(Block(f"{name}:{line}", one["language"] or "text", body, marks))
    assert len(re.findall("^ *```", text, re.M)) == 2 * len(found), f"{name}: a fence is not closed"
    return found


def starts(name: str) -> set[str]:
    """What the folder of a page holds besides the inputs."""
    return {one for found in re.findall("<!-- starts with: (.*) -->", text_of(name)) for one in found.split(", ")}


def mix() -> str:
    """The `mix.yaml` of docs/data.md."""
    (found,) = (block.text for block in blocks("docs/data.md") if block.marks.get("file") == "mix.yaml")
    return found


@dataclass
class PageRun:
    """A page that is run in a folder.

    Args:
        environment: set on top of this process's own.
    """

    folder: Path
    home: Path
    """Becomes HOME; not in the folder, where caches would be looked at."""
    environment: dict[str, str]
    said: list[str] = field(default_factory=list)
    """What each block wrote, without the page's folder where paths begin with it."""

    def run(self, block: Block) -> None:
        """Run a block, write it, or look for it in what was printed."""
        if (name := block.marks.get("file")) is not None:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(block.text, encoding="utf-8")
        elif block.runs:
            self._start(block)
        elif block.language == "text" and "not run" not in block.marks:
            roughly = "roughly" in block.marks
            said = "\n--- or\n".join(self.said)
            assert any(_shows(block.text, one, roughly) for one in self.said), f"{block.where} is not in\n{said}"

    def _start(self, block: Block) -> None:
        words = ["bash", "-euo", "pipefail", "-c"] if block.language == "sh" else [sys.executable, "-c"]
        # Into a file: a pipe would be read until the last process that has it is gone, such as one in the background.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
            code = subprocess.run(
                [*words, block.text],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
            ).returncode
            printed.seek(0)
            text = printed.read()
        assert code == 0, f"{block.where}: ended with {code}\n{block.text}\n--- said:\n{text}"
        self.said.append(text.replace(f"{self.folder}/", ""))

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_DROPPED)}
        nowhere = "http://127.0.0.1:9"
        ours = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.home / ".cache"),
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
        return kept | ours | self.environment


def _shows(shown: str, said: str, roughly: bool) -> bool:
    """Whether a page's text is a stretch of what was said. `roughly`: a number stands for any other."""
    pattern = r".*?".join(re.escape(part) for part in _plain(shown, roughly).split("…"))
    return re.search(pattern, _plain(said, roughly), re.DOTALL) is not None


def _plain(text: str, roughly: bool) -> str:
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    text = re.sub(r"([━─═])\1*", r"\1", text)
    if roughly:
        text = _NUMBER.sub("0", text)
    return re.sub(r"\s+", "", text)
