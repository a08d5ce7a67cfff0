"""Prepares, renders and tokenizes one row again, with the run's own functions.

Rendering and tokenizing always use the references, jinja2 and `tokenizers`. So a comparison of the result with the
cache also checks the traced template and the engine that the run used.
"""

from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ...schemas.config.config import RunConfig
from ...schemas.errors import ConfigError, InputError, PacktrainError
from ...schemas.rows import Example
from ...stages.prep import FORMATS, PreparedBlock, ReaderOptions, make_format
from ...stages.template.rendered import Rendered, Runs, solid
from ...stages.tokenize.encode import Batch, Refused
from ...stages.tokenize.encode_counts import EncodeCounts
from ...stages.tokenize.engines import make_engine
from ..dataset.open import Finished
from ..dataset.run_notes import RUN, refuse_code
from ..encode.encode_spec import EncodeSpec
from ..encode.task import make_encoder
from ..execute.pool import Pool
from ..inputs.blocks import BlockRows, Records
from ..inputs.read import columns_of, prepare_rows
from ..inputs.user_reader import is_reader, reader_file, reader_options


@dataclass(frozen=True, slots=True)
class Reencoded:
    """One example, rendered and tokenized again."""

    text: str
    runs: Runs | None
    """Runs over characters; None for a row that was given as tokens."""
    unproved: str
    ids: list[int]
    token_runs: list[tuple[int, int, int, bool]]
    digest: bytes


def prepare_row(
    dataset: Finished, config: RunConfig, given: tuple[RunConfig, Path] | None, source: str, rows: BlockRows
) -> PreparedBlock:
    """Prepare a source row with the run's format and filter condition.

    Args:
        given: the run's configuration and its folder, if the user gave them; only their reader functions are run.
        rows: a source with only this row.

    Raises:
        ConfigError: the source's reader function is gone or has changed, or only the dataset names it.
        InputError: this version does not know the source's format or its options.
    """
    try:
        noted = dataset.manifest.plan["formats"][source]
        known = FORMATS[noted["format"]].options_type
        options = None if known is ReaderOptions else msgspec.convert(noted["options"], known)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise InputError(
            f"{dataset.store.url} was made by another version of packtrain, and this one cannot read how source "
            f"{source} was prepared ({error}); use that version, or make the dataset again"
        ) from error
    form = make_format(noted["format"], options or _reader_options(dataset, noted, config, given, source))
    columns = columns_of(form)
    if columns is not None and rows.records is not None:  # a run reads only these columns of tables
        cut: Records = [(at, {key: value for key, value in row.items() if key in columns}) for at, row in rows.records]
        rows = replace(rows, records=cut)
    prepared = prepare_rows(rows, form)
    where = next(one.where for one in config.sources if one.name == source)
    if where is None:
        return prepared
    if given is None:
        refuse_code(config, dataset.store.where(RUN))
    elif where not in [one.where for one in given[0].sources if one.name == source]:
        raise ConfigError(f"--config: the run took rows of {source} where {where!r}; give the run's configuration")
    from ...stages.select.where import Where  # imported here, because it imports polars

    return Where(where).wanted(prepared)


def _reader_options(
    dataset: Finished,
    noted: dict[str, Any],
    config: RunConfig,
    configured: tuple[RunConfig, Path] | None,
    source: str,
) -> ReaderOptions:
    if configured is None:
        refuse_code(config, dataset.store.where(RUN))
        raise AssertionError("its format names a reader")
    given, base = configured
    written = next((one.format for one in given.sources if one.name == source), "")
    if not is_reader(written) or written.split(":")[2] != noted["options"]["function"]:
        raise ConfigError(
            f"--config: the run read source {source} with the function {noted['options']['function']}(), not as "
            f"{written or 'nothing'}; give the run's configuration"
        )
    path = reader_file(written, base, f"sources.{source}.format")
    try:
        code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}, which reads source {source}, cannot be read: {error}; restore the file") from None
    if blake2b(code.encode(), digest_size=16).hexdigest() != noted["options"]["code"]:
        raise ConfigError(
            f"{path}, which reads source {source}, has changed since the run, so it is not run; restore the old file"
        )
    return reader_options(written, base, f"sources.{source}.format", per_turn=noted["options"]["per_turn"])


class ReferenceEncoder:
    """Renders and encodes single examples as a run did, but with the reference implementations.

    Args:
        spec: how the run encoded.
        apart: whether to render a template in another process, which can be killed: it may have no end.
    """

    def __init__(self, spec: EncodeSpec, *, apart: bool = True) -> None:
        self._apart = spec if apart and spec.template is not None else None
        if self._apart is not None:
            return
        self._encoder = make_encoder(replace(spec, trace=False), make_engine("tokenizers", spec.tokenizer_json))

    def __call__(self, example: Example) -> Reencoded | str:
        """Return the encoded example, or why it cannot be encoded, for example because the template refuses it."""
        if self._apart is not None:
            with closing(Pool(1)) as pool:
                try:
                    (found,) = pool.map(_apart, [_Task(self._apart, example)])
                except PacktrainError as error:
                    return str(error)
            return found
        counts, refused = EncodeCounts(), list[Refused]()
        try:
            rendered = None if example.ids is not None else self._encoder.rendered(example, Batch(), counts)
            for encoded in self._encoder.encode([example], counts, refused, []):
                return _reencoded(rendered, encoded)
        except PacktrainError as error:
            return str(error)
        return f"{refused[0].reason}: {refused[0].detail}"


@dataclass(frozen=True, slots=True)
class _Task:
    """A request to encode one example in another process."""

    spec: EncodeSpec
    example: Example

    def __str__(self) -> str:
        return f"row {self.example.line + 1:,}"


def _apart(task: _Task) -> Reencoded | str:
    return ReferenceEncoder(task.spec, apart=False)(task.example)


def _reencoded(rendered: Rendered | None, encoded: pa.RecordBatch) -> Reencoded:
    row = encoded.to_pylist()[0]
    token_runs = [(run["end"], run["kind"], run["turn"], run["train"]) for run in row["runs"]]
    if rendered is None:
        return Reencoded("", None, "", row["input_ids"], token_runs, row["digest"])
    runs = solid(rendered.runs)
    return Reencoded(
        rendered.text, runs, rendered.unproved or rendered.mixed, row["input_ids"], token_runs, row["digest"]
    )
