"""Evaluation files, and the index of their texts in the cache: an Arrow file of one row, whose columns are lists. All
workers map it.
"""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ...schemas.config.config import DecontaminateConfig, SourceConfig
from ...schemas.errors import ConfigError, InputError, IntegrityError, RowRejectedError
from ...schemas.fingerprint import fingerprint
from ...stages.arrays import numbers, view
from ...stages.overlap.examples import ANSWERS, CONVERSATIONS, PROMPT, PROMPTS, evaluation_id, evaluation_texts
from ...stages.overlap.index import OverlapIndex, build_index
from ...stages.prep.rowjson import require_shallow
from ..inputs.blocks import InputFile
from ..inputs.find import Found, find_inputs
from ..inputs.read import read_rows
from ..inputs.scan import scan_inputs
from ..store.checksummed import get_note, put_note
from ..store.local import LocalStore
from ..store.open_store import Store, StoredFile

FORMAT = 4
"""Increase it whenever the same files would give another index, or the same index other hits."""
MOST_CHARACTERS = 1 << 29
"""Characters of all evaluation texts; their index needs about eight times as many bytes."""
EQUAL_ROWS = 10
"""Rows with the same text that are known; a set may have a question thousands of times."""
MAX_ROW_BYTES = 64 << 20
"""Longer lines are refused. Rows of programming problems hold megabytes of tests."""
_NAME = "evaluation"
_ARRAYS = ("words", "starts", "keys", "places", "whole")
"""Arrays of the index that are mapped as they are."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluation data of a run, indexed."""

    files: tuple[dict[str, Any], ...]
    """Name, bytes and hash of each, as the plan has them: no paths."""
    ngram: int
    index: StoredFile
    """The index, in the cache."""
    rows: int
    """Rows of all files."""

    def payload(self) -> dict[str, Any]:
        """What the plan says about it."""
        return {"files": list(self.files), "counts": {"rows": self.rows}, **_settings(self.ngram)}

    @property
    def key(self) -> str:
        """What hits depend on besides the training data."""
        return _key(self.files, self.ngram)


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationRows:
    """The T texts of an index, and the rows that they come from. Equal texts are one text of several rows."""

    index: OverlapIndex
    found_in: pa.Array
    """(T,) up to `EQUAL_ROWS` rows of each text, in JSON: [number of the file, line from 1, id or ""]."""
    rows: int
    """Rows of all files."""


def find_evaluation(config: DecontaminateConfig, base: Path) -> list[Found]:
    """The evaluation files, without reading them.

    Raises:
        ConfigError: one is missing.
    """
    with _called("decontaminate.against"):
        return find_inputs(_source(config), base)


def prepare_evaluation(
    config: DecontaminateConfig, base: Path, cache: Store, scratch: LocalStore, *, named: str = "decontaminate.against"
) -> Evaluation:
    """Scan the evaluation files, and index them if the cache lacks the index.

    Args:
        base: where relative paths start.
        named: what the user calls the list of files, for messages.

    Raises:
        ConfigError: a file is missing.
        InputError: a file is empty or damaged, a line is not a row, or no row of a file has a text to compare.
    """
    with _called(named):
        found = scan_inputs([_source(config)], base, scratch)
    files = tuple({"file": file.shown, "bytes": file.size, "hash": file.hash} for file in found)
    record = f"evaluations/{_key(files, config.ngram)}.json"
    index = _known(cache, record) or _put(_rows_of(found, config.ngram), record, cache)
    return Evaluation(files, config.ngram, index, load_rows(cache, index).rows)


def _source(config: DecontaminateConfig) -> SourceConfig:
    """The evaluation files as a source; its format is not used."""
    return SourceConfig(name=_NAME, path=config.against, max_row_bytes=MAX_ROW_BYTES)


@contextmanager
def _called(name: str) -> Iterator[None]:
    """Make errors say what the user calls the list of files."""
    try:
        yield
    except (ConfigError, InputError) as error:
        raise type(error)(str(error).replace(f"sources.{_NAME}.path", name)) from None


def _settings(ngram: int) -> dict[str, Any]:
    return {"ngram": ngram, "format": FORMAT, "unicode": unicodedata.unidata_version}


def _key(files: Sequence[dict[str, Any]], ngram: int) -> str:
    return fingerprint({"files": list(files), **_settings(ngram)})


# The index


def _rows_of(found: Sequence[InputFile], ngram: int) -> EvaluationRows:
    """Read all rows, and index their texts."""
    texts: dict[tuple[bool, str], list[tuple[int, int, str]]] = {}  # (whether it asks, text) → (file, line, id) of rows
    rows = size = 0
    for number, file in enumerate(found):
        had = False
        for line, row in _rows(file):
            rows += 1
            said = evaluation_texts(row)
            had = had or bool(said)
            for kind, text in dict.fromkeys(said):
                size += len(text)
                texts.setdefault((kind == PROMPT, text), []).append((number, line, evaluation_id(row)))
        if not had:
            raise InputError(
                f"{file.origin or file.path} has no text to compare: none of its rows has one of the columns "
                f"{', '.join((*CONVERSATIONS, *PROMPTS))}; rename the column that holds the question (columns of "
                f"answers are {', '.join(ANSWERS)})"
            )
        if size > MOST_CHARACTERS:
            raise InputError(
                f"the evaluation files have more than {MOST_CHARACTERS:,} characters of text, too many for one index; "
                "compare with some of them at a time"
            )
    index = build_index([text for _, text in texts], [asks for asks, _ in texts], ngram)
    found_in = [msgspec.json.encode(some[:EQUAL_ROWS]) for some in texts.values()]
    return EvaluationRows(index, pa.array(found_in, pa.large_binary()).cast(pa.large_string()), rows)


def _rows(file: InputFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line, row) of every row, lines from 1.

    Raises:
        InputError: a line is not a JSON object; names it.
    """
    path, count = file.origin or str(file.path), 0
    for block in file.blocks:
        rows = read_rows(file.path, block, MAX_ROW_BYTES)
        for number, reason, detail in rows.rejects:
            raise InputError(f"{path}, line {block.first_line + number + 1:,}: {reason}: {detail}; fix the row")
        for number, record in rows.records or ():
            count += 1
            yield block.first_line + number + 1, record
        for number, line in rows.lines or ():
            if line.isspace() or not line:
                continue
            count += 1
            try:
                row = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"))
                require_shallow(row, "the row")
                problem = "" if isinstance(row, dict) else "the line is JSON but not an object"
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                problem = f"the line is not JSON ({error})"
            except RowRejectedError as error:
                problem = error.detail
            if problem:
                raise InputError(
                    f"{path}, line {block.first_line + number + 1:,}: {problem}; fix the line, or remove it"
                )
            yield block.first_line + number + 1, row
    if not count:
        raise InputError(f"{path} has no rows; leave it out, or fill it")


def _known(cache: Store, record: str) -> StoredFile | None:
    """The index in the cache; None if it is missing or damaged."""
    index = get_note(cache, record, StoredFile)
    if index is None or not index.name.startswith("evaluations/"):
        return None
    put = cache.hash(index.name)
    return index if put is not None and (put.bytes, put.hash) == (index.bytes, index.hash) else None


def _put(made: EvaluationRows, record: str, cache: Store) -> StoredFile:
    """Put an index, and its record."""
    parts = {name: numbers(getattr(made.index, name)) for name in _ARRAYS}
    parts |= {"asks": numbers(made.index.asks.astype(np.uint8)), "found_in": made.found_in}
    lists = {
        name: pa.LargeListArray.from_arrays(numbers(np.array([0, len(values)], np.int64)), values)
        for name, values in parts.items()
    }
    noted = {"ngram": str(made.index.ngram), "rows": str(made.rows)}
    batch = pa.RecordBatch.from_pydict(lists).replace_schema_metadata(noted)
    with cache.draft("evaluations") as draft:
        with pa.ipc.new_file(pa.PythonFile(draft.file, mode="w"), batch.schema) as writer:
            writer.write_batch(batch)
        put = draft.result
        stored = StoredFile(f"{record.removesuffix('.json')}-{put.hash[:16]}.arrow", put.bytes, put.hash)
        cache.put(draft, stored.name, replace_damaged=True)
    put_note(cache, record, stored)
    return stored


@lru_cache(maxsize=2)
def load_rows(store: Store, file: StoredFile) -> EvaluationRows:
    """The index with its rows, mapped.

    Raises:
        IntegrityError: the index cannot be read.
    """
    path = file.path(store)
    try:
        with pa.memory_map(str(path)) as mapped:
            batch = pa.ipc.open_file(mapped).get_batch(0)
    except (OSError, pa.ArrowInvalid) as error:
        raise IntegrityError(f"{path} cannot be read ({error}); delete it and run again to make it again") from error
    noted, lists = batch.schema.metadata, {name: batch.column(name).values for name in batch.schema.names}
    arrays = {name: view(lists[name]) for name in _ARRAYS}
    index = OverlapIndex(ngram=int(noted[b"ngram"]), asks=view(lists["asks"]).astype(np.bool_), **arrays)
    return EvaluationRows(index, lists["found_in"], int(noted[b"rows"]))
