"""One root for every error that packtrain raises on purpose.

Each class is also a builtin, so that `except ValueError` keeps working, and carries the exit code of the
command line: 2 for a mistake that the user can fix, 1 for a failure. Advice on a key is spelt `key=value` everywhere,
as `--set` takes it.
"""

import difflib
from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from .escape import without_secrets

_Enum = TypeVar("_Enum", bound=StrEnum)


class PacktrainError(Exception):
    """The root. A message says what is wrong, where (file, line, key), and what to do."""

    exit_code = 1

    # Secrets are removed here, for all messages: many quote the error of an HTTP client, with its signed URL.
    def __str__(self) -> str:
        return without_secrets(super().__str__())


class ConfigError(PacktrainError, ValueError):
    """The configuration cannot be used: an unknown key, a value out of range, a missing file."""

    exit_code = 2


class AttentionError(ConfigError):
    """This model, batch or device does not support attention over packed documents. Names the reason and the fix."""


class LeakError(PacktrainError, RuntimeError):
    """Documents of one packed row see each other, or are computed differently than alone. Names the setting."""


class ReferenceMismatchError(PacktrainError, RuntimeError):
    """Before the first step, a model and its reference must be the same, but the first loss of the preference pairs
    differs from that. Says what to delete or change.
    """


class InputError(PacktrainError, ValueError):
    """An input file as a whole cannot be used."""

    exit_code = 2


class TokenizerError(PacktrainError, ValueError):
    """The tokenizer folder cannot be used."""

    exit_code = 2


class TemplateError(PacktrainError, ValueError):
    """The chat template does not compile, or refused a row."""

    exit_code = 2


class StoppedTemplateError(TemplateError):
    """The chat template took too much time or memory. That depends on the machine, so no row is rejected for it."""


class OutputError(PacktrainError, ValueError):
    """The output folder holds something else, or another run."""

    exit_code = 2


class BusyError(OutputError):
    """Another run is using the output folder. Says which, where and since when."""


class StoreError(PacktrainError, OSError):
    """Reading or writing the store failed, or the disk is full."""


class UnwritableError(StoreError):
    """A folder is not writable: choose another one, or make it writable."""

    exit_code = 2


class IntegrityError(PacktrainError, RuntimeError):
    """Data does not match its record: a damaged shard, or a ledger that does not close."""


class StalledError(PacktrainError, TimeoutError):
    """A loader waited too long for data. Names the rank, the shard and its address."""


class TaskError(PacktrainError, RuntimeError):
    """A task failed in all its attempts. Names the task and its input."""


class SandboxError(PacktrainError, RuntimeError):
    """The machine failed while a program was judged: its sandbox did not start, or the disk is full. Says nothing of
    the program."""


class RunDiedError(PacktrainError, RuntimeError):
    """A dataset is waited for, and the run that should write it has failed, has died, or never began."""


class RowRejectedError(PacktrainError, ValueError):
    """One input row cannot be used. The run goes on; the row goes to the rejects.

    Attributes:
        reason: a short stable word for the ledger, such as `invalid_json`.
        detail: a sentence that helps to find the row.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    # Exceptions are pickled by their `args`, the one joined text here. Workers send them to the driver.
    def __reduce__(self) -> tuple[type["RowRejectedError"], tuple[str, str]]:
        return type(self), (self.reason, self.detail)


class RowFilteredError(PacktrainError, ValueError):
    """One input row is well formed but filtered out, such as a problem without a solution. Counted by reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """The end of a message about an unknown word: `; did you mean train?` for `trian`, or "" if no word is near."""
    near = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def choice(name: str, value: str, kind: type[_Enum]) -> _Enum:
    """The member of `kind` with this value.

    Args:
        name: the key or option that has the value, for the message.

    Raises:
        ConfigError: there is none; names the valid values.
    """
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r}: choose one of {', '.join(kind)}") from None
