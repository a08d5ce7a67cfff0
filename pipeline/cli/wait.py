"""`packtrain wait`. It starts fast, because every rank of a training job may call it."""

from typing import Annotated

import typer

from .arguments.options import Json, seconds_option
from .views.streams import print_json, print_line


def wait(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder that a run is writing, or its URL.")],
    timeout: Annotated[float, seconds_option("Longest wait: seconds, or a time such as 90min.", default="1h")] = 3600.0,
    grace: Annotated[
        float, seconds_option("Time without a working process after which the run counts as dead.", default="1min")
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Wait until a dataset is finished. Fails if its run fails or dies, or if the time runs out."""
    from ...schemas.errors import RunDiedError, StalledError
    from ..dataset.wait import wait as wait_for

    try:
        manifest = wait_for(folder, timeout, grace=grace)
    except (RunDiedError, StalledError) as error:
        if as_json:
            state = "died" if isinstance(error, RunDiedError) else "timeout"
            print_json({"state": state, "message": str(error)}, indent=None)
        raise
    if as_json:
        rows = {name: split.rows for name, split in manifest.splits.items()}
        print_json({"state": "finished", "hash": manifest.hash, "rows": rows}, indent=None)
    else:
        print_line(f"{folder} is finished: manifest {manifest.hash[:16]}")
