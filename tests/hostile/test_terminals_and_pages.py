"""Contents and names with control characters and markup: they are shown as text, by every command and in every file."""

import json
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from packtrain.schemas.escape import escape, escape_json, escape_line

from tests.kit import Row, cli, configure, lines, packed, saved, source, tokenizer, write
from tests.support.examples import examples
from tests.support.hostile import ACTIVE, COLOURS, EVIL, MARKUP
from tests.support.terminal import in_terminal

HARMLESS = "harmless"


# One property for all text that is printed


def test_escaped_by_eye() -> None:
    assert escape("a\tb\nc") == "a\tb\nc"
    assert escape("\x1b[31m\r\x00\x7f\x9b") == "\\x1b[31m\\x0d\\x00\\x7f\\x9b"
    assert escape("\u202eabc\u2066\U000e0041\ufeff") == "\\u202eabc\\u2066\\U000e0041\\ufeff"
    assert escape("می‌خواهم 👩‍👩‍👧 über") == "می‌خواهم 👩‍👩‍👧 über"
    assert escape_line("a\nb\tc") == "a\\nb\\tc"


@examples(100)
@given(st.text(st.characters()))
def test_nothing_escaped_controls_a_terminal(text: str) -> None:
    for character in escape(text):
        assert character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
        assert unicodedata.bidirectional(character) not in [
            "RLO",
            "LRO",
            "RLE",
            "LRE",
            "PDF",
            "RLI",
            "LRI",
            "FSI",
            "PDI",
        ]
    assert escape(escape(text)) == escape(text)
    escape(text).encode()


def test_json_that_is_looked_at_keeps_its_values() -> None:
    data = json.dumps({EVIL: "a\x7fb\U000e0001é"}, ensure_ascii=False).encode()
    assert json.loads(escape_json(data)) == json.loads(data)
    assert not ACTIVE.search(escape_json(data).decode())


# A dataset of which every text is hostile


def rows(text: str) -> list[Row]:
    """Conversations with a text in all places that the rows have."""
    talk = [{"role": "user", "content": text}, {"role": "assistant", "content": f"yes {text}", "name": text}]
    tools = [{"type": "function", "function": {"name": text, "description": text}}]
    row = {"messages": talk, "tools": tools, "id": text, text: text}
    return [*[row] * 6, {"messages": [{"role": text}]}, {"messages": text}, {text: text}]


def make(folder: Path, text: str) -> Path:
    """A folder with a dataset and a second one, whose files, names and contents are a text."""
    name = text.replace("/", "")[:60]
    write(folder / f"{name}.jsonl", rows(text))
    (folder / f"{name}.jsonl").open("a").write("no JSON\n")
    (folder / "against.jsonl").write_bytes(lines([{"text": f"{text} " * 30}, *rows(text)[:1]]))
    chats = {**source("chats", path=f"{name}.jsonl"), "name": "s"}
    config = configure(
        folder,
        chats,
        out=str(folder / f"out {name}"),
        cache=str(folder / f"cache {name}"),
        tokenizer={"path": str(tokenizer(folder / "tokenizer")), "allow_lost": ["tools"]},
        truncate={"max_length": 4096},
        run={"report": True},
    )
    saved(config)
    packed(config, folder)
    packed({**config, "out": str(folder / "second"), "truncate": {"max_length": 2048}}, folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tokenizer_loader: None) -> Callable[[str], Path]:
    """`make`, once for each text; not to be changed."""
    folders: dict[str, Path] = {}

    def once(text: str) -> Path:
        if text not in folders:
            folders[text] = make(tmp_path_factory.mktemp("made"), text)
        return folders[text]

    return once


def output(folder: Path) -> Path:
    """The dataset in what `make` made."""
    return next(folder.glob("out *"))


def commands(folder: Path, text: str) -> list[tuple[Any, ...]]:
    """Everything that prints something of a dataset, of a configuration or of the command line."""
    config, out, one = folder / "config.json", output(folder), f"s/{text.replace('/', '')[:60]}:1"
    looking = [
        ("run", config),
        ("plan", config),
        ("report", out),
        ("inspect", out),
        ("inspect", out, "--row", "0"),
        ("inspect", out, "--id", "1"),
        ("inspect", out, "--id", one),
        ("diff", out, folder / "second"),
        ("contamination", config, "--against", folder / "against.jsonl"),
        ("prep", config, "--source", "s", "-o", folder / "prepared.jsonl"),
        ("verify", out),
        ("wait", out),
        ("clean", folder / "cache", "--older-than", "0"),
        ("export", out, "--to", "hf://me/packed", "--dry-run"),
    ]
    return [
        *looking,
        *((*command, "--json") for command in looking if command[0] in ("plan", "report", "diff", "verify")),
        ("inspect", out, "--id", text),
        ("verify", out, "--repair", config),
        ("verify", folder / text.replace("/", "")),
        ("clean", folder / text.replace("/", "")),
        ("run", f"{text}.yaml"),
        ("run", config, text),
        ("run", config, "--set", f"{text}=1"),
        ("run", config, "--set", f"sources.0.name={text}"),
        ("run", config, "--set", f"sources.0.format={text}"),
        ("run", config, "--set", f"tokenizer.path={text}"),
        ("run", config, f"--{text}"),
        ("train", f"{text}.yaml"),
        ("loader", text),
        ("eval-apps", text, "--data", text, "--out", folder / "results"),
        (text,),
    ]


def test_no_command_prints_control(made: Callable[[str], Path]) -> None:
    folder = made(EVIL)
    shown = values = 0
    for command in commands(folder, EVIL):
        done = cli(*command)
        assert done.code in (0, 1, 2), (command, done)
        assert done.out + done.err, command
        assert not ACTIVE.search(done.out + done.err), (command, done)
        if "--json" in command:
            assert done.out.isascii(), command
            values += done.code == 0 and json.loads(done.out) is not None
        else:
            shown += "\\u202eevil" in done.out + done.err
    assert shown > 20
    assert values >= 4
    one = cli("inspect", output(folder), "--id", "1").out
    assert "[red]:smile:[red]" in one, "markup of rich is text"


SCRIPT = re.compile(r"<script(?! type=.application/json)[^>]*>.*?</script>", re.DOTALL)
"""Of a page's own."""
TEXTS = ("*.html", "README.md", "report.json", "rejects.jsonl", "contamination.jsonl")


def test_no_file_that_is_looked_at_holds_control(made: Callable[[str], Path]) -> None:
    folder = made(EVIL)
    files = [path for pattern in TEXTS for path in output(folder).glob(pattern)]
    assert len(files) >= 4
    for path in files:
        text = SCRIPT.sub("", path.read_text(encoding="utf-8"))
        assert "u202eevil" in text or path.suffix == ".md", path
        assert not ACTIVE.search(text), path


class Elements(HTMLParser):
    """The elements of a page and their attributes, and what would be fetched or run."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.kinds: set[tuple[str, str | None]] = set()
        self.active: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.kinds |= {(tag, None), *((tag, name) for name, _ in attrs)}
        for name, value in attrs:
            if name.startswith("on") or (name in ("src", "href", "action") and not (value or "").startswith("#")):
                self.active.append(f"{tag} {name}={value}")


@pytest.mark.parametrize("text", [MARKUP, EVIL])
def test_a_text_makes_no_element_of_a_page(made: Callable[[str], Path], text: str) -> None:
    plain, hostile = (
        Elements((output(made(one)) / "report.html").read_text(encoding="utf-8")) for one in (HARMLESS, text)
    )
    assert hostile.kinds <= plain.kinds
    assert not [one for one in hostile.active if re.search("=(?!file:///).*(__pwned|evil.example)", one)]
    assert not any(re.match(r"\w+ (on|src|action)", one) for one in hostile.active)
    assert Counter(one.split("=")[0] for one in hostile.active) == Counter(one.split("=")[0] for one in plain.active)


def test_a_text_makes_no_element_of_a_card(made: Callable[[str], Path]) -> None:
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])

    def shape(text: str) -> Counter[str]:
        card = (output(made(text)) / "README.md").read_text(encoding="utf-8")
        tokens = parser.parse(card.partition("\n---\n")[2])
        every = [token for one in tokens for token in (one, *(one.children or []))]
        return Counter(token.type for token in every if token.type not in ("text", "text_special", "softbreak"))

    assert shape(MARKUP) == shape(HARMLESS)
    assert shape(EVIL) == shape(HARMLESS)


# Terminals


@pytest.fixture
def shown(made: Callable[[str], Path], warm_program: Path) -> Callable[..., str]:
    """What appears in a terminal: `shown("inspect", out, NO_COLOR="1")`."""

    def show(*words: object, **environment: str) -> str:
        code, seen = in_terminal([warm_program, *words], made(EVIL), environment)
        assert code in (0, 2), seen
        return seen

    return show


def test_colours_are_the_only_control_in_a_terminal(made: Callable[[str], Path], shown: Callable[..., str]) -> None:
    coloured = shown("inspect", output(made(EVIL)), "--row", "0")
    left = COLOURS.sub("", coloured).replace("\r\n", "\n")
    assert not ACTIVE.search(left)
    assert "\\x1b[2J\\u202eevil" in left.replace("\n", "")
    assert re.search("\x1b\\[[0-9;]*32myes", coloured), "what is trained is green"
    assert "⟦" not in coloured
    failed = shown("run", f"{EVIL}.yaml")
    assert not ACTIVE.search(COLOURS.sub("", failed).replace("\r\n", "\n"))


@pytest.mark.slow
def test_a_dumb_terminal_gets_plain_lines(made: Callable[[str], Path], shown: Callable[..., str]) -> None:
    folder = made(EVIL)
    plain = shown("run", folder / "config.json", "--out", folder / "dumb", "--set", "run.workers=1", TERM="dumb")
    assert not ACTIVE.search(plain.replace("\r\n", "\n"))
    assert "is finished: " in " ".join(plain.split())


# Outputs that cannot be written


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", ["report {out}", "inspect {out}", "verify {out} --json", "schema", "--help"])
def test_a_lost_output_is_said_in_a_line(made: Callable[[str], Path], warm_program: Path, words: str) -> None:
    out = str(output(made(HARMLESS))).replace(" ", "\\ ")
    line = f"{warm_program} {words.format(out=out)}"
    script = f"{line} > /dev/full; echo $? >&2; ({line}; echo $? >&2) | true"
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stderr
    assert "standard output cannot be written (No space left on device)" in said
    assert re.search(r"\n1\n(141|0)\n$", said), "a reader that has left is told nothing"
    assert said.count("\n") == 3


@pytest.mark.slow
def test_streams_that_are_closed(made: Callable[[str], Path]) -> None:
    program, out = Path(sys.executable).with_name("packtrain"), str(output(made(HARMLESS))).replace(" ", "\\ ")
    script = f"{program} wait {out} >&-; echo $?; {program} wait {out} <&- >&- 2>&-; echo $?"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n0\n", "")
