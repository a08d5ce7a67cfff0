"""The first half of the way done anew for one row: what prep makes of it, how it is rendered, which tokens it becomes.

Everything is done by the references, jinja2 and `tokenizers`, whatever the run used; so what agrees with the cache
checks traces and engines, too.
"""

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import msgspec
import pyarrow as pa

from ..schemas.config import RunConfig
from ..schemas.errors import ConfigError, PacktrainError
from ..schemas.fingerprint import fingerprint
from ..schemas.rows import Example
from ..stages.bytelengths import ByteLengths
from ..stages.encode import Batch, EncodeCounts, Encoder, Refused
from ..stages.engines import make_engine, reference_tokenizer
from ..stages.nested_values import nests_values
from ..stages.prep import FORMATS, Options, Prepared, ReaderOptions, make_format
from ..stages.rendered import Runs, solid
from .encode import EncodeSpec, make_renderer
from .follow_origin import Inputs, Origin
from .local_executor import LocalExecutor
from .outfolder import REQUEST
from .reader import Finished
from .readers import is_reader, reader_file, reader_options
from .recall import refuse_code
from .sources import columns_of
from .stores import Store


@dataclass(frozen=True, slots=True)
class Anew:
    """One example, rendered and tokenized again."""

    text: str
    runs: Runs | None
    """Over characters; None of a row that came as tokens."""
    unproved: str
    ids: list[int]
    token_runs: list[tuple[int, int, int, bool]]
    digest: bytes


def prepare_row(dataset: Finished, config: RunConfig, inputs: Inputs, source: str, origin: Origin) -> Prepared:
    """What prep makes of a source row, by the run's own format and condition.

    Raises:
        ConfigError: the row is read by a person's own function, which is gone or has changed, or which nobody but the
            dataset names.
    """
    noted = dataset.manifest.plan["formats"][source]
    form = make_format(noted["format"], _options(noted, config, inputs, source))
    if isinstance(origin.item, bytes):
        prepared = form.prepare([(origin.index, origin.item)])
    elif origin.item is None:
        return form.prepare([])
    else:
        columns = columns_of(form)
        row = {key: value for key, value in origin.item.items() if columns is None or key in columns}
        prepared = form.prepare_rows([(origin.index, row)])
    where = next(one.where for one in config.sources if one.name == source)
    if where is not None:
        from ..stages.where import Where  # imports polars

        prepared = Where(where).wanted(prepared)
    return prepared


def _options(noted: dict[str, Any], config: RunConfig, inputs: Inputs, source: str) -> Options:
    options_type = FORMATS[noted["format"]].options_type
    if options_type is not ReaderOptions:
        return msgspec.convert(noted["options"], options_type)
    if inputs.given is None:
        refuse_code(config, inputs.dataset.store.where(REQUEST))
        raise AssertionError("its format names a reader")
    given, base = inputs.given
    written = next((one.format for one in given.sources if one.name == source), "")
    if not is_reader(written) or written.split(":")[2] != noted["options"]["function"]:
        raise ConfigError(
            f"--config: source {source} was read by {noted['options']['function']}() of a reader, and not as "
            f"{written or 'nothing'}; give the configuration of the run"
        )
    path = reader_file(written, base, f"sources.{source}.format")
    try:
        code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}, which reads source {source}, cannot be read: {error}; put its file back") from None
    if blake2b(code.encode(), digest_size=16).hexdigest() != noted["options"]["code"]:
        raise ConfigError(
            f"{path}, which reads source {source}, has changed since the run, and is not run here; put the old one back"
        )
    return reader_options(written, base, f"sources.{source}.format", per_turn=noted["options"]["per_turn"])


def find_spec(dataset: Finished, cache: Store) -> EncodeSpec | None:
    """How the run encoded, tokenizer and template included; None where the cache has lost it."""
    try:
        return EncodeSpec.load(cache, f"specs/{fingerprint(dataset.manifest.plan['encode'])}.json")
    except (PacktrainError, msgspec.MsgspecError):
        return None


class Again:
    """Renders and encodes single examples as a run did, by the references.

    Args:
        spec: how the run encoded.
        apart: whether a template that may never end is rendered by another process, which can be ended.
    """

    def __init__(self, spec: EncodeSpec, *, apart: bool = True) -> None:
        self._apart = spec if apart and spec.template is not None and nests_values(spec.template) else None
        if self._apart is not None:
            return
        renderer = None
        if spec.template is not None:
            renderer = make_renderer(replace(spec, trace=False), spec.template)
        self._encoder = Encoder(
            make_engine("tokenizers", spec.tokenizer_json),
            renderer,
            ByteLengths.from_json(spec.tokenizer_json),
            spec.around,
            lambda: reference_tokenizer(spec.tokenizer_json),
        )

    def __call__(self, example: Example) -> Anew | str:
        """The example anew, or why it cannot be: the template refuses it, say."""
        if self._apart is not None:
            executor = LocalExecutor(1)
            try:
                return next(executor.map(_apart, [_Task(self._apart, example)]))
            except PacktrainError as error:
                return str(error)
            finally:
                executor.close()
        counts, refused = EncodeCounts(), list[Refused]()
        try:
            if example.ids is not None:
                for encoded in self._encoder.encode([example], counts, refused, []):
                    return _anew("", None, "", encoded)
                return f"{refused[0].reason}: {refused[0].detail}"
            batch = Batch()
            rendered = self._encoder.rendered(example, batch, counts)
            batch.add(example, rendered)
            encoded = self._encoder.finish(batch, counts, [])
            return _anew(rendered.text, solid(rendered.runs), rendered.unproved, encoded)
        except PacktrainError as error:
            return str(error)


@dataclass(frozen=True, slots=True)
class _Task:
    """An example for another process."""

    spec: EncodeSpec
    example: Example

    def __str__(self) -> str:
        return f"row {self.example.line + 1:,}"


def _apart(task: _Task) -> Anew | str:
    return Again(task.spec, apart=False)(task.example)


def _anew(text: str, runs: Runs | None, unproved: str, encoded: pa.RecordBatch) -> Anew:
    row = encoded.to_pylist()[0]
    token_runs = [(run["end"], run["kind"], run["turn"], run["train"]) for run in row["runs"]]
    return Anew(text, runs, unproved, row["input_ids"], token_runs, row["digest"])
