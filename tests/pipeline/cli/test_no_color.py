"""Colours: none where they are invisible or unwanted, and no information in colour alone."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.terminal import in_terminal

Shown = Callable[..., str]
COLOUR = re.compile(r"\x1b\[[0-9;]*?(?:3[0-9]|4[0-9]|9[0-7]|10[0-7])[0-9;]*m")
"""An escape sequence that sets a colour, not bold or dim."""
ESCAPE = re.compile(r"\x1b")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("workplace")]

LINES = (
    "run mix.yaml --out coloured --workers 1", "inspect packed --row 1", "inspect packed --id chats/chats:3",
    "verify packed", "report packed", "diff packed packed-2k", "run no.yaml", "nosuch",
)  # fmt: skip


@pytest.fixture(scope="module")
def here(workplace: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the workplace, so that these tests do not disturb each other."""
    folder: Path = workplace.copy(tmp_path_factory.mktemp("colours"))
    return folder


@pytest.fixture
def shown(here: Path, warm_program: Path) -> Shown:
    """What appears in a terminal: `shown("inspect packed", NO_COLOR="1")`."""
    return lambda line, **environment: in_terminal([warm_program, *line.split()], here, environment)[1]


def test_no_colour_where_nobody_wants_it(shown: Shown) -> None:
    """All commands in a terminal with NO_COLOR; and some without it, so that the test would see a colour."""
    for line in LINES:
        assert not COLOUR.search(shown(line, NO_COLOR="1")), line
    coloured = shown("inspect packed --row 1")
    assert COLOUR.search(coloured)
    assert "⟦" not in coloured
    assert "⟦" in shown("inspect packed --row 1", NO_COLOR="1"), "what was green has marks"


def test_a_dumb_terminal_gets_plain_lines(shown: Shown) -> None:
    plain = shown("run mix.yaml --out dumb --workers 1", TERM="dumb")
    assert not ESCAPE.search(plain)
    assert "━━ " not in plain.partition("Ledger")[0], "no bar"
    assert "is finished: " in plain


def test_a_pipe_gets_no_escapes_unless_they_are_forced(here: Path, warm_program: Path) -> None:
    def piped(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
        drop = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
        plain = {key: value for key, value in os.environ.items() if key not in drop} | environment
        command = [str(warm_program), *line.split()]
        return subprocess.run(command, cwd=here, env=plain, capture_output=True, text=True, check=True)

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


EACH = """
import sys
from packtrain.pipeline.cli.main import main
for line in sys.argv[1:]:
    sys.argv = ["packtrain", *line.split()]
    try:
        main()
    except SystemExit:
        print(line, "has ended")
"""
"""Commands one after the other in one process, which imports torch once."""


def test_the_training_module_honours_it(here: Path, warm_program: Path) -> None:
    pytest.importorskip("torch")
    lines = ("doctor", "probe path/to/model --tiny --attention eager", "loader packed --steps 2 --rows-per-step 4")
    _, plain = in_terminal([warm_program, "python", "-c", EACH, *lines], here, {"NO_COLOR": "1"})
    assert plain.count("has ended") == len(lines)
    assert not COLOUR.search(plain)
    assert "Traceback" not in plain
