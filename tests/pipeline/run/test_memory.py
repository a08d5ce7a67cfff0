"""The whole process tree stays below `run.memory`, or the run is refused at once."""

import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

PROGRAM = Path(sys.executable).parent / "packtrain"
MEBI = 1 << 20
WORDS = [f"{a}{b}" for a in ("mule", "stone", "path", "sun", "train", "load") for b in ("", "s", "ed", "ing", "er")]


def held(process: psutil.Process) -> int:
    """Bytes that a process holds for itself; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss_Anon", "Pss_Shmem")))


def peak_of(command: list[str]) -> tuple[int, str, int]:
    """Exit code, what it said, and the most that it and all its children held at one moment."""
    most = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        root = psutil.Process(running.pid)
        while running.poll() is None:
            try:
                tree = [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                break
            began = time.monotonic()
            most = max(most, sum(map(held, tree)))
            time.sleep(max(0.02, 2 * (time.monotonic() - began)))  # reading it takes a while, where much is held
        assert running.stdout is not None
        said = running.stdout.read()
    return running.returncode, said, most


@pytest.mark.slow
def test_a_long_row_is_refused_with_the_memory_that_would_do_and_fits_into_it(
    tmp_path: Path, tiny_tokenizer: Path
) -> None:
    """Also where the engine check reads the row: it compares only the row's beginning with the reference."""
    data = tmp_path / "long.jsonl"
    chance = random.Random(3)
    data.write_text(json.dumps({"text": " ".join(chance.choices(WORDS, k=1_000_000))}) + "\n" + '{"text": "a b"}\n')
    settings = ("sources.0.format=text", "sources.0.max_row_bytes=64MiB", "truncate.overlong=split", "run.workers=2")
    command = [
        str(PROGRAM),
        "run",
        "--input",
        str(data),
        "--tokenizer",
        str(tiny_tokenizer),
        "--out",
        str(tmp_path / "out"),
    ]
    command += [word for setting in settings for word in ("--set", setting)]
    code, said, most = peak_of([*command, "--set", "run.memory=930MiB"])
    assert code == 2
    least = re.search(r"give it at least ([\d,]+) MiB: .*long\.jsonl, row 1 has about", said)
    assert least is not None, said
    enough = int(least[1].replace(",", ""))
    code, said, most = peak_of([*command, "--set", f"run.memory={enough}MiB"])
    assert code == 0, said
    assert 100 * MEBI < most < enough * MEBI
