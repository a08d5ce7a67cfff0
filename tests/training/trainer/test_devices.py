"""Training on several processes: through torchrun and accelerate, with DDP, FSDP2 and ZeRO-3, against one process; and
no worker without its launcher."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from packtrain.schemas.errors import BusyError
from packtrain.training.launch import Recipe
from packtrain.training.launch import recipe as text_of
from packtrain.training.models.sharded import export_checkpoint
from packtrain.training.trainer.checkpoint import locked, read_checkpoint

from tests import kit
from tests.support import warm
from tests.training.trainer.trainings import SGD, losses, quietly

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]

# accelerate never shards on a CPU: it says MULTI_CPU and trains with DDP. Told that gloo is a GPU's backend it goes the
# way of GPUs, and from there on all is real: fully_shard over a mesh of processes, its collectives, its checkpoints.
SHARDED = """
from accelerate.state import PartialState
from accelerate.utils import DistributedType
made = PartialState.__init__
def init(self, *args, **kwargs):
    made(self, *args, **kwargs)
    if self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.MULTI_GPU
PartialState.__init__ = init
"""
PROGRAM = """
import gc, json, sys
import torch
torch.set_num_threads(1)
from packtrain.training.trainer.train import train
trainer = train(json.load(open(sys.argv[1])))
log = trainer.state.log_history
from accelerate.state import AcceleratorState
from torch.distributed.fsdp import FSDPModule
state = AcceleratorState()
found = {
    "kind": state.distributed_type.value,
    "ranks": state.num_processes,
    "sharded": any(isinstance(one, FSDPModule) for one in gc.get_objects() if isinstance(one, torch.nn.Module)),
    "losses": [entry["loss"] for entry in log if "loss" in entry],
    "norms": [entry["grad_norm"] for entry in log if "grad_norm" in entry],
    "resumed": str(trainer.resumed_from),
    "metrics": next((entry for entry in reversed(log) if "eval_loss" in entry), {}),
}
if state.is_main_process:
    open(sys.argv[2], "w").write(json.dumps(found))
"""
Launched = Callable[..., dict[str, Any]]
"""`launched(command, configuration)`: starts the program under a launcher; what the first rank wrote at the end."""


@pytest.fixture(scope="module")
def weights(settings_in: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in a folder: drawn weights would differ where each process makes only its part."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("weights")
    config = AutoConfig.for_model(**settings_in(folder)["model"]["config"])
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture
def configuration(settings: Any, weights: Path) -> Callable[..., dict[str, Any]]:
    """Four steps of eight rows, clipped, so that a gradient's norm matters; keys below `trainer` are merged."""

    def make(**keys: Any) -> dict[str, Any]:
        trainer = {"max_steps": 4, "max_grad_norm": 0.3, "learning_rate": 1e-2, **keys.pop("trainer", {})}
        made: dict[str, Any] = settings(
            model={"path": str(weights)}, rows_per_step=8, epochs=3, trainer=trainer, **{"probe": True, **keys}
        )
        return made

    return make


@pytest.fixture
def launched(tmp_path: Path) -> Launched:
    """See `Launched`."""

    def launch(command: list[str], made: dict[str, Any], *, before: str = "", **environ: str) -> dict[str, Any]:
        program, config, found = (tmp_path / name for name in ("program.py", "train.yaml", "found.json"))
        program.write_text(before + PROGRAM)
        config.write_text(json.dumps(made))  # JSON is YAML
        whole = {**os.environ, **warm.python(), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environ}
        words = [*command, str(program), str(config), str(found)]
        done = subprocess.run(words, env=whole, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-6000:]
        result: dict[str, Any] = json.loads(found.read_text())
        return result

    return launch


def alone_on(made: dict[str, Any], out: Path) -> dict[str, list[float]]:
    """Losses and gradient norms of one process."""
    log = [entry for entry in quietly({**made, "out": str(out)}).log if "loss" in entry]
    found = {"losses": [entry["loss"] for entry in log], "norms": [entry["grad_norm"] for entry in log]}
    assert len(found["losses"]) == made["trainer"]["max_steps"]
    assert found["losses"][-1] < found["losses"][0] - 0.1  # it learns, so that differences would grow
    return found


@pytest.fixture
def alone(configuration: Any, tmp_path: Path) -> dict[str, list[float]]:
    """Of the configuration as it is."""
    return alone_on(configuration(), tmp_path / "alone")


def check_like(found: dict[str, Any], alone: dict[str, list[float]]) -> None:
    """Every step's loss within 1e-6 of one process's, relatively. Norms are summed in another order."""
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-6)
    assert found["norms"] == pytest.approx(alone["norms"], rel=1e-4)


def accelerate(recipe: Recipe, ranks: int, folder: Path) -> list[str]:
    """The command of a shipped recipe."""
    target = folder / f"{recipe}.yaml"
    if not target.exists():
        target.write_text(text_of(recipe))
    return [*ACCELERATE, "--config_file", str(target), "--num_processes", str(ranks)]


@pytest.mark.slow
def test_four_ranks_on_data_with_weights(
    launched: Launched, configuration: Any, weighted: Path, tmp_path: Path
) -> None:
    made = configuration(data=str(weighted), probe=False, trainer={"max_steps": 3})
    found = launched([*TORCHRUN, "4"], made)
    assert (found["kind"], found["ranks"]) == ("MULTI_CPU", 4)
    check_like(found, alone_on(made, tmp_path / "alone"))


@pytest.mark.slow
def test_two_ranks_make_the_steps_of_one_which_goes_on_where_they_stopped(
    launched: Launched, settings: Any, two_sources: Path, tmp_path: Path
) -> None:
    """Four micro-batches on each rank, of conversations and texts: packs with very different trained tokens."""
    keys = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, **SGD}
    common = {"data": str(two_sources), "rows_per_step": 8, "loss_kernel": "none", "eval": {"rows": 5}}
    alone = settings(**common, out=str(tmp_path / "alone"), trainer=keys)
    one = quietly(alone)
    two = launched([*TORCHRUN, "2"], settings(**common, out=str(tmp_path / "pair"), trainer=keys))
    assert two["losses"] == pytest.approx(losses(one), rel=1e-6)
    states = [read_checkpoint(tmp_path / name / "checkpoint-4").loader for name in ("alone", "pair")]
    assert states[0] == states[1]
    for key in ("eval_loss", "eval_loss_chats", "eval_loss_texts", "eval_tokens"):
        assert two["metrics"][key] == pytest.approx(one.metrics[key], rel=1e-6)
    shutil.copytree(tmp_path / "pair" / "checkpoint-2", tmp_path / "on" / "checkpoint-2")
    on = quietly({**alone, "out": str(tmp_path / "on")})
    assert losses(on) == pytest.approx(losses(one), rel=1e-6)
    assert read_checkpoint(tmp_path / "on" / "checkpoint-4").loader == states[0]


@pytest.mark.slow
def test_fsdp2_goes_on_from_its_sharded_checkpoint_and_exports_a_whole_model(
    launched: Launched, configuration: Any, alone: Any, tmp_path: Path
) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    command = accelerate("fsdp2", 2, tmp_path)
    kept = {"save_strategy": "steps", "save_steps": 2}
    made = configuration(out=str(tmp_path / "out"), export=True, trainer=kept)
    first = launched(command, made, before=SHARDED, ACCELERATE_USE_CPU="true")
    assert (first["kind"], first["ranks"], first["sharded"]) == ("FSDP", 2, True)
    check_like(first, alone)
    export_checkpoint(tmp_path / "out" / "checkpoint-4", tmp_path / "gathered")
    whole, gathered = (load_file(tmp_path / name / "model.safetensors") for name in ("out/model", "gathered"))
    assert gathered.keys() == whole.keys()
    assert all(torch.equal(gathered[name], whole[name]) for name in whole)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "gathered").lm_head.weight.shape == (3200, 32)
    shutil.rmtree(tmp_path / "out" / "checkpoint-4")
    shutil.rmtree(tmp_path / "out" / "model")
    again = launched(command, made, before=SHARDED, ACCELERATE_USE_CPU="true")
    assert again["resumed"].endswith("checkpoint-2")
    check_like(again, alone)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model")
    assert model.lm_head.weight.shape == (3200, 32)  # gathered, not one rank's part
    assert all(torch.isfinite(weight).all() for weight in model.parameters())


@pytest.mark.slow
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")
def test_accelerate_with_the_shipped_zero3(launched: Launched, configuration: Any, alone: Any, tmp_path: Path) -> None:
    found = launched(accelerate("zero3", 2, tmp_path), configuration(), DS_ACCELERATOR="cpu")
    assert (found["kind"], found["ranks"]) == ("DEEPSPEED", 2)
    check_like(found, alone)


@pytest.mark.slow
def test_a_rank_whose_first_never_starts_says_so(configuration: Any, tmp_path: Path) -> None:
    config = tmp_path / "train.yaml"
    config.write_text(json.dumps(configuration()))
    seen = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    done = warm.run(
        ["train", config], env={**os.environ, **seen, "PACKTRAIN_RANK_CHECK_SECONDS": "1"}, modules=warm.TRAINING
    )
    assert done.returncode == 1
    for part in ("rank 1 of 2", "127.0.0.1:9", "RANK=1, WORLD_SIZE=2"):
        assert part in done.stderr


@pytest.mark.slow
def test_workers_end_when_their_launcher_is_killed(settings: Any, tmp_path: Path) -> None:
    config = kit.saved(settings(epochs=200, trainer={"max_steps": 1000}))
    words = ["python", *TORCHRUN[1:], 1, "-m", "packtrain.pipeline.cli", "train", config]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    launcher = warm.Process(words, env=environ, modules=warm.TRAINING)
    assert any(" 2/1,000 " in line for line in launcher.stdout), launcher.stderr.read()[-2000:]
    (worker,) = map(int, Path(f"/proc/{launcher.child}/task/{launcher.child}/children").read_text().split())
    launcher.kill()
    launcher.wait()
    until = time.monotonic() + 300
    try:
        # A process counts as ended a moment before its last thread closes its files, the lock among them.
        while _runs(worker) or not _free(tmp_path / "out"):
            assert time.monotonic() < until, "the worker goes on without its launcher, or keeps the folder locked"
            time.sleep(0.1)
    finally:
        if _runs(worker):
            os.kill(worker, signal.SIGKILL)


def _free(folder: Path) -> bool:
    try:
        with locked(folder):
            return True
    except BusyError:
        return False


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
