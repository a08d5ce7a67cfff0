"""The fork server loads an engine once, for all workers."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path

import pytest
from packtrain.pipeline.encode.before_fork import load
from packtrain.pipeline.encode.tokenizer.load import TokenizerLoading, TokenizerSpec
from packtrain.pipeline.execute.executor import EngineAhead
from packtrain.pipeline.execute.fork_server import IN_FORK_SERVER
from packtrain.pipeline.execute.local import LocalExecutor
from packtrain.schemas.errors import TokenizerError
from packtrain.stages.tokenize.engines import STARTS_NO_THREAD, load_engine

pytest.importorskip("fastokens")


@pytest.fixture
def known(tiny_tokenizer: Path, tmp_path: Path) -> tuple[EngineAhead, TokenizerSpec]:
    """fastokens for a tokenizer that transformers was asked about, and the tokenizer."""
    with TokenizerLoading.start(tiny_tokenizer, cache=tmp_path) as loading:
        return EngineAhead("fastokens", tiny_tokenizer, tmp_path), loading.result()


@pytest.fixture
def fresh_server() -> Iterator[None]:
    """No fork server runs before the test, nor after it."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("fresh_server")
@pytest.mark.parametrize(("engine", "found"), [("auto", True), ("fastokens", True), ("tokenizers", False)])
def test_workers_are_forked_with_the_engine(engine: str, found: bool, known: tuple[EngineAhead, TokenizerSpec]) -> None:
    ahead, tokenizer = known
    executor = LocalExecutor(1)
    executor.get_ready(ahead._replace(engine=engine))
    try:
        loads = engine.replace("auto", "fastokens")
        (state,) = executor.map(state_of_worker, [(loads, tokenizer.json)])
    finally:
        executor.close()
    assert state == (found, 1, True, [])
    assert not [name for name in os.environ if name.startswith(IN_FORK_SERVER)]


def state_of_worker(task: tuple[str, str]) -> tuple[bool, int, bool, list[str]]:
    """Whether this worker has the engine already; its threads besides the one that waits for the driver's end; whether
    garbage is collected; and what it sees of the fork server's settings.
    """
    hits = load_engine.cache_info().hits
    load_engine(*task)
    settings = [name for name in os.environ if name.startswith(IN_FORK_SERVER)]
    return load_engine.cache_info().hits > hits, threading.active_count() - 1, gc.isenabled(), settings


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("engine", sorted(STARTS_NO_THREAD))
def test_no_thread_is_left_before_a_process_is_forked(engine: str, known: tuple[EngineAhead, TokenizerSpec]) -> None:
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom packtrain.pipeline.encode import before_fork as module\n"
        "from packtrain.stages.tokenize.engines import load_engine\n"
        "from packtrain.pipeline.execute.executor import EngineAhead\n"
        "def threads():\n    return len(os.listdir('/proc/self/task'))\n"
        "module.get_ready(None)\nbefore = threads()\n"
        "ahead = EngineAhead(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))\n"
        "module.load(ahead)\nassert load_engine.cache_info().currsize == 1\nhere = threads()\n"
        "load_engine.cache_clear()\nmodule.get_ready(ahead)\nassert load_engine.cache_info().currsize == 1\n"
        "for _ in range(100):\n"  # the kernel takes a moment to end a thread that Python has joined
        "    threads() == before or time.sleep(0.05)\n"
        "print(here - before, threads() - before)"
    )
    command = [sys.executable, "-c", code, engine, str(known[0].folder), str(known[0].answers)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0 0\n"


@pytest.mark.skipif(sys.platform != "linux", reason="a process learns that its parent ended from its parent's number")
def test_it_ends_with_its_driver_while_it_loads(known: tuple[EngineAhead, TokenizerSpec]) -> None:
    slow = (
        "import os, sys, time\nfrom pathlib import Path\nfrom packtrain.pipeline.encode import before_fork as module\n"
        "from packtrain.pipeline.execute.executor import EngineAhead\n"
        "module.load_engine = lambda *_: time.sleep(60)\n"
        "ahead = EngineAhead(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))\n"
        "if os.fork() == 0:\n    module.get_ready(ahead)\n"
        "time.sleep(2)"
    )
    began = time.monotonic()
    command = [sys.executable, "-c", slow, *map(str, known[0])]
    subprocess.run(command, capture_output=True, check=True)  # returns when the child closed the output, too
    assert time.monotonic() - began < 40


def test_what_cannot_be_loaded_is_left_to_workers(known: tuple[EngineAhead, TokenizerSpec], tmp_path: Path) -> None:
    ahead, _ = known
    before = load_engine.cache_info()
    load(ahead._replace(folder=tmp_path / "absent"))
    load(ahead._replace(engine="tokenizers"))
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


@pytest.fixture
def unknown_to_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's cache knows no tokenizer."""
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "user"))


@pytest.mark.usefixtures("fresh_server", "unknown_to_user")
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
        executor.get_ready(EngineAhead("fastokens", folder, tmp_path / "none"))
        try:
            with suppress(TokenizerError):
                answer = loading.result().json
            ((loaded, *_),) = executor.map(state_of_worker, [("fastokens", answer)])
        finally:
            executor.close()
    assert loaded is found


@pytest.mark.usefixtures("fresh_server")
def test_a_fork_server_that_dies_while_it_loads_is_replaced(known: tuple[EngineAhead, TokenizerSpec]) -> None:
    executor = LocalExecutor(1)
    executor.get_ready(known[0])
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
    try:
        ((loaded, *_),) = executor.map(state_of_worker, [("fastokens", known[1].json)])
    finally:
        executor.close()
    assert loaded is False


@pytest.mark.usefixtures("unknown_to_user")
@pytest.mark.parametrize("how", ["print(file=sys.stderr)", "os.write(2, b'x')", "raise SystemExit", "while True: pass"])
def test_what_loading_a_folder_may_do(how: str, tiny_tokenizer: Path) -> None:
    """It is silent, and an endless one ends with the process."""
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom packtrain.pipeline.encode import before_fork as module\n"
        f"def load_engine(*_):\n    print('loads', flush=True)\n    {how}\n"
        "module.load_engine, module._SECONDS = load_engine, 0.2\n"
        "from packtrain.pipeline.execute.executor import EngineAhead\n"
        "module.load(EngineAhead('fastokens', Path(sys.argv[1]), Path('none')))\nprint('goes on')"
    )
    done = subprocess.run([sys.executable, "-c", code, tiny_tokenizer], capture_output=True, text=True, check=False)
    endless = "while" in how
    assert (done.returncode, done.stderr) == (-signal.SIGPROF if endless else 0, "")
    assert done.stdout.split("\n")[:-1] == (["loads"] if endless else ["loads", "goes on"])
