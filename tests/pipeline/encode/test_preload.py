"""The process that workers are forked from loads the run's tokenizer before it forks."""

import os
import subprocess
import sys
from pathlib import Path

from packtrain.pipeline.encode import preload
from packtrain.pipeline.execute.pool import SERVER_ENVIRONMENT

from tests import kit

LOADED = f"""
import {preload.__name__}
from packtrain.stages.tokenize.engines import load_engine, reference_tokenizer

print(load_engine.cache_info().currsize + reference_tokenizer.cache_info().currsize)
"""


def test_the_server_loads_both_engines(tmp_path: Path) -> None:
    kit.packed(kit.configure(tmp_path, "chats"))
    environ = os.environ | SERVER_ENVIRONMENT
    done = subprocess.run([sys.executable, "-c", LOADED], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"
