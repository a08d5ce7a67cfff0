"""Says what an output folder without a manifest is, for commands that need a finished dataset."""

from pathlib import Path

from ...schemas.errors import InputError, StoreError
from ...schemas.names import MANIFEST
from ..store.driver_lock import Leases
from .manifests import open_output
from .output_folder import PLAN

EXPORT = "export.json"
"""The manifest of an export."""


def refuse_unfinished(folder: str | Path) -> None:
    """Refuse an unfinished output. Does nothing if there is a manifest, or if no run has worked in the folder.

    Raises:
        InputError: the output is unfinished, and the message says what works on it or how the run ended; or it is an
        export.
    """
    try:
        store = open_output(folder)
        if store.exists(MANIFEST):
            return
        if store.exists(EXPORT):
            raise InputError(f"{store.url} is an export, not a dataset; give the dataset that it was made from")
        leases = Leases(store).judge()
        if leases or store.exists(PLAN):
            working = [str(lease) for lease, alive in leases.values() if alive is not False]
            failed = [lease.error for lease, _ in leases.values() if lease is not None and lease.error is not None]
            again = "Run the same configuration again to continue where it stopped"
            ended = f"The run ended with: {failed[0]}. {again}" if failed else again
            state = f"{working[0]} is working on it" if working else ended
            raise InputError(f"{store.url} is not finished: it has no {MANIFEST}. {state}")
    except StoreError:
        return  # opening the dataset will report the problem
