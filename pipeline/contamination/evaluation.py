"""Reads evaluation files, and keeps their index in the cache under a name made from their content.

The index does not know the names of the files: the same rows under another path need no other index, and give the same
hits.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...schemas.config.config import DecontaminateConfig
from ...schemas.errors import InputError, RowRejectedError
from ...schemas.fingerprint import fingerprint
from ...schemas.jsontext import decode_note
from ...stages.overlap.examples import ANSWERS, CONVERSATIONS, PROMPT, PROMPTS, evaluation_id, evaluation_texts
from ...stages.overlap.words import unicode_version
from ...stages.prep.rowjson import require_shallow
from ..inputs.blocks import InputFile
from ..inputs.read import read_rows
from ..inputs.scan_cache import scan_inputs
from ..store.checksummed import unseal
from ..store.local import LocalStore
from ..store.open import Store, StoredFile
from .evaluation_files import MAX_ROW_BYTES, called, source_of
from .index_file import load_rows, put_rows

FORMAT = 2
"""Increase it whenever the same files would give another index, or the same index other hits."""
MOST_CHARACTERS = 1 << 29
"""Characters of all evaluation texts; their index needs about eight times as many bytes."""


@dataclass(frozen=True, slots=True)
class EvaluationFile:
    """One evaluation file, as the plan names it."""

    file: str
    bytes: int
    hash: str


@dataclass(frozen=True, slots=True)
class EvaluationCounts:
    """What is compared of evaluation files, and what is not."""

    rows: int
    textless: int
    """Rows without a column that holds text to compare."""
    texts: int
    """Different texts of all rows."""
    left_out: int
    """Texts of which nothing is compared: short answers, questions of a few words, or frames as a whole."""
    ngrams: int
    """Different runs of words that are compared."""
    common: int
    framed: int
    plain: int
    """Runs of words that do not count; see `stages.overlap.index`."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluation data of a run, indexed."""

    files: tuple[EvaluationFile, ...]
    ngram: int
    index: StoredFile
    """The index, in the cache."""
    counts: EvaluationCounts

    def payload(self) -> dict[str, Any]:
        """What the plan says about it: no paths."""
        named = [msgspec.to_builtins(file) for file in self.files]
        return {"files": named, "counts": msgspec.to_builtins(self.counts), **_settings(self.ngram)}

    @property
    def key(self) -> str:
        """What hits depend on besides the training data."""
        return _key(self.files, self.ngram)


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
    with called(named):
        found = scan_inputs([source_of(config)], base, scratch)
    files = tuple(EvaluationFile(file.shown, file.size, file.hash) for file in found)
    known = recall_evaluation(files, config.ngram, cache)
    if known is not None:
        return known
    return _opened(files, config.ngram, _index(found, files, config.ngram, cache), cache)


def recall_evaluation(files: Sequence[EvaluationFile], ngram: int, cache: Store) -> Evaluation | None:
    """The evaluation data whose index the cache already has; else None."""
    record = f"evaluations/{_key(files, ngram)}.json"
    try:
        index = decode_note(unseal(cache.read(record), record), StoredFile)
    except msgspec.MsgspecError:
        return None
    put = cache.hash(index.name) if index.name.startswith("evaluations/") else None
    if put is None or (put.bytes, put.hash) != (index.bytes, index.hash):
        return None
    return _opened(tuple(files), ngram, index, cache)


def _opened(files: tuple[EvaluationFile, ...], ngram: int, index: StoredFile, cache: Store) -> Evaluation:
    search, rows = load_rows(cache, index)
    held = search.index
    counts = EvaluationCounts(
        rows=rows.rows,
        textless=rows.textless,
        texts=len(held.counts),
        left_out=int((held.counts == 0).sum()) - len(held.whole),
        ngrams=len(np.unique(held.keys)),
        common=held.common,
        framed=held.framed,
        plain=held.plain,
    )
    return Evaluation(files, ngram, index, counts)


def _index(found: Sequence[InputFile], files: Sequence[EvaluationFile], ngram: int, cache: Store) -> StoredFile:
    texts: dict[tuple[bool, str], list[tuple[int, int, str]]] = {}
    rows = textless = size = 0
    for number, file in enumerate(found):
        had = False
        for line, row in _rows(file):
            rows += 1
            said = evaluation_texts(row)
            textless += not said
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
    return put_rows(texts, rows, textless, ngram, f"evaluations/{_key(files, ngram)}", cache)


def _rows(file: InputFile) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, row) of every row, lines from 1.

    Raises:
        InputError: a line is not a JSON object; names it.
    """
    path, count = file.origin or str(file.path), 0
    for block in file.blocks:
        rows = read_rows(file.where(block), block, MAX_ROW_BYTES)
        for number, reason, detail in rows.rejects:
            raise InputError(f"{path}, line {block.first_line + number + 1:,}: {reason}: {detail}; fix the row")
        for number, record in rows.records or ():
            count += 1
            yield block.first_line + number + 1, dict(record)
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


def _settings(ngram: int) -> dict[str, Any]:
    return {"ngram": ngram, "format": FORMAT, "unicode": unicode_version()}


def _key(files: Iterable[EvaluationFile], ngram: int) -> str:
    return fingerprint({"hashes": [file.hash for file in files], **_settings(ngram)})
