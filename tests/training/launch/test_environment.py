"""What a launcher says, read from its variables; and what it should have said."""

import socket

import pytest
from packtrain.schemas.errors import ConfigError
from packtrain.training.launch.environment import Launch, compared, named, route

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
        ({"RANK": "0"}, "RANK is set, but WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not"),
        (TORCHRUN | {"MASTER_ADDR": ""}, "MASTER_ADDR is not"),
        (TORCHRUN | {"RANK": "$SLURM_PROCID"}, r"RANK='\$SLURM_PROCID' is not a number.*inside the quotes"),
        (TORCHRUN | {"RANK": "8"}, "of all nodes together"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "Slurm started 4 tasks.*each task would train alone"),
    ],
)
def test_half_of_it_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Launch.read(environ)


def test_ranks_are_named_in_spans() -> None:
    assert named([3]) == "rank 3"
    assert named([5, 0, 1, 2, 7, 8]) == "ranks 0-2, 5, 7-8"


def test_what_is_alike_is_said_once() -> None:
    ranks = {0: {"RANK": "0", "MASTER_ADDR": "a"}, 1: {"RANK": "1", "MASTER_ADDR": "b"}, 2: {"MASTER_ADDR": "b"}}
    assert compared(ranks) == "MASTER_ADDR=a (rank 0), MASTER_ADDR=b (ranks 1-2)"
    assert compared({0: {"WORLD_SIZE": "2"}, 1: {"WORLD_SIZE": "2"}}) == "WORLD_SIZE=2"
    assert compared({0: {"NODE_RANK": "0"}, 1: {}}) == "NODE_RANK=0 (rank 0), NODE_RANK unset (rank 1)"


def test_the_interface_on_the_way() -> None:
    address, interface = route("127.0.0.1", 29500)
    assert address == "127.0.0.1"
    assert interface in dict(socket.if_nameindex()).values()
    assert route("no-such-host.invalid", 29500) == ("", "")
