"""The fork server loads an engine once, for all workers."""

import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
from packtrain.pipeline.encode.engine_before_fork import load
from packtrain.pipeline.encode.task import load_engine
from packtrain.pipeline.encode.tokenizer import TokenizerLoading, TokenizerSpec
from packtrain.pipeline.execute.local import LocalExecutor
from packtrain.stages.tokenize.engines import STARTS_NO_THREAD

pytest.importorskip("fastokens")


@pytest.fixture
def stored(tiny_tokenizer: Path, tmp_path: Path) -> tuple[Path, TokenizerSpec]:
    """The file of what transformers answered about a tokenizer, and the tokenizer."""
    with TokenizerLoading.start(tiny_tokenizer, cache=tmp_path) as loading:
        tokenizer = loading.result()
        assert loading.stored is not None
        return loading.stored, tokenizer


@pytest.fixture
def fresh_server() -> Iterator[None]:
    """No fork server runs before the test, nor after it."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("fresh_server")
@pytest.mark.parametrize(("engine", "found"), [("fastokens", True), ("tokenizers", False)])
def test_workers_are_forked_with_the_engine(engine: str, found: bool, stored: tuple[Path, TokenizerSpec]) -> None:
    path, tokenizer = stored
    executor = LocalExecutor(1)
    executor.get_ready((engine, path))
    try:
        (loaded,) = executor.map(is_loaded, [(engine, tokenizer.json)])
    finally:
        executor.close()
    assert loaded is found
    assert os.environ.keys().isdisjoint(("PACKTRAIN_FORK_SERVER_ENGINE", "PACKTRAIN_FORK_SERVER_TOKENIZER"))


def is_loaded(task: tuple[str, str]) -> bool:
    """Whether this worker has the engine already."""
    hits = load_engine.cache_info().hits
    load_engine(*task)
    return load_engine.cache_info().hits > hits


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("engine", sorted(STARTS_NO_THREAD))
def test_loading_it_starts_no_thread(engine: str, stored: tuple[Path, TokenizerSpec]) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom packtrain.pipeline.encode import engine_before_fork as module\n"
        "from packtrain.pipeline.encode.task import load_engine\n"
        "before = len(os.listdir('/proc/self/task'))\nmodule.load(sys.argv[1], Path(sys.argv[2]))\n"
        "assert load_engine.cache_info().currsize == 1\nprint(len(os.listdir('/proc/self/task')) - before)"
    )
    command = [sys.executable, "-c", code, engine, str(stored[0])]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0\n"


def test_a_damaged_answer_loads_nothing(stored: tuple[Path, TokenizerSpec]) -> None:
    path, _ = stored
    path.write_bytes(path.read_bytes()[:-100])
    before = load_engine.cache_info()
    load("fastokens", path)
    load("fastokens", path.with_name("absent.json"))
    assert load_engine.cache_info() == before
