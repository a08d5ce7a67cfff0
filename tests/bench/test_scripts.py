"""Every benchmark runs at its smallest size. What it measures is not looked at: that needs an idle machine."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import kit
from tests.support import warm

HERE = Path(__file__).parent
SMALL = {
    "bench_plan.py": "--rows 2000 --fill-rows 500",
    "bench_end_to_end.py": "--copies 1 --runs 1 --memory",
    "bench_branches.py": "--chats 5 --row-length 1024 --hidden 64 --layers 1",
    "bench_pairs.py": "--lengths 256 --batches 4",
    "bench_loader.py": "--tokens 300000 --rounds 1 --moment 0.01",
}


def like_real(folder: Path) -> Path:
    """The files of which `bench_end_to_end.py` knows, with a few rows each and a small tokenizer."""
    kit.write(folder / "apps" / "train.jsonl", kit.corpus("apps", 12))
    kit.write(folder / "apps" / "leetcode_apps_schema.jsonl", kit.corpus("apps", 12, seed=1))
    kit.write(folder / "chat" / "gsm8k_train.jsonl", kit.corpus("chats", 20))
    kit.write(folder / "preference" / "dpo_pairs.jsonl", kit.corpus("choices", 30))
    shutil.copytree(kit.demo_tokenizer(), folder / "tokenizers" / "qwen3")
    return folder


def test_every_script_is_run() -> None:
    assert {path.name for path in HERE.glob("bench_*.py")} == set(SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_script(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"tests.bench.{Path(name).stem}", *SMALL[name].split()]
    environment = {**os.environ, **warm.python(), "PACKTRAIN_REALDATA": str(like_real(tmp_path / "real"))}
    done = subprocess.run(command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "|" in done.stdout, done.stdout
