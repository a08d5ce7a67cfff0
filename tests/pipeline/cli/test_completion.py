"""Shell completion: what a shell is answered at a press of Tab."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

POLICIES = ("completion", "assistant", "last_assistant", "all")


def completed(*words: str) -> list[str]:
    """What bash is offered for the last word."""
    line = ["packtrain", *words]
    done = subprocess.run(
        [Path(sys.executable).parent / "packtrain"], capture_output=True, text=True, check=False,
        env={"_PACKTRAIN_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(line), "COMP_CWORD": str(len(line) - 1)},
    )  # fmt: skip
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("run", "--set", "truncate.max_l"), {"truncate.max_length="}),
        (("run", "--set", "sources.0.for"), {"sources.0.format="}),
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
    assert set(completed("train", "--set", "loader.or")) == {"loader.order="}
    assert "fsdp2" in completed("train", "--recipe", "f")


@pytest.mark.slow
def test_a_tab_in_bash(tmp_path: Path) -> None:
    """What stands on the line after a Tab, in the shell itself."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    program = Path(sys.executable).parent / "packtrain"
    source = subprocess.run(
        [program], capture_output=True, text=True, check=True, env={"_PACKTRAIN_COMPLETE": "source_bash"}
    ).stdout
    (tmp_path / "rc").write_text(f"PS1='$ '\n{source}\n")
    ours, theirs = pty.openpty()
    environment = {"TERM": "dumb", "HOME": str(tmp_path), "PATH": f"{program.parent}:/usr/bin:/bin"}
    shell = subprocess.Popen(
        [bash, "--noprofile", "--rcfile", tmp_path / "rc", "-i"], stdin=theirs, stdout=theirs, stderr=theirs,
        cwd=tmp_path, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, b"packtrain run --set mask.policy=last\t")
    seen = b""
    end = time.monotonic() + 60
    while b"mask.policy=last_assistant" not in seen and time.monotonic() < end:
        if select.select([ours], [], [], 0.5)[0]:
            seen += os.read(ours, 4096)
    shell.kill()
    shell.wait()
    os.close(ours)
    assert b"mask.policy=last_assistant" in seen
