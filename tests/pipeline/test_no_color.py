"""Colours: none where nobody sees them or wants them, and nothing that only colour says."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
PROGRAM = str(Path(sys.executable).parent / "packtrain")
COLOUR = re.compile(r"\x1b\[[0-9;]*?(?:3[0-9]|4[0-9]|9[0-7]|10[0-7])[0-9;]*m")
"""An escape sequence that sets a colour; bold and dim are none."""
ESCAPE = re.compile(r"\x1b")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("workplace")]

LINES = (
    "run mix.yaml --out coloured --workers 1", "inspect packed --row 1", "inspect packed --id chats/chats:3",
    "verify packed", "report packed", "diff packed packed-2k", "run no.yaml", "nosuch",
)  # fmt: skip


def in_terminal(line: str, cwd: Path, **environment: str) -> str:
    """What appears in a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    drop = ("NO_COLOR", "FORCE_COLOR", "CI", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM")
    plain = {key: value for key, value in os.environ.items() if key not in drop}
    plain |= {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"} | environment
    process = subprocess.Popen(
        [PROGRAM, *line.split()], cwd=cwd, env=plain, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    process.wait(120)
    return seen.decode()


@pytest.fixture(scope="module")
def here(workplace: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the workplace, in which nothing of these tests is in the way of another."""
    folder: Path = workplace.copy(tmp_path_factory.mktemp("colours"))
    return folder


def test_no_colour_where_nobody_wants_it(here: Path) -> None:
    """All commands in a terminal with NO_COLOR; and some without it, so that the test would see a colour."""
    for line in LINES:
        assert not COLOUR.search(in_terminal(line, here, NO_COLOR="1")), line
    shown = in_terminal("inspect packed --row 1", here)
    assert COLOUR.search(shown)
    assert "⟦" not in shown
    assert "⟦" in in_terminal("inspect packed --row 1", here, NO_COLOR="1"), "what was green has marks"


def test_a_dumb_terminal_gets_plain_lines(here: Path) -> None:
    shown = in_terminal("run mix.yaml --out dumb --workers 1", here, TERM="dumb")
    assert not ESCAPE.search(shown)
    assert "━━ " not in shown.partition("Ledger")[0], "no bar"
    assert "is finished: " in shown


def test_a_pipe_gets_no_escapes_unless_they_are_forced(here: Path) -> None:
    def piped(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
        drop = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
        plain = {key: value for key, value in os.environ.items() if key not in drop} | environment
        return subprocess.run([PROGRAM, *line.split()], cwd=here, env=plain, capture_output=True, text=True, check=True)

    done = piped("inspect packed --row 1")
    assert not ESCAPE.search(done.stdout + done.stderr)
    forced = piped("inspect packed --row 1", FORCE_COLOR="1", TERM="xterm-256color")
    assert COLOUR.search(forced.stdout)
    # Colours were asked for, and not a bar that is drawn over and over into a log.
    run = piped("run mix.yaml --out forced --workers 1", FORCE_COLOR="1", TERM="xterm-256color")
    assert COLOUR.search(run.stdout)
    assert not re.search(r"\x1b\[(?:\?25l|\d*[AK])", run.stdout + run.stderr), "no cursor is moved or hidden"
    # NO_COLOR wins over FORCE_COLOR.
    assert not COLOUR.search(piped("inspect packed --row 1", FORCE_COLOR="1", NO_COLOR="1").stdout)


@pytest.mark.slow
def test_the_training_module_honours_it(here: Path) -> None:
    pytest.importorskip("torch")
    for line in ("doctor", "probe path/to/model --tiny --attention eager", "loader packed --steps 2 --rows-per-step 4"):
        assert not COLOUR.search(in_terminal(line, here, NO_COLOR="1")), line
        assert "Traceback" not in in_terminal(line, here), line
