"""What a launcher says, read from its variables; and what it should have said."""

import pytest
from packtrain.schemas.errors import ConfigError
from packtrain.training.launch.environment import Launch

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_torchrun() -> None:
    launch = Launch.read(TORCHRUN)
    assert launch == Launch(5, 8, 1, "node-0", 29500, "job/2", True)


@pytest.mark.parametrize("environ", [{}, {"RANK": "0", "WORLD_SIZE": "1"}, {"SLURM_STEP_NUM_TASKS": "1"}])
def test_alone(environ: dict[str, str]) -> None:
    assert Launch.read(environ) is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "0"}, "RANK=0, but WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set"),
        (TORCHRUN | {"MASTER_ADDR": ""}, "but MASTER_ADDR not set"),
        (TORCHRUN | {"RANK": "$SLURM_PROCID"}, r"RANK=\$SLURM_PROCID, .*inside the quotes"),
        (TORCHRUN | {"RANK": "8"}, "of all nodes together"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "Slurm started 4 tasks.*each task would train alone"),
    ],
)
def test_half_of_it_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Launch.read(environ)
