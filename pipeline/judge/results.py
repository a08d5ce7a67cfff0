"""The results of an evaluation: a line that says what is evaluated and how, then one line a sample, in no order."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from ...schemas.errors import OutputError
from ...schemas.jsontext import decode_note, parse_json
from ...stages.judge.extraction import Extraction
from ..store.appended import AppendedFile
from .judging import Judgement

NAME = "results.jsonl"


@dataclass(frozen=True, slots=True)
class ResultKey:
    """Which sample a line is about."""

    row: int
    sample: int
    id: str
    extraction: Extraction


@dataclass(frozen=True, slots=True)
class SampleResult:
    """One line: what became of one sample. The keys of both parts stand beside each other."""

    about: ResultKey
    outcome: Judgement

    @property
    def key(self) -> tuple[int, int]:
        """(row, sample), which is unique."""
        return self.about.row, self.about.sample


Results = dict[tuple[int, int], SampleResult]


def open_results(folder: Path, identity: Mapping[str, Any], ids: Mapping[int, str]) -> tuple[AppendedFile, Results]:
    """The results of an evaluation to run or to continue: the file, and those that it has.

    Args:
        identity: what is evaluated, and how.
        ids: row of the data → its problem's id.

    Raises:
        OutputError: the folder holds something else, or another evaluation; or a line is damaged.
        BusyError, StoreError: see `AppendedFile`.
    """
    others = [one.name for one in folder.iterdir()] if folder.is_dir() else []
    if held := next((name for name in others if name not in (NAME, "summary.json")), None):
        raise OutputError(f"--out {folder} holds something else ({held}); choose another folder")
    file = AppendedFile(folder / NAME)
    try:
        with file.reader() as reader:
            whole, end, cut = reader.read().rpartition(b"\n")
        if cut:  # by a kill; judged again
            file.cut(len(whole) + len(end))
        if not whole:
            file.append(msgspec.json.encode(dict(identity)) + b"\n")
            return file, {}
        before, results = _parsed(file.path, whole, ids)
        if differs := differences(before, identity):
            raise OutputError(
                f"--out {folder} holds another evaluation: {differs} (there, here); choose another folder"
            )
        return file, results
    except BaseException:
        file.close()
        raise


def read_results(folder: Path, ids: Mapping[int, str]) -> tuple[dict[str, Any], Results]:
    """(identity, results) of an evaluation.

    Raises:
        OutputError: there is none, or a line is damaged.
    """
    path = folder / NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            whole = file.read().rpartition(b"\n")[0]
    except OSError as error:
        raise OutputError(
            f"{path} cannot be read: {error.strerror}; give the --out of a `packtrain eval-apps`"
        ) from None
    return _parsed(path, whole, ids)


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The values that differ between two identities, for a message."""
    keys = [key for key in dict.fromkeys((*here, *there)) if there.get(key) != here.get(key)]
    return "; ".join(f"{key} {_short(there.get(key))}, {_short(here.get(key))}" for key in keys)


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:60]}…"


def encoded(results: Iterable[SampleResult]) -> bytes:
    """Their lines."""
    return b"".join(msgspec.json.encode(asdict(one.about) | asdict(one.outcome)) + b"\n" for one in results)


def _parsed(path: Path, whole: bytes, ids: Mapping[int, str]) -> tuple[dict[str, Any], Results]:
    identity: Any = None
    results: Results = {}
    for number, line in enumerate(whole.split(b"\n"), start=1):
        try:
            if number == 1:
                identity = parse_json(line)
                if not isinstance(identity, dict) or "comparator" not in identity:
                    raise ValueError("it does not say what is evaluated")
                continue
            result = SampleResult(decode_note(line, ResultKey), decode_note(line, Judgement))
            if ids.get(result.about.row) != result.about.id or result.about.sample < 0:
                raise ValueError(f"the data has another problem in row {result.about.row}, or none")
        except (ValueError, msgspec.MsgspecError) as error:
            raise OutputError(
                f"{path}, line {number:,} is damaged ({error}); remove the folder, and evaluate again"
            ) from None
        results[result.key] = result
    return identity, results
