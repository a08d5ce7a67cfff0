"""A page of the documentation: its blocks, and what comments in it say about them.

For writers. Every fenced block of README.md, CONTRIBUTING.md and docs/*.md is run or checked by `tests/docs`, from the
top of a page to its end, in a new folder. A new page is found by itself. What a block's language means:

- `sh`: run by `bash -euo pipefail`, as a whole. A line that fails, fails the page.
- `python`: run in one process a page, each block in a namespace of its own.
- `yaml`: validated: a configuration of `packtrain run` or `packtrain train`, or some keys of one, which go over
  `mix.yaml` of docs/data.md or over a small configuration for training.
- `json`: loads.
- `text`, or no language: what the last block before it that ran has printed, or a stretch of it. Spaces, line breaks
  and the length of drawn lines do not matter; `…` stands for anything. Paths are as from the folder.

The folder always holds the `mix.yaml` of docs/data.md with `chats.jsonl` (400 rows), `pairs.jsonl` (301),
`docs.jsonl` (100) and `tokenizer/`; also `train.jsonl` and `test.jsonl` (APPS), `preferences.jsonl`, `train.yaml` (of
the model and packed/), and `train.py`, which prints its arguments. `stdin` is empty, no network is there, and HOME is
elsewhere.

Comments say the rest. They stand on lines of their own right before the fence, several below one another:

    <!-- starts with: packed, model -->          once, anywhere on the page; see `STARTS`
    <!-- file: mix.yaml -->                      the block is written into the folder under this name (then checked)
    <!-- continues -->                           a python block that uses the names of the one before it
    <!-- in the test: /shared/packed is packed -->   a path to replace; may be repeated. It must occur in the block
    <!-- exits: 2 -->                            the exit code that the block's script must have
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
        "needs Slurm",
        "needs Kubernetes",
        "needs a cluster",
        "needs a GPU",
        "needs several devices",
        "needs the network",
        "needs real data",
        "installs packages",
        "takes long",
        "for another program",  # a configuration or a command of others
        "an outline",  # of a program: with parts left out, or signatures
        "a drawing",
        "a formula",
        "a layout of files",
        "an example of a message",  # of a failure that a page cannot bring about
    }
)
"""Why a block may not be run."""

STARTS = {
    "packed": "what `packtrain run mix.yaml` leaves: packed/ and .packtrain-cache/",
    "other": "another small packed folder, other/, of the same tokenizer",
    "model": "a tiny model with random weights and its tokenizer: path/to/model/",
    "my-model": "the same model in my-model/",
    "hub": "a stand-in for the Hugging Face Hub on this machine, and a token of `me`; see `hub_stand_in`",
    "bucket": "an S3 server on this machine with a bucket named bucket; it holds packed, if that is wanted, too",
}
"""What a page may start with besides the inputs."""

RUN = ("sh", "bash", "python")

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,})[ ]*(?P<language>[\w+-]*)[ ]*$")
_COMMENT = re.compile(r"^ *<!-- (.*?) -->$")
_MARK = re.compile(
    r"(?P<word>starts with|file|in the test|exits|output of|not run): (?P<value>.+)|(?P<flag>continues|roughly)"
)


_PATH = re.compile(r"(?!\d+$)[\w./~-]*[A-Za-z][\w./~-]*")


class PageError(Exception):
    """A page has a comment that is not understood, or lacks a required one."""


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
        """The value of a comment that may stand there once."""
        values = [value for name, value in self.marks if name == word]
        if len(values) > 1:
            raise PageError(f"{self.where}: says {word!r} twice")
        return values[0] if values else None

    @property
    def reason(self) -> str | None:
        """Why it is not run, if it is not."""
        return self.mark("not run")

    @property
    def tested(self) -> str:
        """Its text, with what is to be replaced in the test replaced."""
        text = self.text
        for word, value in self.marks:
            if word == "in the test":
                old, new = replacement(value)
                if old not in text:
                    raise PageError(f"{self.where}: {old!r}, which is to be replaced, does not occur")
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


def replacement(value: str) -> tuple[str, str]:
    """`a is b` as the path that is to be replaced and by what. Nothing else: what is shown is what was tried."""
    match = re.fullmatch(r"(\S+) is (\S+)", value)
    if match is None:
        raise PageError(f"cannot read {value!r}; write: in the test: path is path")
    if not _PATH.fullmatch(match[1]) or not _PATH.fullmatch(match[2]):
        raise PageError(f"{value!r} does not replace a path by a path; show what the test runs")
    return match[1], match[2]


def names() -> list[str]:
    """All pages, by their paths in the repository."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found]


@cache
def page(name: str) -> Page:
    """Reads a page of the repository."""
    return parse(name, (ROOT / name).read_text(encoding="utf-8"))


def parse(name: str, text: str) -> Page:
    """Takes a page apart. Raises PageError for a fence that is not closed, and for comments that are not understood."""
    blocks: list[Block] = []
    starts: set[str] = set()
    marks: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    began = 0
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if opened is not None:
            if line.strip() == opened["ticks"]:
                body = "".join(f"{one}\n" for one in _dedented(inside, len(opened["indent"])))
                blocks.append(_checked(Block(name, began, opened["language"], body, tuple(marks))))
                opened, inside, marks = None, [], []
            else:
                inside.append(line)
            continue
        opened = _FENCE.match(line)
        if opened is not None:
            began = number
            continue
        if line.lstrip().startswith(("```", "~~~")):
            raise PageError(f"{name}:{number}: a fence with more than a language")
        comment = _COMMENT.match(line)
        if comment is None:
            if marks:
                raise PageError(f"{name}:{number}: a comment for a block must stand right before its fence")
            continue
        mark = _MARK.fullmatch(comment[1])
        if mark is None:
            raise PageError(f"{name}:{number}: unknown comment {comment[1]!r}; see tests/docs/markdown_page.py")
        if mark["word"] == "starts with":
            starts |= {one.strip() for one in mark["value"].split(",")}
        else:
            marks.append((mark["flag"], "") if mark["flag"] else (mark["word"], mark["value"]))
    if opened is not None:
        raise PageError(f"{name}:{began}: this fence is not closed")
    if marks:
        raise PageError(f"{name}: a comment for a block at the end of the page")
    if unknown := starts - set(STARTS):
        raise PageError(f"{name}: cannot start with {', '.join(sorted(unknown))}; known: {', '.join(STARTS)}")
    return Page(name, text, tuple(blocks), frozenset(starts))


def _dedented(lines: list[str], by: int) -> list[str]:
    return [line[by:] if line[:by].isspace() or not by else line.lstrip() for line in lines]


_MARKS_OF = {
    "sh": {"file", "in the test", "exits", "not run"},
    "python": {"file", "in the test", "exits", "continues", "not run"},
    "yaml": {"file", "in the test", "not run"},
    "json": {"file", "not run"},
    "text": {"output of", "roughly", "not run"},
}


def _checked(block: Block) -> Block:
    """The same block, if its language and its comments go together."""
    kind = {"bash": "sh", "": "text"}.get(block.language, block.language)
    if block.reason is not None and block.reason not in REASONS:
        raise PageError(f"{block.where}: {block.reason!r} is no reason; known: {', '.join(sorted(REASONS))}")
    if kind not in _MARKS_OF and block.reason is None and block.mark("file") is None:
        raise PageError(f"{block.where}: nothing is known of {kind!r}; say why it is not run, or which file it is")
    for word, _ in block.marks:
        if kind in _MARKS_OF and word not in _MARKS_OF[kind]:
            raise PageError(f"{block.where}: {word!r} means nothing for {kind}")
    for word in {word for word, _ in block.marks} - {"in the test"}:
        block.mark(word)
    if block.reason is None:
        _ = block.tested
    return block
