"""Programs that are forked from a process that has everything imported, so that tests pay the imports once.

A Python that starts with `python()` in its environment hands its program over to a server (`site/sitecustomize.py` is
the one side, `warm_server.py` the other): a fork of the server becomes that program, with its arguments, folder,
environment and streams, in a session of its own. The Python that was started waits for it, passes signals on and ends
as it ends; if it is killed, so is the fork. Where a test is about starting (what is imported, how streams are opened),
it starts the installed program without that.

All processes of a test session share the servers. Measured on two cores: what a run imports takes 0.6 s of a core, what
trains 4 s; a program that is forked takes 0.04 s.
"""

import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

PIPELINE = ("packtrain.pipeline.",)
"""What a server imports, and all modules of a name that ends in a dot; but not what they import late, such as torch."""
TRAINING = (
    *(*PIPELINE, "torch.distributed.run", "transformers", "accelerate.commands.launch", "packtrain.training"),
    *(
        "packtrain.training.attention.packed_attention",
        "packtrain.training.launch.doctor",
        "packtrain.training.launch.ranks",
    ),
    *(
        "packtrain.training.attention.isolation_probe",
        "packtrain.training.trainer.train",
        "packtrain.training.trainer.trainer",
    ),
    *("transformers.models.llama.modeling_llama", "transformers.models.auto.modeling_auto", "transformers.trainer"),
    *("torch.distributed.fsdp", "trl", "peft"),
)
"""The same, with torch and everything else that trains, where it is installed."""
UNDER_XDIST = "PYTEST_XDIST_WORKER" in os.environ
"""Whether this process was forked from the server `TRAINING`, which is there then."""
OWNER = "PACKTRAIN_TEST_OWNER"
"""The process with which the servers end: that of pytest, or the one that distributes the tests."""
PROGRAM = Path(sys.executable).with_name("packtrain")
SITE = Path(__file__).with_name("site")
"""The folder whose `sitecustomize` every Python process of the tests loads first."""
_MAIN = "\nimport sys\nfrom packtrain.pipeline.cli.main import main\nsys.argv[0] = 'packtrain'\nmain()\n"


def python(modules: tuple[str, ...] = TRAINING, *, once: bool = False) -> dict[str, str]:
    """The environment in which every `packtrain ...` and `python PROGRAM`, `-m MODULE` or `-c CODE` is forked.

    Args:
        modules: what the server has imported.
        once: not those that such a program starts in its turn, as torchrun starts its workers.

    Empty on a machine with GPUs, which a server must not touch.
    """
    if Path("/dev/nvidiactl").exists():
        return {}
    variable = "PACKTRAIN_TEST_ONCE" if once else "PACKTRAIN_TEST_PYTHON"
    return {variable: _server(modules), "PYTHONPATH": os.environ.get("PYTHONPATH", str(SITE))}


class Process(subprocess.Popen[str]):
    """A program that runs, with both outputs in pipes.

    Args:
        arguments: of packtrain; or `("python", ...)`, as Python takes them.
        stdin: whether it has an input, a pipe; otherwise its input is empty.
        patch: Python that is run before the command, in its process and so in all that it forks.
        modules: what its server has imported.

    Attributes:
        child: the process that is the program; `pid` only waits for it.
    """

    stdin: IO[str]
    stdout: IO[str]
    stderr: IO[str]

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        patch: str = "",
        modules: tuple[str, ...] = PIPELINE,
    ) -> None:
        words = [str(word) for word in arguments]
        if words[:1] == ["python"]:
            words = words[1:]
        else:
            words = ["-c", patch + _MAIN, *words] if patch else [str(PROGRAM), *words]
        pid_reader, pid_writer = os.pipe()  # by which the Python that is started says what the server has forked
        server = python(modules, once=True)
        environment = os.environ if env is None else env
        super().__init__(
            [sys.executable, *words],
            cwd=cwd,
            env={**environment, **server, "PACKTRAIN_TEST_PID": str(pid_writer)},
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(pid_writer,),
            encoding="utf-8",
            errors="replace",
        )
        os.close(pid_writer)
        with os.fdopen(pid_reader) as pid_lines:
            self.child = int(pid_lines.readline() or self.pid) if server else self.pid


def run(
    arguments: Sequence[object],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = 600,
    modules: tuple[str, ...] = PIPELINE,
) -> "subprocess.CompletedProcess[str]":
    """Runs a program to its end, as `subprocess.run` does with both outputs captured as text."""
    with Process(arguments, cwd=cwd, env=env, modules=modules) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess([str(argument) for argument in arguments], process.returncode, out, err)


def loads_tokenizers() -> str:
    """The server that loads tokenizer folders for runs, whose processes find it as PACKTRAIN_TEST_LOADER.

    Importing transformers takes most of the time of `python -m packtrain.pipeline.encode.ask_transformers`.
    """
    from packtrain.pipeline.encode.ask_transformers import ENVIRONMENT

    return _server(("packtrain.pipeline.encode.ask_transformers", "without_torch"), tuple(ENVIRONMENT.items()))


@cache
def _server(modules: tuple[str, ...], environment: tuple[tuple[str, str], ...] = ()) -> str:
    """The address of the server with these modules. The first that wants it starts it; it ends with the session."""
    owner = os.environ.setdefault(OWNER, str(os.getpid()))
    key = hashlib.sha256(repr((modules, environment)).encode()).hexdigest()[:16]
    # A name that is no file: it ends with the last process that has it, also if that is killed.
    address = f"packtrain-tests-{owner}-{key}"
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(f"\0{address}".encode())
        except OSError:
            return address  # another process of this session has started it
        listener.listen(16)
        os.set_inheritable(listener.fileno(), True)
        # Without this, the server would hand itself over to another one.
        kept = {name: value for name, value in os.environ.items() if name != "PACKTRAIN_TEST_PYTHON"}
        subprocess.Popen(
            [sys.executable, Path(__file__).with_name("warm_server.py"), str(listener.fileno()), owner, *modules],
            pass_fds=(listener.fileno(),),
            stdin=subprocess.DEVNULL,
            env=kept | {"OPENBLAS_NUM_THREADS": "1"} | dict(environment),  # threads do not survive a fork
        )
    return address
