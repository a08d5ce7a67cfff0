"""A page of the documentation: its blocks, and what comments in it say about them.

For writers. Every fenced block of README.md, CONTRIBUTING.md and docs/*.md is run or checked by `tests/docs`, from the
top of a page to its end, in a new folder. A new page is found by itself. What a block's language means:

- `sh`: run by `bash -euo pipefail`, as a whole. A line that fails, fails the page.
- `python`: run as a program of its own.
- `yaml`: validated: a configuration of `packtrain run` or `packtrain train`, or some keys of one, which go over
  `mix.yaml` of docs/data.md or over a small configuration for training.
- `json`: loads.
- `text`, or no language: what the last block before it that ran has printed, or a stretch of it. Spaces, line breaks
  and the length of drawn lines do not matter; `…` stands for anything. Paths are as from the folder.

The folder always holds the `mix.yaml` of docs/data.md with `chats.jsonl` (130 rows), `pairs.jsonl` (101),
`docs.jsonl` (33) and `tokenizer/`; also `train.jsonl` and `test.jsonl` (APPS), `preferences.jsonl`, `train.yaml` (of
the model and packed/), and `train.py`, which prints its arguments. `stdin` is empty, no network is there, and HOME is
elsewhere.

Comments say the rest. They stand on lines of their own right before the fence, several below one another:

    <!-- starts with: packed, model -->          once, anywhere on the page; see `STARTS`
    <!-- file: mix.yaml -->                      the block is written into the folder under this name (then checked)
    <!-- in the test: /shared/packed is packed -->   a path to replace; may be repeated. It must occur in the block
    <!-- output of: packtrain verify -->         a text block: of the last block before it that holds these words
    <!-- roughly -->                             a text block: any number will do where it has one
    <!-- not run: needs Slurm -->                not run; the reason is one of `REASONS`

What is not run is still looked at: bash must parse it, Python compile it; options of packtrain must exist, and so
must names that are imported from packtrain, and keywords they are called with.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

REASONS = frozenset(
    {
        *("needs Slurm", "needs Kubernetes", "needs a cluster", "needs a GPU", "needs several devices"),
        *("installs packages", "a drawing", "a formula", "a layout of files"),
        "for another program",  # a configuration or a command of others
        "an outline",  # of a program: with parts left out, or signatures
        "an example of a message",  # of a failure that a page cannot bring about
    }
)
"""Why a block may not be run."""

STARTS = {
    "packed": "what `packtrain run mix.yaml` leaves: packed/ and .packtrain-cache/",
    "other": "another small packed folder, other/, of the same tokenizer",
    "model": "a tiny model with random weights and its tokenizer: path/to/model/",
    "hub": "a stand-in for the Hugging Face Hub on this machine, and a token of `me`; see `hub_stand_in`",
    "bucket": "an S3 server on this machine with a bucket named bucket; it holds packed, if that is wanted, too",
}
"""What a page may start with besides the inputs."""

RUN = ("sh", "python")
_MARKS = {
    "sh": {"file", "in the test", "not run"},
    "python": {"file", "in the test", "not run"},
    "yaml": {"file", "in the test", "not run"},
    "json": {"file", "not run"},
    "text": {"output of", "roughly", "not run"},
}
"""Language → the comments that it may have."""

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w+-]*)$")
_COMMENT = re.compile(r"^ *<!-- (?P<word>[a-z ]+)(?:: (?P<value>.+))? -->$")
_PATH = re.compile(r"(?!\d+$)[\w./~-]*[A-Za-z][\w./~-]*")


class PageError(Exception):
    """A page has a comment that is not understood, lacks a required one, or does not say what is so."""


@dataclass(frozen=True)
class Block:
    """A fenced block, and what the comments right before it say."""

    page: str
    """The page's path in the repository."""
    line: int
    """Of its fence, from 1."""
    language: str
    text: str
    """Without its indentation, with a line's end at its end."""
    marks: tuple[tuple[str, str], ...] = ()
    """(word, value), in order; a flag's value is empty."""

    @property
    def where(self) -> str:
        """`docs/masks.md:12`"""
        return f"{self.page}:{self.line}"

    def mark(self, word: str) -> str | None:
        """The value of a comment."""
        return dict(self.marks).get(word)

    @property
    def reason(self) -> str | None:
        """Why it is not run, if it is not."""
        return self.mark("not run")

    @property
    def tested(self) -> str:
        """Its text, with what is to be replaced in the test replaced: paths by paths, as what is shown was tried."""
        text = self.text
        for word, value in self.marks:
            if word == "in the test":
                old, _, new = value.partition(" is ")
                if not (_PATH.fullmatch(old) and _PATH.fullmatch(new) and old in text):
                    raise PageError(f"{self.where}: {value!r} replaces no path of the block by a path")
                text = text.replace(old, new)
        return text


@dataclass(frozen=True)
class Page:
    """A Markdown file of the documentation."""

    name: str
    """Its path in the repository."""
    text: str
    blocks: tuple[Block, ...]
    starts: frozenset[str] = field(default=frozenset())
    """Keys of `STARTS`."""


def names() -> list[str]:
    """All pages, by their paths in the repository."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found]


@cache
def page(name: str) -> Page:
    """Take a page of the repository apart.

    Raises:
        PageError: a fence is not closed, or a comment is not understood.
    """
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks: list[Block] = []
    starts: set[str] = set()
    marks: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    began = 0
    inside: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if opened is not None:
            if line.strip() == opened["ticks"]:
                body = "".join(f"{one.removeprefix(opened['indent'])}\n" for one in inside)
                blocks.append(_checked(Block(name, began, opened["language"] or "text", body, tuple(marks))))
                opened, inside, marks = None, [], []
            else:
                inside.append(line)
        elif found := _FENCE.match(line):
            opened, began = found, number
        elif line.lstrip().startswith("```"):
            raise PageError(f"{name}:{number}: a fence with more than a language")
        elif (comment := _COMMENT.match(line)) and comment["word"] == "starts with":
            starts |= set(comment["value"].split(", "))
        elif comment:
            marks.append((comment["word"], comment["value"] or ""))
        elif marks:
            raise PageError(f"{name}:{number}: a comment for a block must stand right before its fence")
    if opened is not None:
        raise PageError(f"{name}:{began}: this fence is not closed")
    if unknown := starts - set(STARTS):
        raise PageError(f"{name}: cannot start with {', '.join(sorted(unknown))}; known: {', '.join(STARTS)}")
    return Page(name, text, tuple(blocks), frozenset(starts))


def _checked(block: Block) -> Block:
    """The same block, if its language and its comments go together."""
    if block.reason is not None and block.reason not in REASONS:
        raise PageError(f"{block.where}: {block.reason!r} is no reason; known: {', '.join(sorted(REASONS))}")
    if block.language not in _MARKS and block.reason is None and block.mark("file") is None:
        raise PageError(f"{block.where}: nothing is known of {block.language!r}; say why it is not run")
    if strange := {word for word, _ in block.marks} - _MARKS.get(block.language, {"file", "not run"}):
        raise PageError(f"{block.where}: {strange} mean nothing for {block.language}")
    if block.reason is None:
        _ = block.tested
    return block
