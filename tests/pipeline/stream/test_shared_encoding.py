"""A cache that several streams share: they divide the work."""

import json
import signal
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests import kit
from tests.support import warm

# Says how many bytes this process encoded itself, block by block, and a digest of the rows it was given.
WALKER = """
import hashlib, json, signal, sys
from packtrain.pipeline.stream.stream import LiveWindows
from packtrain.pipeline.observer import Silent

class Counting(Silent):
    encoded = []
    def advance(self, done, rows=0, tokens=0):
        self.encoded.append(done)
        print("encoded", flush=True)

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
config, window_bytes, share = json.loads(sys.argv[1]), int(sys.argv[2]), (int(sys.argv[3]), 2)
windows = LiveWindows(config, window_bytes=window_bytes, workers=1, share=share, observer=Counting())
print("ready", flush=True)
signal.sigwait({signal.SIGUSR1})
digest = hashlib.sha256()
for window in windows.walk(0, 0, 1):
    digest.update(str(window.lay_out(0, window.rows).to_pydict()).encode())
windows.close()
print(json.dumps({"encoded": Counting.encoded, "digest": digest.hexdigest()}), flush=True)
"""


def start_walker(config: dict[str, Any], window_bytes: int, number: int) -> warm.Process:
    """A process that has everything ready and waits for a signal to begin."""
    walker = warm.Process(["python", "-c", WALKER, json.dumps(config), window_bytes, number])
    assert walker.stdout.readline() == "ready\n"
    return walker


def begin(walker: warm.Process) -> None:
    """Let it begin."""
    walker.send_signal(signal.SIGUSR1)


def finish(walker: warm.Process) -> dict[str, Any]:
    """What it says at the end."""
    out, _ = walker.communicate(timeout=600)
    assert walker.returncode == 0
    said: dict[str, Any] = json.loads(out.splitlines()[-1])
    return said


@pytest.fixture
def many_blocks(tmp_path: Path) -> dict[str, Any]:
    """A configuration of 24 blocks that take a while, and a cache that holds none of them."""
    rows = ({"text": f"{number} " + "some words and more " * 40} for number in range(2400))
    files = [tmp_path / f"{number}.jsonl" for number in range(24)]
    paths = [str(kit.write(file, list(islice(rows, 100)))) for file in files]
    source = {"name": "rows", "format": "text", "path": paths}
    return kit.configure(tmp_path, source, tokenizer={"engine": "tokenizers"})


@pytest.mark.slow
def test_two_processes_divide_the_blocks(many_blocks: dict[str, Any]) -> None:
    walkers = [start_walker(many_blocks, 10**9, number) for number in range(2)]
    for walker in walkers:
        begin(walker)
    said = [finish(walker) for walker in walkers]
    sizes = sorted(path.stat().st_size for path in map(Path, many_blocks["sources"][0]["path"]))
    assert sum(map(len, (one["encoded"] for one in said))) < 2 * len(sizes), "each did everything: they did not share"
    assert said[0]["digest"] == said[1]["digest"]
    assert len(list((Path(many_blocks["cache"]) / "encoded").rglob("*.arrow"))) == len(sizes)
