"""What several test files share: real data where there is some, small tokenizers, and rows read back."""

import gc
import operator
import os
import runpy
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from packtrain.pipeline.dataset.open_dataset import open_dataset
from packtrain.pipeline.execute.pool import Pool
from packtrain.pipeline.pack.shard import forget_table
from packtrain.pipeline.run import workers
from packtrain.schemas.files import remote, remote_clients
from packtrain.stages.tokenize import engines

from tests import kit
from tests.support import warm, whole_run
from tests.support.examples import examples
from tests.support.whole_run import Whole

if TYPE_CHECKING:
    from tests.support.faulty import Faulty

settings.register_profile("packtrain", examples(100))
settings.load_profile("packtrain")

# Hypothesis tries the constants that it finds in the modules imported so far, which depend on the tests that ran before
# in this process: the same seed would give other examples in another session.
providers._get_local_constants = lambda: Constants()

os.environ.pop("PACKTRAIN_TEST_PYTHON", None)  # it was for the start of this process, if xdist has started it

runpy.run_path(str(warm.SITE / "sitecustomize.py"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(warm.SITE), os.environ.get("PYTHONPATH")]))

# What forks programs is shared by the processes of this session, and ends with it.
os.environ.setdefault(warm.OWNER, str(os.getpid()))

# Two processes run tests on two cores, and what torch computes here is tiny. It is read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A thread of transformers that looks up a host name was seen to crash the process, as other tests fork beside it.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background, where a shell has Ctrl-C ignored, which children would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)

MakeTokenizer = Callable[..., Path]
"""`make(name, bos=False, eos=False, template=CHATML)` gives a folder; see `make_tokenizer`."""


def pytest_configure(config: pytest.Config) -> None:
    """Fork the processes of xdist from one that has imported what each would import for half a minute."""
    if config.getoption("numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ.update(warm.python())
        warm.loads_tokenizers()  # and the others, which are wanted soon, on the processor that waits meanwhile
        warm.python(warm.PIPELINE)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected: there is little, and the search takes a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first in the share that xdist gives to each process, so that at the end no process
    waits long for another's last test.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = list(dict.fromkeys(item.path for item in items if item.get_closest_marker("slow")))
    turn = {path: index % processes for index, path in enumerate(slow)}
    quick = (item for item in items if item.path not in turn)
    ordered: list[pytest.Item] = []
    for process in range(processes):
        ordered += (item for item in items if turn.get(item.path) == process)
        ordered += islice(quick, max(0, len(items) * (process + 1) // processes - len(ordered)))
    items[:] = [*ordered, *quick]


def pytest_collection_finish() -> None:
    """Keep what is imported by now out of every collection of garbage: each training ends with a full one."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Spare the five full collections with which pytest looks for unraisable exceptions at the end."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def tokenizers_loaded_once() -> None:
    """Engines of one tokenizer share what their library loaded: a run loads it, and a session has hundreds of runs."""
    engines.reference_tokenizer = lru_cache(maxsize=16)(engines.reference_tokenizer)
    with suppress(ImportError):
        import fastokens

        load = lru_cache(maxsize=16)(fastokens.Tokenizer.from_json_str)
        fastokens.Tokenizer = type("Tokenizer", (), {"from_json_str": staticmethod(load)})


class LastingPool(Pool):
    """Leaves its workers to the next run: they have loaded tokenizers and compiled templates, which takes longer than
    most runs of the tests, and a session has thousands. They have the environment of their start.
    """

    left: ClassVar[list[Any]] = []

    def close(self) -> None:
        if not self._busy_workers():
            for worker in self._pool:
                with suppress(OSError, EOFError):  # it has died
                    worker.pipe.send((operator.call, forget_table))
                    worker.pipe.recv()
                    self.left.append(worker)
            self._pool = [worker for worker in self._pool if worker not in self.left]
        super().close()

    def _start_worker(self) -> Any:
        while self.left:
            worker = self.left.pop()
            if worker.process.is_alive():
                self._pool.append(worker)
                return worker
        return super()._start_worker()

    @classmethod
    def end(cls) -> None:
        """End the workers that are left."""
        if cls.left:
            last = Pool(1)
            last._pool = cls.left
            cls.left = []
            last.close()


class FreshPool(Pool):
    """Has the environment of now, and not that with which an earlier test started the fork server."""

    def __init__(self, workers: int, **options: Any) -> None:
        LastingPool.end()
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        super().__init__(workers, **options)


@pytest.fixture(scope="session", autouse=True)
def workers_stay() -> Iterator[None]:
    """See `LastingPool`."""
    workers.Pool = LastingPool  # type: ignore[attr-defined]
    yield
    LastingPool.end()


@pytest.fixture(scope="session", autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's cache of this session: of this process, of those that run tests beside it, and of their children."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "user-cache"
    folder.mkdir(exist_ok=True)
    os.environ["PACKTRAIN_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer_loader() -> None:
    """Runs load their tokenizer by a process that has transformers imported, and not by one that starts from nothing.

    Where that is what a test is about, it takes PACKTRAIN_TEST_LOADER out of the environment.
    """
    os.environ["PACKTRAIN_TEST_LOADER"] = warm.loads_tokenizers()


@pytest.fixture(scope="session")
def realdata(tokenizer_loader: None) -> Path:
    """The folder of real data sets and tokenizers, where PACKTRAIN_REALDATA names one."""
    root = os.environ.get("PACKTRAIN_REALDATA")
    if not root:
        pytest.skip("PACKTRAIN_REALDATA names no folder")
    return Path(root)


@pytest.fixture(scope="session")
def make_tokenizer(tmp_path_factory: pytest.TempPathFactory, tokenizer_loader: None) -> MakeTokenizer:
    """Trains a byte-level BPE of 400 tokens and writes it as a folder that transformers loads.

    The same name gives the same folder. `<s>` is the beginning of a sequence, `<|im_end|>` its end; `bos` and `eos`
    let the tokenizer put them around every plain text by itself.
    """
    root = tmp_path_factory.mktemp("tokenizers")

    def make(name: str, *, bos: bool = False, eos: bool = False, template: str | None = kit.CHATML) -> Path:
        return kit.tokenizer(root / name, bos=bos, eos=eos, template=template)

    return make


@pytest.fixture(scope="session")
def tiny_tokenizer(tokenizer_loader: None) -> Path:
    """A folder with a small byte-level tokenizer and a ChatML template: the demo's."""
    return kit.demo_tokenizer()


@pytest.fixture(scope="session")
def wholes(tmp_path_factory: pytest.TempPathFactory, tokenizer_loader: None) -> dict[str, Whole]:
    """Runs by the name of their function in `whole_run`, made when they are first wanted."""

    class Made(dict[str, Whole]):
        def __missing__(self, name: str) -> Whole:
            folder: Path = tmp_path_factory.mktemp(name)
            self[name] = whole_run.whole_run(folder, getattr(whole_run, name)(folder))
            return self[name]

    return Made()


@pytest.fixture(scope="session")
def read_rows() -> Callable[..., list[dict[str, Any]]]:
    """Reads the packed rows of a finished folder, as plain Python values: `read_rows(folder, split="train")`."""

    def read(folder: Path, split: str = "train") -> list[dict[str, Any]]:
        dataset = open_dataset(folder)
        shards = dataset.manifest.splits[split].shards
        return [row for shard in shards for batch in dataset.batches(shard) for row in batch.to_pylist()]

    return read


@pytest.fixture
def warm_program(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program `packtrain` for shells and terminals, which starts at once; see `warm`."""
    for key, value in warm.python(warm.PIPELINE, once=True).items():
        monkeypatch.setenv(key, value)
    return warm.PROGRAM


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> "Iterator[Faulty]":
    """An object store without faults at first, found by every client, with short pauses after a fault."""
    pytest.importorskip("obstore")
    from tests.support.faulty import Faulty

    monkeypatch.setattr(workers, "Pool", FreshPool)
    for module in (remote, remote_clients):
        monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.005)
        monkeypatch.setattr(module, "PAUSE_FACTOR", 1.5)
    with Faulty() as server:
        for key, value in server.environment.items():
            monkeypatch.setenv(key, value)
        yield server
