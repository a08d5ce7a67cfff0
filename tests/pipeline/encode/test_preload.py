"""The process that workers are forked from loads the run's tokenizer, so that none of them has to."""

import subprocess
import sys
from pathlib import Path

import yaml

from tests import kit

SCRIPT = """
import sys

import packtrain
from packtrain.pipeline.execute.pool import Pool

packtrain.run(sys.argv[1], quiet=True)
pool = Pool(1)
engines = "__import__('sys').modules['packtrain.stages.tokenize.engines']"
print(*pool.map(eval, [f"{engines}.load_engine.cache_info().currsize"]))
pool.close()
"""


def test_a_worker_starts_with_the_engine(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(kit.configure(tmp_path, "chats")))
    done = subprocess.run([sys.executable, "-c", SCRIPT, config], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
