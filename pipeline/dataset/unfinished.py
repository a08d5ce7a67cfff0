"""Says what an output folder without a manifest is, for commands that need a finished dataset."""

from pathlib import Path

import msgspec

from ...schemas.errors import InputError, StoreError
from ...schemas.jsontext import decode_note
from ...schemas.names import MANIFEST
from ..store.driver_lock import FAILED, Failure, Leases
from ..store.open import Store
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
            state = f"{working[0]} is working on it" if working else _ended(store)
            raise InputError(f"{store.url} is not finished: it has no {MANIFEST}. {state}")
    except StoreError:
        return  # opening the dataset will report the problem


def _ended(store: Store) -> str:
    again = "Run the same configuration again to continue where it stopped"
    try:
        return f"The run ended with: {decode_note(store.read(FAILED), Failure).message}. {again}"
    except msgspec.MsgspecError:
        return again
