"""The ids of a dataset's examples."""

import re
from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.errors import IntegrityError
from ..pack.documents import NAME
from .open_dataset import Finished

_ID = re.compile(r"([^/]+)/(.+):([0-9]{1,15})(?:/([0-9]{1,9}))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of an example id."""

    source: str
    file: str
    """The file's label."""
    line: int
    """Line in the file, counted from 1."""
    sub: int = -1
    """Which example of the row; -1 if the row gives only one."""

    @property
    def id(self) -> str:
        """The id as in documents.parquet."""
        return f"{self.source}/{self.file}:{self.line}" + (f"/{self.sub}" if self.sub >= 0 else "")


def parse_id(text: str) -> Address | None:
    """Split an id into its parts; None if the text is not an id."""
    found = _ID.fullmatch(text)
    return Address(found[1], found[2], int(found[3]), int(found[4] or -1)) if found else None


def names_of(dataset: Finished, doc_ids: Collection[int]) -> dict[int, tuple[str, str]]:
    """Doc id → (id, source), for the doc ids that documents.parquet has; only row groups with some are read.

    Raises:
        IntegrityError: the file is missing or damaged.
    """
    from pyarrow import dataset as ds  # imports pandas where it is installed

    wanted = pa.array(sorted(doc_ids), pa.int64())
    try:
        data = ds.dataset(dataset.store.local(NAME), format="parquet")
        table = data.to_table(["doc_id", "id", "source"], filter=pc.field("doc_id").isin(wanted))
        return {row["doc_id"]: (row["id"], row["source"]) for row in table.to_pylist()}
    except (OSError, pa.ArrowException, ValueError, TypeError) as error:
        raise IntegrityError(
            f"{dataset.store.where(NAME)} is missing or damaged ({error}); packtrain verify --repair rebuilds it"
        ) from error
