"""The fork server loads an engine once, for all workers."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path

import pytest
from packtrain.pipeline.encode.engine_before_fork import load
from packtrain.pipeline.encode.task import load_engine
from packtrain.pipeline.encode.tokenizer import TokenizerLoading, TokenizerSpec
from packtrain.pipeline.execute.local import LocalExecutor
from packtrain.schemas.errors import TokenizerError
from packtrain.stages.tokenize.engines import STARTS_NO_THREAD

pytest.importorskip("fastokens")


@pytest.fixture
def stored(tiny_tokenizer: Path, tmp_path: Path) -> tuple[Path, TokenizerSpec]:
    """The file of what transformers answered about a tokenizer, and the tokenizer."""
    with TokenizerLoading.start(tiny_tokenizer, cache=tmp_path) as loading:
        tokenizer = loading.result()
        assert loading.at_hand.parent == tmp_path
        return loading.at_hand, tokenizer


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


def likely_right(folder: Path) -> None:
    """Leave the folder as it is."""


def rebuilt(folder: Path) -> None:
    """Name a class that transformers rebuilds: its numbers are single digits, and the folder's are not."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "Qwen2Tokenizer"}))


def cut_short(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.usefixtures("fresh_server")
@pytest.mark.parametrize(("change", "found"), [(likely_right, True), (rebuilt, False), (cut_short, False)])
def test_workers_are_forked_with_the_engine_of_a_folder_if_transformers_says_the_same(
    change: Callable[[Path], None], found: bool, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_tokenizer, tmp_path / "folder"))
    with TokenizerLoading.start(folder) as loading:
        answer = loading.result().json
    change(folder)
    with TokenizerLoading.start(folder) as loading:
        executor = LocalExecutor(1)
        executor.get_ready(("fastokens", loading.at_hand))
        try:
            with suppress(TokenizerError):
                answer = loading.result().json
            (loaded,) = executor.map(is_loaded, [("fastokens", answer)])
        finally:
            executor.close()
    assert loaded is found


@pytest.mark.usefixtures("fresh_server")
def test_a_fork_server_that_dies_while_it_loads_is_replaced(stored: tuple[Path, TokenizerSpec]) -> None:
    executor = LocalExecutor(1)
    executor.get_ready(("fastokens", stored[0]))
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
    try:
        (loaded,) = executor.map(is_loaded, [("fastokens", stored[1].json)])
    finally:
        executor.close()
    assert loaded is False


@pytest.mark.parametrize("how", ["print(file=sys.stderr)", "os.write(2, b'x')", "raise SystemExit", "while True: pass"])
def test_what_loading_a_folder_may_do(how: str, tiny_tokenizer: Path) -> None:
    """It is silent, and an endless one ends with the process."""
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom packtrain.pipeline.encode import engine_before_fork as module\n"
        f"def load_engine(*_):\n    print('loads', flush=True)\n    {how}\n"
        "module.load_engine, module._SECONDS = load_engine, 0.2\n"
        "module.load('fastokens', Path(sys.argv[1]))\nprint('goes on')"
    )
    done = subprocess.run([sys.executable, "-c", code, tiny_tokenizer], capture_output=True, text=True, check=False)
    endless = "while" in how
    assert (done.returncode, done.stderr) == (-signal.SIGPROF if endless else 0, "")
    assert done.stdout.split("\n")[:-1] == (["loads"] if endless else ["loads", "goes on"])
