"""Which source each document of a dataset, or of several, came from, and sums of losses by source."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...schemas.errors import IntegrityError
from ..rows import DOCUMENTS, PackedRows
from ..shard import view


class DocumentSources:
    """The sources of all documents. Sources with the same name in several datasets are one.

    In memory are only the places where the source changes from one document to the next: a few, because a run numbers
    the documents of a source one after the other.

    Args:
        datasets: in the order in which they are numbered.

    Raises:
        IntegrityError: a table of documents is missing or damaged.
    """

    def __init__(self, datasets: Sequence[PackedRows]) -> None:
        numbers: dict[str, int] = {}
        self._runs = [_runs(rows, numbers) for rows in datasets]
        self.names = tuple(numbers)
        """Their names; a source's number is its place here."""

    def of(self, dataset: int, doc_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """(D,) the number of the source of each document (D,) of one dataset."""
        firsts, numbers = self._runs[dataset]
        return numbers[np.searchsorted(firsts, doc_ids, side="right") - 1]

    def sums(self, sources: NDArray[np.int64], *values: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.float64]:
        """(S, values): for each source, the sums of several values (D,) of its documents."""
        size = len(self.names)
        return np.stack([np.bincount(sources, weights=one, minlength=size) for one in values], axis=1)


def _runs(rows: PackedRows, numbers: dict[str, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first doc id of each run of documents of one source, ascending, and the source's number, which is given to
    names that have none yet.
    """
    firsts, owners = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    try:
        with pq.ParquetFile(rows.documents()) as file:
            for batch in file.iter_batches(columns=["doc_id", "source"]):
                ids = view(batch.column(0), pa.int64())
                source = batch.column(1)
                source = source if isinstance(source, pa.DictionaryArray) else source.dictionary_encode()
                own = [numbers.setdefault(name, len(numbers)) for name in source.dictionary.to_pylist()]
                codes = np.array(own, np.int64)[view(source.indices, source.indices.type)]
                order = np.argsort(ids, kind="stable")
                ids, codes = ids[order], codes[order]
                begins = np.flatnonzero(np.diff(codes, prepend=-1))
                firsts.append(ids[begins])
                owners.append(codes[begins])
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(
            f"{rows.files.url(DOCUMENTS)} is missing or damaged ({error}); run packtrain verify on its folder"
        ) from error
    first, owner = np.concatenate(firsts), np.concatenate(owners)
    changes = np.flatnonzero(np.diff(owner, prepend=-1))
    return first[changes], owner[changes]
