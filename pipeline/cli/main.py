"""The command line. Each command is a thin wrapper around a function of the package.

A command imports what it needs inside its function: `packtrain --help` takes 0.07 s of a core, and with the imports of
all commands 0.8 s.
"""

import atexit
import errno
import gc
import logging
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from ...schemas.errors import PacktrainError, did_you_mean
from ...schemas.escape import EscapingFormatter, escape
from .care import clean, export, prep, verify, wait
from .completion import completed_in_shells, config_keys
from .help import WIDTH, Commands
from .interruption import INTERRUPTED, interruptible
from .output import print_json, print_line
from .reports import contamination, diff, inspect, plan, report
from .run import run
from .samples import eval_apps, sample
from .training import doctor, explain_loss, loader, probe, train

_READER_LEFT = 141
"""The code that shells report for programs ended by SIGPIPE."""
_NAME_CHARACTERS = 80
"""Maximum number of characters of a name in a message."""
_USAGE_ERROR = 2
"""The exit code for a command line or a configuration that is wrong."""
_OWN_CHECK = "Value error, "
"""What pydantic puts before the words of a check of ours; options are checked by pydantic, too."""
_CHOICE = re.compile(rf"(?:{_OWN_CHECK})?'(.*?)' is not one of (.*)")
"""click's message about a value that an option does not allow: `'bdf' is not one of 'bfd', 'tight'.`"""
# The usage error of the click that typer uses: its own copy, or the package.
_UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="packtrain",
    cls=Commands,
    help="Turns conversations, prompt-completion pairs and documents into packed training shards.",
    epilog="packtrain COMMAND --help shows options and examples; packtrain run --demo works without any files.",
    no_args_is_help=True,
    context_settings={"max_content_width": WIDTH},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def schema() -> None:
    """Print the JSON Schema of the configuration, for editors."""
    from ...schemas.config.config import RunConfig

    print_json(RunConfig.model_json_schema())


for _command in (
    plan, run, wait, prep, report, diff, inspect, contamination, loader, verify, clean, export,
    train, explain_loss, probe, doctor, sample, eval_apps, schema,
):  # fmt: skip
    app.command()(_command)


def _version(value: bool) -> None:
    """Print the version and exit, if --version was given."""
    if value:
        from ... import __version__

        print_line(f"packtrain {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Turns conversations, prompt-completion pairs and documents into packed training shards."""


@cache
def command() -> Any:
    """The click command. typer takes longer to build it than many commands run, so it is built once per process."""
    return typer.main.get_command(app)


def _key_of(error: Any) -> str | None:
    """The key that was likely meant by an unknown option, such as `pack.max_docs` for --max-docs; None if there is no
    such key, or the command takes no keys.

    Args:
        error: a usage error of click.
    """
    option = getattr(error, "option_name", None)
    context = error.ctx
    if option is None or context is None:
        return None
    # Only a command that takes keys has the option --set.
    if not any("--set" in parameter.opts for parameter in context.command.params):
        return None
    name = str(option).lstrip("-").replace("-", "_")
    for key in config_keys(training=context.command.name in ("train", "explain-loss")):
        # `max_docs` is the last part of the key `pack.max_docs`, and the whole of a key at the top.
        if key == name or key.endswith(f".{name}"):
            return key
    return None


def main() -> None:
    """Run a command and exit: 0 success, 1 failure, 2 usage or configuration error, 130 interrupted.

    141 means that the reader of the output closed its pipe, as for a program ended by SIGPIPE.
    """
    _open_streams()  # first of all, before any file is opened
    atexit.register(gc.freeze)  # else Python looks through all that is loaded once more as it exits: 0.3 s
    # What Python prints warnings with where a package has set up no logging: escaped, as all that is printed.
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(EscapingFormatter())
    with interruptible() as interruption:
        try:
            code = _code_of_command()
            code_of_lost_output = _lost_output()
        except KeyboardInterrupt:  # as the command ended
            code = INTERRUPTED
            code_of_lost_output = None
        if code == INTERRUPTED:
            interruption.tell()
    # A command may end well although its output is lost, as on a full disk: then the code says so.
    sys.exit(code_of_lost_output or code)


def _code_of_command() -> int:
    """Run the command of this process's arguments; errors become messages and exit codes."""
    try:
        Path.cwd()
    except OSError as error:
        print_line(
            f"packtrain: the working directory is gone, or may not be read ({error.strerror}); change to another one, "
            "and run the same command again",
            file=sys.stderr,
        )
        return _USAGE_ERROR
    try:
        # Without standalone mode, click returns the code of a `typer.Exit` or an interruption.
        with completed_in_shells():
            code = command()(sys.argv[1:], prog_name="packtrain", standalone_mode=False)
    except PacktrainError as error:
        print_line(f"packtrain: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        return _code_of_os_error(error)
    except _UsageError as error:
        _explain_usage(error)
        error.show()
        return int(error.exit_code)
    except typer.Exit as leave:
        return leave.exit_code
    except SystemExit as leave:  # of click and rich, if the reader of the output has left
        if isinstance(leave.__context__, BrokenPipeError):
            return _READER_LEFT
        raise
    except (KeyboardInterrupt, typer.Abort) as error:
        # typer turns any EOFError into Abort, also one of a damaged file, which is no interruption.
        if isinstance(error.__cause__, EOFError):
            raise error.__cause__ from None
        return INTERRUPTED
    return code if isinstance(code, int) else 0  # a command that ends well returns None


def _code_of_os_error(error: OSError) -> int:
    """Say what is wrong with a file that a command could not open or write; returns the exit code. A name may be too
    long, for example, in any path of a command line.

    Raises:
        OSError: the same error, if it names no file, and standard output can be written: a defect of ours, which is
            shown with its traceback.
    """
    if error.filename is None:
        # Most likely an error of standard output, which has no name. To find out, a line end is written there.
        code = _lost_output(last="\n")
        if code is None:
            raise error
        return code
    name = str(error.filename)
    if len(name) > _NAME_CHARACTERS:
        name = f"{name[:_NAME_CHARACTERS]}…"
    print_line(f"packtrain: {name}: {error.strerror}; check the name, or give another", file=sys.stderr)
    # A full or failing disk is no mistake in what was typed.
    return 1 if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else _USAGE_ERROR


def _explain_usage(error: Any) -> None:
    """Change a message of click: add what was likely meant, and escape what it repeats of the command line."""
    if key := _key_of(error):
        error.message = f"{error.message}. It is a key of the configuration: --set {key}="
    elif possibilities := getattr(error, "possibilities", None):  # click's list of options or commands like this one
        error.message = f"{error.message}. Did you mean {possibilities[0]}?"
    elif match := _CHOICE.fullmatch(error.message):
        # `'bdf' is not one of 'bfd', 'tight'; did you mean bfd?`
        advice = did_you_mean(match[1], re.findall("'(.*?)'", match[2]))
        error.message = error.message.removeprefix(_OWN_CHECK).removesuffix(".") + advice
    if hasattr(error, "possibilities"):
        error.possibilities = None  # click would list them once more
    error.message = escape(error.message)


def _lost_output(last: str = "") -> int | None:
    """Write what Python still holds back for standard output. If it cannot be written, say so, and drop it.

    Nothing is said if the reader has closed the pipe, as `head` does.

    Args:
        last: printed at the end.

    Returns:
        The exit code for lost output; None if all was written.
    """
    try:
        print(end=last, flush=True)
    except OSError as error:
        # Python writes again what is left as it exits, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return _READER_LEFT
        print_line(
            f"packtrain: standard output cannot be written ({error.strerror}), so what was printed is incomplete. Make "
            "room, or redirect it elsewhere, and run the same command again",
            file=sys.stderr,
        )
        return 1
    return None


def _open_streams() -> None:
    """Open closed standard streams on the null device. Otherwise the next file that is opened would get the number of
    such a stream, and what is printed would be written into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            file = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            setattr(sys, name, os.fdopen(file, "w" if number else "r", encoding="utf-8"))
