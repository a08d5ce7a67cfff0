"""The loader inside those of torch, torchdata and accelerate."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
stateful = pytest.importorskip("torchdata.stateful_dataloader")

from packtrain.schemas.errors import ConfigError  # noqa: E402
from packtrain.training import PackedIterable, PackedLoader  # noqa: E402

from tests.support import warm  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def iterable(folder: Path) -> PackedIterable:
    return PackedIterable(PackedLoader(folder, rows_per_step=3, epochs=2, tail="pad", seed=2))


def ids(batches: Any) -> list[list[int]]:
    return [batch["input_ids"][0].tolist() for batch in batches]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    batches = ids(PackedLoader(folder, rows_per_step=3, epochs=2, tail="pad", seed=2))
    assert len(batches) > 12
    return batches


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_torchs_own_loader_gives_the_steps_in_order(folder: Path, expected: list[list[int]], workers: int) -> None:
    loader = torch.utils.data.DataLoader(iterable(folder), batch_size=None, num_workers=workers)
    assert len(loader) == len(expected)
    assert ids(loader) == expected
    assert ids(loader) == expected, "and again, for those who loop over epochs themselves"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 5, 8])
def test_torchdata_resumes(folder: Path, expected: list[list[int]], workers: int, stop: int) -> None:
    first = stateful.StatefulDataLoader(iterable(folder), batch_size=None, num_workers=workers)
    batches = iter(first)
    before = ids(next(batches) for _ in range(stop))
    state = first.state_dict()
    second = stateful.StatefulDataLoader(iterable(folder), batch_size=None, num_workers=workers)
    second.load_state_dict(state)
    assert before + ids(second) == expected


def test_accelerates_stateful_loader_resumes(folder: Path, expected: list[list[int]]) -> None:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    def prepared() -> Any:
        config = DataLoaderConfiguration(use_stateful_dataloader=True, dispatch_batches=False)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        return accelerator.prepare(torch.utils.data.DataLoader(iterable(folder), batch_size=None))

    first = prepared()
    batches = iter(first)
    before = ids(next(batches) for _ in range(4))
    state = first.state_dict()
    second = prepared()
    second.load_state_dict(state)
    assert before + ids(second) == expected


def test_accelerate_saves_the_loader_itself(folder: Path, tmp_path: Path, expected: list[list[int]]) -> None:
    """The way that keeps every freedom: the loader is not prepared, only registered for the checkpoint."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    first = PackedLoader(folder, rows_per_step=3, epochs=2, tail="pad", seed=2)
    accelerator.register_for_checkpointing(first)
    batches = iter(first)
    before = ids(next(batches) for _ in range(5))
    accelerator.save_state(str(tmp_path / "checkpoint"))

    other = Accelerator(cpu=True)
    second = PackedLoader(folder, rows_per_step=3, epochs=2, tail="pad", seed=2, num_workers=3)
    other.register_for_checkpointing(second)
    other.load_state(str(tmp_path / "checkpoint"))
    assert before + ids(second) == expected


PREPARED = """
import sys
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from packtrain.training import PackedIterable
from packtrain.training import PackedLoader
from torch.utils.data import DataLoader

chosen = {"true": True, "false": False, "default": None}[sys.argv[2]]
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=chosen))
loader = PackedLoader(sys.argv[1], rows_per_step=4)
assert loader.place.world_size == accelerator.num_processes == 2
prepared = accelerator.prepare(DataLoader(PackedIterable(loader), batch_size=None))
for batch in prepared:
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("dispatch", ["true", "false", "default"])
def test_accelerate_on_two_ranks_is_refused_and_does_not_hang(folder: Path, tmp_path: Path, dispatch: str) -> None:
    program = tmp_path / "prepared.py"
    program.write_text(PREPARED)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    done = subprocess.run(
        [sys.executable, *command, str(folder), dispatch],
        env={**os.environ, **warm.python(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode != 0
    assert "accelerate has prepared a packtrain loader" in done.stderr


def test_accelerate_may_prepare_the_loader_of_one_rank(folder: Path, expected: list[list[int]]) -> None:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    prepared = accelerator.prepare(torch.utils.data.DataLoader(iterable(folder), batch_size=None))
    assert ids(prepared) == expected
    ranked = PackedIterable(PackedLoader(folder, rows_per_step=4, rank=0, world_size=2))
    with pytest.raises(ConfigError, match=r"Leave it out of accelerator.prepare \(with dispatch_batches and without\)"):
        next(iter(accelerator.prepare(torch.utils.data.DataLoader(ranked, batch_size=None))))
    ranked.set_epoch(3)  # by anybody else, it means nothing
