"""The examples of a block, for the tasks that read blocks."""

from pathlib import Path

from ...stages.prep import Options, PreparedBlock, make_format
from .blocks import Block
from .elsewhere import InputOrigin, here
from .scan import prepare_block


def block_examples(
    path: Path,
    block: Block,
    origin: InputOrigin | None,
    form: tuple[str, Options],
    max_row_bytes: int,
    where: str | None,
    scratch: Path,
) -> PreparedBlock:
    """The examples of a block that its source's condition wants, and the counts of its rows.

    Args:
        form: name and options of the format.
        where: the condition.
        scratch: this machine's folder for copies.

    Raises:
        InputError: the file is not here, or has changed since the scan.
    """
    prepared = prepare_block(here(path, block, origin, scratch), block, make_format(*form), max_row_bytes)
    if where is None:
        return prepared
    from ...stages.select.where import Where  # imported here, because it imports polars

    return Where(where).wanted(prepared)
