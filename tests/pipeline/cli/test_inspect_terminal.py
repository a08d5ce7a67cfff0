"""Inspect by id in a terminal and in a pipe: colours or marks, and data with escape sequences."""

import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packtrain as package
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.escape import escape, escape_line

from tests.support.terminal import in_terminal

SGR = re.compile("\x1b\\[[0-9;]*m")
"""The escape sequences of colours, the only ones that may reach a terminal."""
HOSTILE = "\x1b]0;owned\x07 \x1b[2J \x9b31m \r over \x08\x08\x7f [red]no markup[/red] \u202ex :smile: \u2066x\u2069"


def test_inert_by_eye() -> None:
    assert escape("a\tb\nc") == "a\tb\nc"
    assert escape("\x1b[31m\r\x00\x7f\x9b") == "\\x1b[31m\\x0d\\x00\\x7f\\x9b"
    assert escape("\u202eabc\u2066\U000e0041\ufeff") == "\\u202eabc\\u2066\\U000e0041\\ufeff"
    assert escape("می‌خواهم 👩‍👩‍👧 über") == "می‌خواهم 👩‍👩‍👧 über"
    assert escape_line("a\nb\tc") == "a\\nb\\tc"


@given(st.text(st.characters()))
def test_nothing_inert_is_a_control_character(text: str) -> None:
    for character in escape(text):
        assert character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
        assert unicodedata.bidirectional(character) not in (
            "RLO",
            "LRO",
            "RLE",
            "LRE",
            "PDF",
            "RLI",
            "LRI",
            "FSI",
            "PDI",
        )
    assert escape(escape(text)) == escape(text)
    escape(text).encode()


@pytest.fixture
def hostile(make_tokenizer: Callable[..., Path], new_cache: Callable[[Path], Path], tmp_path: Path) -> Path:
    """A dataset whose texts, roles, tools and file's name are hostile."""
    tokenizer = make_tokenizer("tiny")
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / "bad\x1b[31mname.jsonl"
    rows: list[dict[str, Any]] = [
        {
            "messages": [
                {"role": "user", "content": HOSTILE},
                {"role": "assistant", "content": f"yes {HOSTILE}", HOSTILE: HOSTILE},
            ],
            "tools": [{"type": "function", "function": {"name": HOSTILE}}],
            HOSTILE: HOSTILE,
        },
        {"messages": [{"role": HOSTILE}]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    package.run(
        {
            "out": str(tmp_path / "out"),
            "cache": str(new_cache(tokenizer)),
            "tokenizer": {"path": str(tokenizer), "allow_lost": ["tools"], "engine": "tokenizers"},
            "sources": [{"name": "s", "format": "messages", "path": str(path)}],
            "truncate": {"max_length": 4096},
            "run": {"workers": 1, "report": False},
        }
    )
    return tmp_path / "out"


ID = "s/bad\x1b[31mname:1"


@pytest.fixture
def shown(hostile: Path, warm_program: Path) -> Callable[..., str]:
    """What `inspect` shows of the hostile dataset in a terminal: `shown("--row", "0", NO_COLOR="1")`."""

    def show(*options: str, **environment: str) -> str:
        code, seen = in_terminal([warm_program, "inspect", hostile, *options], hostile.parent, environment)
        assert code == 0
        return seen

    return show


def is_inert(shown: str) -> None:
    """The only control characters left are line ends, tabs and colours."""
    left = SGR.sub("", shown).replace("\r\n", "\n")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", left)
    assert "\\x1b[2J" in left
    assert ":smile:" in left
    assert "\\u202ex" in left


def test_colours_in_a_terminal(shown: Callable[..., str]) -> None:
    coloured = shown("--id", ID, "--full")
    is_inert(coloured)
    assert "⟦" not in coloured
    assert re.search("\x1b\\[1;4;32myes", coloured), "what the assistant says is green, and trained"
    assert re.search("\x1b\\[2m<\\|im_start\\|>user", coloured), "what is asked is dim"
    assert re.search("\x1b\\[1;4;35m<\\|im_end\\|>", coloured), "the end of the turn has its own colour"
    is_inert(shown("--row", "0"))


def test_marks_in_a_pipe_and_where_nobody_wants_colour(
    hostile: Path, program: Callable[..., Any], shown: Callable[..., str]
) -> None:
    done = program("inspect", hostile, "--id", ID, "--full")
    assert done.code == 0
    piped = done.out
    is_inert(piped)
    assert "\x1b" not in piped
    _head, _, text = piped.partition("3 its text")
    body = text.partition("4 its")[0].split("not trained\n", 1)[1]
    marked = "".join(re.findall("⟦(.*?)⟧", body, re.DOTALL))
    assert marked.startswith("yes \\x1b]0;owned\\x07")
    assert marked.endswith("<|im_end|>\n")
    assert "yes" not in re.sub("⟦.*?⟧", "", body, flags=re.DOTALL), "only what is trained has marks, and all of it"
    plain = shown("--id", ID, "--full", NO_COLOR="1")
    is_inert(plain)
    assert "⟦yes" in plain
    assert not re.search("\x1b\\[[0-9;]*3[0-7]m", plain), "no colour at all"
    row = shown("--row", "0", NO_COLOR="1")
    assert "⟦" in row
    is_inert(program("inspect", hostile, "--row", "0").out)


def test_json_is_ascii_and_whole(hostile: Path, program: Callable[..., Any]) -> None:
    done = program("inspect", hostile, "--id", ID, "--json")
    assert done.code == 0
    assert done.out.isascii()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f]", done.out)
    story = json.loads(done.out)
    assert story["source"]["row"]["messages"][0]["content"] == HOSTILE
    assert story["example"]["messages" if "messages" in story["example"] else "prompt"]
    assert "".join(span["text"] for span in story["text"]["spans"]).count(HOSTILE) == 2
    assert story["text"]["checks"]
    assert all(check["agrees"] for check in story["text"]["checks"])
    assert [token["index"] for token in story["tokens"]] == list(range(story["outcome"]["tokens"]))
    (piece,) = story["outcome"]["pieces"]
    assert piece["trained"] == sum(token["fate"] == "trained" for token in story["tokens"])
    rejected = json.loads(program("inspect", hostile, "--id", ID.replace(":1", ":2"), "--json").out)
    assert rejected["outcome"]["state"] == "rejected"


def test_what_is_shortened(hostile: Path, packtrain: Callable[..., Any]) -> None:
    narrow = packtrain("inspect", hostile, "--doc", "0", "--width", "20").out
    whole = packtrain("inspect", hostile, "--doc", "0", "--full").out
    assert "characters more" in narrow
    assert "characters more" not in whole
    assert re.search(r"… \d+ more …", narrow)
    assert len(narrow) < len(whole)
