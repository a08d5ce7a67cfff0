"""What the rows of a run hold, before they are written: plans them as a run does, and counts instead of laying out."""

import numpy as np
from numpy.typing import NDArray

from ...schemas.layout import Certificate, fill_of
from ...schemas.ragged import offsets_of
from ...schemas.report import SplitFigures
from ...stages.mask.policy import supervised_tokens
from .ledger import account_rows
from .pack import Selected, split_names
from .segments import Segments
from .shard import Account, chunks_of, copies_together, cuts_through_turns
from .table import SLICE, Documents
from .window_plan import Pieces, arrange, pieces_of, planned_pieces, window_seed, windows


def count_rows(selected: Selected) -> list[SplitFigures]:
    """Return the figures of each split that has rows, and close the ledger; loss weights are not summed.

    Of preference pairs there are no figures, as they are not packed.

    Raises:
        IntegrityError: the ledger does not close.
    """
    names = [source.name for source in selected.config.sources]
    splits = sorted(split_names(selected.config))  # as a manifest lists them
    account, figures = Account(), list[SplitFigures]()
    if selected.pairs:
        _count_pairs(selected, account)
    else:
        segments = Segments.of(selected.table, selected.config)
        figures = [_count_split(selected, split, segments, account) for split in splits]
    account_rows(selected.ledger, names, [account.written()])
    return [one for one in figures if one.rows]


def _count_split(selected: Selected, split: str, segments: Segments, account: Account) -> SplitFigures:
    config, table = selected.config, selected.table
    owners, alignment, length = table.origins.owners, config.pack.alignment, config.truncate.max_length
    certificates, every, trained = list[Certificate](), 0, 0
    for number, blocks in enumerate(windows(table, split, config)):
        pieces = pieces_of(table, selected.split_pieces, split, blocks)
        plan = arrange(pieces, config, window_seed(config.seed, number))
        certificates.append(plan.certificate)
        for first, last in chunks_of(plan.row_offsets[1:], SLICE):
            here = slice(*plan.row_offsets[[first, last]].tolist())
            offsets = plan.row_offsets[first : last + 1] - here.start
            those = planned_pieces(plan, pieces, here)
            some = table.documents.at(those.documents)
            labels, heads = _labels(some, segments, those)
            padded = alignment.padded(those.lengths, offsets)
            ends = those.starts + those.lengths
            cuts = cuts_through_turns(some, segments, those.starts + those.repeated, ends)
            together = copies_together(some, those, offsets)
            account.add(owners[some.segment], labels, heads, padded - those.lengths, padded, cuts, together)
            every, trained = every + int(padded.sum(dtype=np.int64)), trained + int(labels.sum(dtype=np.int64))
    rows, bound, tokens, number = (
        sum(getattr(one, name) for one in certificates) for name in ("rows", "bound", "tokens", "pieces")
    )
    return SplitFigures(split, rows, bound, fill_of(tokens, rows, length), every, trained, number, every - tokens)


def _labels(some: Documents, segments: Segments, pieces: Pieces) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(D,) trained labels of each piece, and (D,) its tokens that the mask trains but that have no label, 0 or 1.

    Args:
        some: (D,) the document of each piece.
    """
    trained, heads = some.labels, some.asked_packed - some.labels
    cut = np.flatnonzero((pieces.starts != some.low) | (pieces.lengths != some.high - some.low))
    if len(cut):
        those, parts = some.at(cut), pieces.at(cut)
        ends, supervised = segments.runs(those)
        begins = parts.starts + parts.repeated
        asked, first = supervised_tokens(
            supervised, ends, offsets_of(those.run_count), begins, parts.starts + parts.lengths
        )
        heads[cut] = first & (parts.repeated == 0)
        trained[cut] = asked - heads[cut]
    return trained, heads


def _count_pairs(selected: Selected, account: Account) -> None:
    for source, here in selected.table.slices():
        some = selected.table.documents.at(here)
        # Without a prompt, the first tokens of both completions have no label.
        copies, heads = some.copies.astype(np.int64), 2 * (some.asked_kept - some.labels)
        none = np.zeros(len(some), np.int64)
        counts = (copies * (some.asked_kept - heads), copies * heads, none, copies * some.high, none, none)
        account.add(np.full(len(some), source), *counts)
