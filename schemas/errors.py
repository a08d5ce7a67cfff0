"""One root for every error that packtrain raises on purpose.

Each class is also a builtin, so that `except ValueError` keeps working, and carries the exit code of the
command line: 2 for a mistake that a person can mend, 1 for a failure.
"""


class PacktrainError(Exception):
    """The root. A message says what is wrong, where (file, line, key), and what to do."""

    exit_code = 1


class ConfigError(PacktrainError, ValueError):
    """The configuration cannot be used: an unknown key, a value out of range, a missing file."""

    exit_code = 2


class AttentionError(ConfigError):
    """Attention over packed documents cannot be had of this model, batch or device; names the reason and the mend."""


class BatchError(PacktrainError, ValueError):
    """A packed batch is malformed, or holds what would let documents see each other."""


class LeakError(PacktrainError, RuntimeError):
    """Documents of one packed row see each other, or are not treated as they would be alone. Names the setting."""


class InputError(PacktrainError, ValueError):
    """An input file as a whole cannot be used."""

    exit_code = 2


class TokenizerError(PacktrainError, ValueError):
    """The tokenizer folder cannot be used."""

    exit_code = 2


class TemplateError(PacktrainError, ValueError):
    """The chat template does not compile, or refused a row."""

    exit_code = 2


class OutputError(PacktrainError, ValueError):
    """The output folder holds something else, or another run."""

    exit_code = 2


class BusyError(OutputError):
    """Another run works on the output folder; says which, where and since when."""


class StoreError(PacktrainError, OSError):
    """Reading or writing the store failed, or there is no room."""


class UnwritableError(StoreError):
    """A folder that may not be written: the person chooses another one, or gives the right to it."""

    exit_code = 2


class IntegrityError(PacktrainError, RuntimeError):
    """Bytes are not what their record says: a damaged shard, a ledger that does not close."""


class EngineMismatchError(IntegrityError):
    """A tokenizer engine gave a text other tokens than the reference. The message is the text."""


class StalledError(PacktrainError, TimeoutError):
    """What a loader waited for did not come; names the rank, the shard and its address."""


class DivergedError(PacktrainError, ArithmeticError):
    """A training's loss is no longer a number, and neither are its weights."""


class LaunchError(PacktrainError, RuntimeError):
    """The ranks of a training job did not come together; names who is missing, twice, silent or different."""


class TaskError(PacktrainError, RuntimeError):
    """A task failed after its tries; names the task and its input."""


class RunDiedError(PacktrainError, RuntimeError):
    """The run that somebody waits for has failed, has died, or never began."""


class RowRejectedError(PacktrainError, ValueError):
    """One input row cannot be used. The run goes on; the row goes to the rejects.

    Attributes:
        reason: a short stable word that the ledger counts by, such as `invalid_json`.
        detail: a sentence for the person who looks for the row.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type["RowRejectedError"], tuple[str, str]]:
        return type(self), (self.reason, self.detail)


class RowFilteredError(PacktrainError, ValueError):
    """One input row is well formed but not wanted, such as a problem without a solution. Counted by reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
