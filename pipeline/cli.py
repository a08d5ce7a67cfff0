"""The command line. Each command is a thin coat over a function of the package."""

import logging
import os
import signal
import sys
from contextvars import copy_context
from typing import Annotated, Any

import typer

from ..schemas.errors import PacktrainError
from ..schemas.escape import EscapingFormatter, escape
from .cli_diff import diff
from .cli_help import WIDTH, Commands
from .cli_look import inspect, loader, schema
from .cli_mend import clean, repair, verify
from .cli_plan import plan
from .cli_report import report
from .cli_run import prep, run
from .cli_streams import ReaderLeftError, flush_output, guard_streams, print_line
from .cli_train import doctor, launch, probe, train
from .cli_wait import wait_command, with_seconds
from .completion import mend_words, mend_zsh

_INTERRUPTED = 130
# Of whichever click typer was built on: its own copy, or the package.
_UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="packtrain",
    cls=Commands,
    help="Turns conversations, prompt-completion pairs and documents into packed training shards.",
    epilog="packtrain COMMAND --help shows options and examples; packtrain run --demo needs nothing else.",
    no_args_is_help=True,
    context_settings={"max_content_width": WIDTH},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command()(run)
app.command()(plan)
app.command()(prep)
app.command("wait")(wait_command)
app.command()(report)
app.command()(inspect)
app.command()(diff)
app.command()(loader)
app.command()(verify)
app.command()(repair)
app.command()(clean)
app.command()(train)
app.command()(probe)
app.command()(doctor)
app.command()(launch)
app.command()(schema)


def _version(value: bool) -> None:
    if value:
        from .. import __version__

        print_line(f"packtrain {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Turns conversations, prompt-completion pairs and documents into packed training shards."""


def main() -> None:
    """Run a command; 0 is success, 2 a mistake of the person, 1 a failure, 130 an interruption.

    Where nobody reads the output any more, it is 141, as of a program that SIGPIPE ended.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's way of saying Ctrl-C
    guard_streams()
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(EscapingFormatter())
    mend_words(os.environ)
    if any(argument.endswith("-completion") for argument in sys.argv[1:3]):
        mend_zsh()
    try:
        arguments = with_seconds(sys.argv[1:])
        # In a context of its own: what messages advise depends on this command line, and on no later one.
        code = copy_context().run(app, arguments, prog_name="packtrain", standalone_mode=False)
        flush_output()
    except ReaderLeftError as error:
        sys.exit(error.exit_code)
    except PacktrainError as error:
        print_line(f"packtrain: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except _UsageError as error:
        if near := getattr(error, "possibilities", None):
            error.message = f"{error.message}. Did you mean {near[0]}?"
            error.possibilities = None
        error.message = escape(error.message)
        error.show()
        sys.exit(error.exit_code)
    except typer.Exit as leave:
        sys.exit(leave.exit_code)
    except (KeyboardInterrupt, typer.Abort) as error:
        if isinstance(error.__cause__, EOFError):  # typer takes any for a person who closed the input
            raise error.__cause__ from None
        code = _INTERRUPTED
    # Without standalone mode, the code of a `typer.Exit`, or of an interruption, comes back as the result.
    if code == _INTERRUPTED:
        print_line("packtrain: interrupted; run the same command again to go on", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":  # python -m packtrain.pipeline.cli, as torchrun starts it
    main()
