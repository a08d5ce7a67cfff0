"""Shell completion: what a shell is answered at a press of Tab."""

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from packtrain.pipeline.cli.completion import config_keys

from tests.support import warm

PROMPT = "ready>"
POLICIES = ("completion", "assistant", "last_assistant", "all")


def completed(*words: str) -> list[str]:
    """What bash is offered for the last word."""
    line = ["packtrain", *words]
    environment = {"COMP_WORDS": "\n".join(line), "COMP_CWORD": str(len(line) - 1)}
    done = warm.run((), env={"_PACKTRAIN_COMPLETE": "complete_bash", **environment})
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        # Two words for one key: bash would write a space after a single one.
        (("run", "--set", "truncate.max_l"), {"truncate.max_length=", "truncate.max_length=VALUE"}),
        (("run", "--set", "sources.0.for"), {"sources.0.format=", "sources.0.format=VALUE"}),
        (("run", "--set", "mask.policy="), {f"mask.policy={one}" for one in POLICIES}),
        (("run", "--set", "mask.policy=as"), {"mask.policy=assistant"}),
        (("plan", "--set", "mask=l"), {"mask=last_assistant"}),
        (("run", "--set", "pack.shuffle="), {"pack.shuffle=true", "pack.shuffle=false"}),
        (("run", "--set", "sources.3.format=pre"), {"sources.3.format=preference"}),
        (("run", "--set", "sources.3.style="), {"sources.3.style=plain", "sources.3.style=chat"}),
        (
            ("run", "--set", "tokenizer.allow_lost=to"),
            {f"tokenizer.allow_lost=to{end}" for end in ("ol_calls", "ol_results", "ols")},
        ),
        (("run", "--set", "truncate.max_length="), set()),
        (("run", "--set", "nosuch.key="), set()),
        # As bash hands it over, for which `=` ends a word.
        (("run", "--set", "mask.policy", "="), set(POLICIES)),
        (("run", "--set", "mask.policy", "=", "as"), {"assistant"}),
        (("run", "mix.yaml", "--set", "pack.shuffle", "=", "f"), {"false"}),
        (("run", "--mask", "l"), {"last_assistant"}),
        (("prep", "--format", "pre"), {"preference"}),
        (("export", "packed", "--to", "m"), {"megatron-bridge", "megatron", "mds", "ms-swift", "model"}),
        (("exp",), {"export", "explain-loss"}),
    ],
)
def test_a_tab(words: tuple[str, ...], offered: set[str]) -> None:
    assert set(completed(*words)) == offered


SETTINGS = [
    ("packtrain run --set pack.stra", {"pack.strategy="}),
    ("packtrain run --set mask=l", {"mask=last_assistant"}),
    ("packtrain run --mask ", set(POLICIES)),
]


@pytest.mark.parametrize(("line", "offered"), SETTINGS)
def test_zsh_is_offered_whole_settings(line: str, offered: set[str]) -> None:
    """What its completion function evaluates."""
    done = subprocess.run(
        [Path(sys.executable).parent / "packtrain"], capture_output=True, text=True, check=True,
        env={"_PACKTRAIN_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line},
    )  # fmt: skip
    assert set(re.findall(r'"(.*?)"', done.stdout)) == offered


def zsh_home(home: Path) -> dict[str, str]:
    """Install the completion for zsh in a home folder; the environment of a shell there."""
    program = Path(sys.executable).parent / "packtrain"
    # typer would detect the shell that runs the tests.
    environment = {"HOME": str(home), "PATH": f"{program.parent}:/usr/bin:/bin"}
    subprocess.run(
        [program, "--install-completion", "zsh"], check=True, capture_output=True,
        env=environment | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )  # fmt: skip
    return environment


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.parametrize(("line", "offered"), SETTINGS)
def test_fish_is_offered_whole_settings(line: str, offered: set[str], tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # typer would detect the shell that runs the tests.
    home = {"HOME": str(tmp_path), "PATH": path, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    subprocess.run(
        ["packtrain", "--install-completion", "fish"], check=True, capture_output=True, env=os.environ | home
    )
    done = subprocess.run(
        ["fish", "-c", f"complete -C '{line}'"], check=True, capture_output=True, text=True, env=os.environ | home
    )
    assert set(done.stdout.split()) == offered


def test_a_tab_for_a_training() -> None:
    pytest.importorskip("torch")
    assert "attention=sdpa" in completed("train", "--set", "attention=")
    assert set(completed("train", "--set", "trainer.bf16=")) <= {"trainer.bf16=true", "trainer.bf16=false"}
    assert set(completed("train", "--set", "loader.or")) == {"loader.order=", "loader.order=VALUE"}
    assert "fsdp2" in completed("train", "--recipe", "f")


def typed(shell: list[object], line: str, expected: Sequence[str], cwd: Path, environment: dict[str, str]) -> str:
    """What a shell in a terminal shows once it has a prompt and a line is typed; at the latest, after a minute.

    Args:
        expected: when all of these have appeared, nothing more is waited for.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 100, 120, 0, 0))  # room for all keys at once
    process = subprocess.Popen(
        [str(word) for word in shell], stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd,
        env={"TERM": "dumb", "PS1": f"{PROMPT} ", **environment}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    end = time.monotonic() + 60
    shown = ""
    is_typed = False
    while time.monotonic() < end and not (is_typed and all(words in shown for words in expected)):
        if select.select([ours], [], [], 0.5)[0]:
            # Without the bell, with which bash says that there is more to type.
            shown += os.read(ours, 4096).decode(errors="replace").replace("\a", "")
        elif PROMPT in shown and not is_typed:  # half a second of silence: the shell reads its keys by itself now
            shown = ""
            is_typed = True
            os.write(ours, line.encode())
    process.kill()
    process.wait()
    os.close(ours)
    return shown


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("packtrain run --set mask.policy=last\t", "mask.policy=last_assistant"),
        # A value is written next to the key, without a space.
        ("packtrain run --set truncate.max_l\t512", "packtrain run --set truncate.max_length=512"),
        ("packtrain run --set pack.stra\tbfd_\t", "packtrain run --set pack.strategy=bfd_split"),
    ],
)
def test_a_tab_in_bash(line: str, expected: str, tmp_path: Path) -> None:
    """What stands on the line after a Tab, in the shell itself."""
    program = Path(sys.executable).parent / "packtrain"
    source = subprocess.run(
        [program], capture_output=True, text=True, check=True, env={"_PACKTRAIN_COMPLETE": "source_bash"}
    ).stdout
    (tmp_path / "rc").write_text(f"PS1='{PROMPT} '\n{source}\n")
    shell: list[object] = ["bash", "--noprofile", "--rcfile", tmp_path / "rc", "-i"]
    environment = {"HOME": str(tmp_path), "PATH": f"{program.parent}:/usr/bin:/bin"}
    assert expected in typed(shell, line, [expected], tmp_path, environment)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("packtrain ru\t", "packtrain run "),
        ("packtrain run --set mask.policy=last\t", "packtrain run --set mask.policy=last_assistant "),
        # A value is written next to the key, without a space.
        ("packtrain run --set pack.stra\tbf\t", "packtrain run --set pack.strategy=bfd"),
        ("packtrain run --set truncate.max_l\t512", "packtrain run --set truncate.max_length=512"),
    ],
)
def test_a_tab_in_zsh(line: str, expected: str, tmp_path: Path) -> None:
    """The first Tab of a shell, after the installation as the documentation names it."""
    environment = zsh_home(tmp_path)
    assert expected in typed(["zsh", "-i"], line, [expected], tmp_path, environment)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_a_tab_in_zsh_lists_every_key(tmp_path: Path) -> None:
    keys = [f"{key}=" for key in config_keys(training=False)]
    shown = typed(["zsh", "-i"], "packtrain run --set \t", keys, tmp_path, zsh_home(tmp_path))
    for key in keys:
        assert key in shown


def test_the_file_for_zsh_is_installed_once(tmp_path: Path) -> None:
    """A second installation gives the same files."""
    zsh_home(tmp_path)
    file = tmp_path / ".zfunc" / "_packtrain"
    text = file.read_text()
    zsh_home(tmp_path)
    assert file.read_text() == text
    assert text.count("loadautofunc") == 1
