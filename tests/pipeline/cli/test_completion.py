"""Shell completion: what a shell is answered at a press of Tab."""

import subprocess
import sys
from pathlib import Path

import pytest


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
        (("export", "packed", "--to", "m"), {"megatron-bridge", "megatron", "mds", "model"}),
        (("exp",), {"export", "explain-loss"}),
    ],
)
def test_a_tab(words: tuple[str, ...], offered: set[str]) -> None:
    assert set(completed(*words)) == offered


def test_a_tab_for_a_training() -> None:
    pytest.importorskip("torch")
    assert set(completed("train", "--set", "loader.or")) == {"loader.order="}
    assert "fsdp2" in completed("train", "--recipe", "f")
