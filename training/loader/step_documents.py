"""Which documents are in a step."""

from dataclasses import dataclass

from ..order.concat import ConcatRows
from ..order.steps import Step
from ..shards.dataset_rows import document_names


@dataclass(frozen=True, slots=True)
class StepDocument:
    """A document piece in a step."""

    rank: int
    dataset: str
    """Folder or URL of the dataset."""
    row: int
    """Number of the packed row in its dataset's split."""
    doc_id: int
    id: str
    source: str
    file: str
    line: int
    tokens: int
    """Without padding, if the dataset says how much there is."""


def step_documents(corpus: ConcatRows, step: Step) -> list[StepDocument]:
    """The documents of a step, with their ranks."""
    found: list[list[tuple[int, int, int, int]]] = [[] for _ in corpus.parts]
    where: list[tuple[int, int]] = []
    for rank, mine in enumerate(step.rank_rows):
        for index in mine:
            part, row = corpus.locate(int(step.rows[index]))
            packed = corpus.parts[part].row(row)
            own = packed.seq_lengths if packed.seq_lengths_unpadded is None else packed.seq_lengths_unpadded
            for doc_id, tokens in zip(packed.doc_ids.tolist(), own.tolist(), strict=True):
                where.append((part, len(found[part])))
                found[part].append((rank, row, doc_id, tokens))
    placed = []
    for rows, pieces in zip(corpus.parts, found, strict=True):
        names = document_names(rows, [doc_id for _, _, doc_id, _ in pieces]) if pieces else {}
        dataset = str(rows.where)
        placed.append([StepDocument(rank, dataset, row, doc, *names[doc], n) for rank, row, doc, n in pieces])
    return [placed[part][number] for part, number in where]
