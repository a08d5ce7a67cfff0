"""Which sandbox there is on this machine: tried by running a program in it, not guessed from versions."""

from functools import cache
from typing import Literal

from ....schemas.errors import ConfigError, SandboxError
from .bubblewrap import Bubblewrap, find_bubblewrap
from .landlock import Landlock, sandlock_version
from .programs import Ending, Program, ProgramLimits, Sandbox
from .unsafe import Unsafe

SandboxKind = Literal["auto", "bubblewrap", "sandlock", "unsafe"]
_TRIAL = Program(code="print(6 * 7)", function=None, inputs=(b"",))
_MISSING = "not installed"
_INSTALL = "Install both with: pip install 'packtrain[eval]'"


@cache
def open_sandbox(kind: SandboxKind = "auto") -> Sandbox:
    """The sandbox of this kind, or with `auto` the first of bubblewrap and sandlock that runs here.

    Its `note` says what is wrong with a better one. Tried once per process. Raises ConfigError if none runs; it says
    what to install.
    """
    if kind == "unsafe":
        return Unsafe()
    kinds = ("bubblewrap", "sandlock") if kind == "auto" else (kind,)
    wrong: list[str] = []
    for name in kinds:
        note = f"programs run in {name}; {'; '.join(wrong)}" if wrong else None
        try:
            sandbox = _bubblewrap(note) if name == "bubblewrap" else _landlock(note)
            _try(sandbox)
        except (ConfigError, SandboxError) as error:
            wrong.append(f"{name}: {error}")
        else:
            return sandbox
    install = "" if all(_MISSING not in one for one in wrong) else f". {_INSTALL}"
    raise ConfigError(f"no sandbox to run programs in. {'; '.join(wrong)}{install}")


def _bubblewrap(note: str | None) -> Sandbox:
    executable = find_bubblewrap()
    if executable is None:
        raise ConfigError(_MISSING)
    return Bubblewrap(executable, note)


def _landlock(note: str | None) -> Sandbox:
    if sandlock_version() is None:
        raise ConfigError(_MISSING)
    return Landlock(note)


def _try(sandbox: Sandbox) -> None:
    (done,) = sandbox.run(_TRIAL, ProgramLimits())
    if (done.ending, done.output) != (Ending.finished, b"42\n"):
        raise SandboxError(f"it does not run programs here: {done.ending} {done.stderr.strip()[-300:]}")
