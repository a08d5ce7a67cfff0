"""Rows whose documents share their first tokens: what each piece sees, and the documents one by one.

A branch is a piece that continues the path of an earlier piece of its row. Its parent stands `parents` pieces before
it, and its first position is its prefix: how many tokens of the parent's path come before its own. Its first token is
the last shared one, repeated, so that labels are not shifted and a piece's first label is always -100:

    documents      10 11 12 13           10 11 12 20 21
    input_ids      10 11 12 13           12 20 21
    position_ids    0  1  2  3            2  3  4
    parents         0                     1
    path            0  1  2  3            0  1  4  5  6      (places in the row)

Legend: `T` stored tokens, `D` pieces, `K` tokens of all paths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..schemas.dataset.row_batch import Row
from ..schemas.errors import ConfigError, IntegrityError
from ..schemas.ragged import offsets_of, ranges
from ..schemas.rows import IGNORE_INDEX

if TYPE_CHECKING:
    from .attention.packed_attention import Applied

PATHS_ATTENTION = "packed_varlen"
"""The only attention that follows paths."""


def require_attention(attention: "Applied | None", data: object) -> None:
    """Require the proof that a model's attention follows paths. Any other attention would train the pieces as if they
    were documents, without an error.

    Args:
        attention: what `use_packed(model)` returned.
        data: the rows, for the message.

    Raises:
        ConfigError: there is no proof, or it is of another attention.
    """
    if attention is None:
        raise ConfigError(
            f"{data} has rows whose documents share tokens (pack.share): give attention=use_packed(model), so that no "
            "other attention trains them, or take PackedLoader(unpacked=True), which makes each document whole"
        )
    if attention.name != PATHS_ATTENTION:
        raise ConfigError(
            f"{data} has rows whose documents share tokens (pack.share), and attention: {attention.name} does not know "
            f"them; set attention: auto or {PATHS_ATTENTION}, pack with pack.share: none, or take "
            "PackedLoader(unpacked=True)"
        )


def paths_of(row: Row) -> list[NDArray[np.int64]]:
    """The path of each piece of a row with branches: the places in the row of the tokens that its last token sees.

    In the example of the module, the paths are 0 1 2 3 and 0 1 4 5 6.

    Raises:
        IntegrityError: a parent stands before the row, or its path is shorter than the prefix.
    """
    assert row.parents is not None
    bounds = offsets_of(row.seq_lengths).tolist()  # 0 4 7
    prefixes = row.position_ids[bounds[:-1]].tolist()  # 0 2: the position of each piece's first token
    paths: list[NDArray[np.int64]] = []
    for number, (parent, prefix) in enumerate(zip(row.parents.tolist(), prefixes, strict=True)):
        piece = np.arange(bounds[number], bounds[number + 1], dtype=np.int64)
        if parent:
            # `paths` ends with the path of the piece before this one, so that `paths[-parent]` is the parent's.
            if not 0 < parent <= number or not 0 < prefix <= len(paths[-parent]):
                raise IntegrityError(
                    f"piece {number} of a row continues {prefix:,} tokens of the piece {parent} before it, which is "
                    "not there or shorter; packtrain verify finds the damaged shard"
                )
            piece = np.concatenate((paths[-parent][:prefix], piece))
        paths.append(piece)
    return paths


def path_arguments(rows: Sequence[Row]) -> dict[str, Any]:
    """What a batch of rows with branches has in place of `cu_seq_lens_q` and its like.

    Returns:
        `cu_pieces`: int32 (D + 1,), where the pieces of the batch begin, then T; `max_piece`: tokens of the longest;
        `paths`: int64 (K,), the paths of all pieces, end to end, as places in the batch; `cu_paths`: int32 (D + 1,),
        where each path begins, then K; `max_path`: tokens of the longest.
    """
    paths: list[NDArray[np.int64]] = []
    first_token = 0  # of the row in the batch
    for row in rows:
        paths += [path + first_token for path in paths_of(row)]
        first_token += len(row.input_ids)
    piece_lengths = np.concatenate([row.seq_lengths for row in rows])
    path_lengths = np.array([len(path) for path in paths], np.int64)
    return {
        "cu_pieces": torch.from_numpy(offsets_of(piece_lengths, np.int32)),
        "max_piece": int(piece_lengths.max(initial=0)),
        "paths": torch.from_numpy(np.concatenate(paths)),
        "cu_paths": torch.from_numpy(offsets_of(path_lengths, np.int32)),
        "max_path": int(path_lengths.max(initial=0)),
    }


def expanded(row: Row) -> Row:
    """The row with every document whole: each has its shared tokens again, without labels there.

    The comments have the numbers of the module's example.
    """
    if row.parents is None:
        return row
    paths = paths_of(row)
    places = np.concatenate(paths)  # 0 1 2 3  0 1 4 5 6: each token of the new row in the old one
    lengths = np.array([len(path) for path in paths], np.int32)  # 4 5
    added = lengths - row.seq_lengths  # 0 2: tokens of each document that stand in other pieces
    positions = ranges(0, lengths)  # 0 1 2 3  0 1 2 3 4
    # Shared tokens are trained in the piece where they stand, and not again in each document that has them.
    is_shared = positions < np.repeat(added, lengths)
    weights = row.loss_weights
    return replace(
        row,
        input_ids=row.input_ids[places],
        labels=np.where(is_shared, np.int32(IGNORE_INDEX), row.labels[places]),
        position_ids=positions.astype(np.int32),
        seq_lengths=lengths,
        seq_lengths_unpadded=None if row.seq_lengths_unpadded is None else row.seq_lengths_unpadded + added,
        loss_weights=None if weights is None else np.where(is_shared, np.float32(0), weights[places]),
        parents=None,
    )


def piece_bounds(batch: Mapping[str, Any]) -> torch.Tensor:
    """Where the pieces of a batch begin, then T: int32 (D + 1,), whether it has branches or not."""
    bounds: torch.Tensor = batch["cu_pieces"] if "cu_pieces" in batch else batch["cu_seq_lens_q"]
    return bounds
