"""A torch DataLoader and packtrain's loaders: no row is delivered twice, and a mistake is a sentence."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import packtrain.training
import pytest

from tests import kit

torch = pytest.importorskip("torch")
from packtrain.training import PackedLoader, PackedStream  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402


class Around(IterableDataset):  # type: ignore[misc]
    """What people write to use a loader in a framework that asks for a dataset."""

    def __init__(self, inner: object) -> None:
        self.inner = inner

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self.inner)  # type: ignore[call-overload]


@pytest.fixture
def failing_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ends loaders whose workers have failed within the test, and at once: torch waits five seconds for each of their
    workers, whenever a search for garbage comes upon them, in whatever test that is.
    """
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.05)
    yield
    gc.collect()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workers")
    return kit.packed(kit.configure(folder, "chats")).folder


@pytest.mark.usefixtures("failing_workers")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_around_a_loader_is_refused(packed: Path, workers: int) -> None:
    loader = PackedLoader(packed, rows_per_step=2)
    with pytest.raises(Exception, match="iterate over it, without a torch DataLoader around it"):
        list(DataLoader(loader, batch_size=None, num_workers=workers))
    assert len(list(loader)) > 0, "the loader itself is as it was"


def test_one_worker_delivers_every_row_once(packed: Path) -> None:
    expected = [batch["input_ids"].tolist() for batch in PackedLoader(packed, rows_per_step=2)]
    for workers in (0, 1):
        around = DataLoader(Around(PackedLoader(packed, rows_per_step=2)), batch_size=None, num_workers=workers)
        assert [batch["input_ids"].tolist() for batch in around] == expected


@pytest.mark.usefixtures("failing_workers")
def test_several_workers_are_refused(packed: Path) -> None:
    around = DataLoader(Around(PackedLoader(packed, rows_per_step=2)), batch_size=None, num_workers=2)
    with pytest.raises(Exception, match="each of which would deliver every row; take num_workers=0"):
        list(around)


@pytest.mark.usefixtures("failing_workers")
def test_several_workers_of_a_stream_are_refused(tmp_path: Path) -> None:
    stream = PackedStream(_config(tmp_path), rows_per_step=2, workers=1)
    around = DataLoader(Around(stream), batch_size=None, num_workers=2)
    with pytest.raises(Exception, match="a PackedStream is read by 2 workers"):
        list(around)


def _config(folder: Path) -> kit.Config:
    kit.write(folder / "texts.jsonl", kit.corpus("texts"))
    return kit.configure(folder, kit.source("texts", path=str(folder / "texts.jsonl")))


def test_names_are_listed_without_torch() -> None:
    code = "import sys, packtrain.training as t; print(*dir(t)); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, imported = done.stdout.splitlines()
    assert {"PackedLoader", "PackedStream", "collate", "guard", "probe", "use_packed"} <= set(names.split())
    assert imported == "False"


def test_every_name_is_what_it_says() -> None:

    for name in dir(packtrain.training):
        assert getattr(packtrain.training, name).__name__ == name
        assert callable(getattr(packtrain.training, name))
