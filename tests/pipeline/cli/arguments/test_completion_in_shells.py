"""Completion as zsh and fish have it once it is installed: what the line holds after Tab is pressed."""

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
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
BIN = Path(sys.executable).parent
GROWS = {
    "packtrain ins": "packtrain inspect ",
    "packtrain run --exec": "packtrain run --executor ",
    "packtrain run --executor l": "packtrain run --executor local ",
    "packtrain run --set pack.max_d": "packtrain run --set pack.max_docs=",
    "packtrain run --set pack.strategy=wr": "packtrain run --set pack.strategy=wrapped ",
    "packtrain train --set loader.order=b": "packtrain train --set loader.order=blocks ",
    "packtrain run mix.yaml --set seed=3 --dry": "packtrain run mix.yaml --set seed=3 --dry-run ",
    "packtrain run mixt": "packtrain run mixture.yaml ",
    "packtrain plan --tokenizer tok": "packtrain plan --tokenizer tokenizer/",
    "packtrain verify pack": "packtrain verify packed-here/",
}
"""A line → the line after Tab, if there is only one completion."""
OFFERED = {
    "packtrain run --executor ": ["local", "ray", "static"],
    "packtrain run --set pack.strategy=bfd": ["pack.strategy=bfd", "pack.strategy=bfd_split"],
    "packtrain run --set truncate.max_l": ["truncate.max_length=", "truncate.max_length=2048"],
    "packtrain launch slurm-": ["slurm-node", "slurm-nodes"],
}


def installed(shell: str, tmp_path: Path, program: Path) -> tuple[str, dict[str, str]]:
    """The shell, and an environment in whose home completion is installed; the folder has a file and two folders."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"there is no {shell}")
    home = tmp_path / "home"
    home.mkdir()
    for folder in ("here/tokenizer", "here/packed-here"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "here/mixture.yaml").touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "ZDOTDIR"))}
    environment |= {"HOME": str(home), "PATH": f"{program.parent}:{os.environ['PATH']}", "TERM": "dumb"}
    disabled = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [str(BIN / "packtrain"), "--install-completion", shell]
    subprocess.run(command, env=environment | disabled, capture_output=True, check=True)
    return path, environment


def test_fish(tmp_path: Path, warm_program: Path) -> None:
    fish, environment = installed("fish", tmp_path, warm_program)
    lines = [*GROWS, *OFFERED]
    asked = "\n".join(f'echo "== {line}"; complete -C "{line}"' for line in lines)
    done = subprocess.run([fish, "-c", asked], cwd=tmp_path / "here", env=environment, capture_output=True, text=True,
                          check=True)  # fmt: skip
    assert done.stderr == ""
    said = dict(re.findall(r"^== (.*)\n((?:(?!== ).*\n)*)", done.stdout, re.MULTILINE))
    offers = {line: sorted(one.split("\t")[0] for one in said[line].splitlines()) for line in lines}
    for line, after in GROWS.items():
        word = after.removesuffix(" ").rpartition(" ")[2]
        # Fish offers a key with its default, too, and completes as far as they agree.
        assert min(offers[line]) == word, line
        assert all(offer.startswith(word) for offer in offers[line])
    assert {line: offers[line] for line in OFFERED} == OFFERED


def test_zsh(tmp_path: Path, warm_program: Path) -> None:
    zsh, environment = installed("zsh", tmp_path, warm_program)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 150, 0, 0))
    shell = subprocess.Popen(
        [zsh, "-i"], cwd=tmp_path / "here", env=environment | {"PS1": "$ "}, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)

    def until(*wanted: str) -> str:
        seen, end = "", time.monotonic() + 60
        while not all(what in seen for what in wanted) and time.monotonic() < end:
            if select.select([ours], [], [], 0.2)[0]:
                seen += os.read(ours, 65536).decode().replace("\a", "")
        assert all(what in seen for what in wanted), (wanted, seen)
        return seen

    try:
        os.write(ours, b"PS1='$ '; unset zle_bracketed_paste; echo rea''dy\n")
        until("ready\r\n")
        for line, after in GROWS.items():
            os.write(ours, f"{line}\t".encode())
            until(after)
            os.write(ours, b"\x15")  # the line away
        for line, offers in OFFERED.items():
            os.write(ours, f"{line}\t\t".encode())
            until(*offers)
            os.write(ours, b"\x15")
        os.write(ours, b"exit\n")
        shell.wait(20)
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)
