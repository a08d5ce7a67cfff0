"""`packtrain wait`, and `packtrain run --wait`. Starts fast: every rank of a training job may call it."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer


def wait_command(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder that a run writes, or its URL.")],
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait at most.")] = 3600.0,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds without anybody at work after which the run counts as dead.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Wait until a dataset is finished. Fails when its run has failed or died, or when time is up."""
    from ..schemas.errors import RunDiedError, StalledError
    from .waiting import wait

    try:
        manifest = wait(folder, timeout, grace=grace)
    except (RunDiedError, StalledError) as error:
        if as_json:
            state = "died" if isinstance(error, RunDiedError) else "timeout"
            print(json.dumps({"state": state, "message": str(error)}))
        raise
    if as_json:
        rows = {name: split.rows for name, split in manifest.splits.items()}
        print(json.dumps({"state": "finished", "hash": manifest.hash, "rows": rows}))
    else:
        print(f"{folder} is finished: manifest {manifest.hash[:16]}")


def with_seconds(arguments: Sequence[str]) -> list[str]:
    """The command line with a number after `--wait`: without one, it waits for ever."""
    out = []
    for position, argument in enumerate(arguments):
        out.append(argument)
        if argument == "--wait" and not _is_number(arguments[position + 1 : position + 2]):
            out.append(".inf")
    return out


def _is_number(following: Sequence[str]) -> bool:
    try:
        return bool(following) and float(following[0].removeprefix(".")) >= 0
    except ValueError:
        return False
