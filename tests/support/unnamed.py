"""What datasets maps, without a name for it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def unnamed() -> Iterator[None]:
    """Datasets in memory have no cache files, which are named by a hash of the function with all that it holds.

    With a tokenizer of 150,000 entries the hash takes many times as long as what TRL does with the rows.
    """
    from datasets import arrow_dataset, fingerprint

    with pytest.MonkeyPatch.context() as patch:
        for module in (arrow_dataset, fingerprint):
            patch.setattr(module, "update_fingerprint", lambda *_: fingerprint.generate_random_fingerprint())
        yield
