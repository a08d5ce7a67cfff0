"""The prompts to sample: rows of the data, rendered and tokenized as training does it.

1. Scan the data, and find its format. What `packtrain prep --prompt-only` wrote says itself which row each prompt is.
2. Render each prompt with the chat template and its opening of an assistant's turn; texts stay as they are.
3. Tokenize with the reference tokenizer, and put the tokenizer's own tokens before a text, never before a conversation.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import blake3
import msgspec

from ...schemas.config.config import RunConfig, SourceConfig
from ...schemas.config.source import AUTO
from ...schemas.errors import ConfigError, InputError, RowRejectedError
from ...schemas.escape import escape_line
from ...schemas.fingerprint import version
from ...schemas.units import plural
from ...stages.prep import Options, make_format
from ...stages.select.where import Where
from ...stages.tokenize.engines import reference_tokenizer
from ..encode.encode_spec import EncodeSpec
from ..encode.prepared import make_spec
from ..encode.task import make_renderer
from ..encode.tokenizer import TokenizerSpec, find_tokenizer, load_tokenizer
from ..execute.pool import Pool
from ..execute.template_watchdog import note_row, rows_of
from ..inputs.blocks import Block, InputFile
from ..inputs.read import ID_COLUMNS, columns_of, given_ids, numbered_blocks, prepare_rows, read_rows, sample_rows
from ..inputs.scan_cache import scan_inputs
from ..inputs.source_formats import SourceFormat, format_options, resolve_format, what_it_is
from ..observer import Observer
from ..store.local import LocalStore

_NO_PROMPT = ("text", "tokenized", "preference", "python")
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class SamplePrompt:
    """One prompt."""

    id: str
    """See `schemas.samples.Sample`."""
    row: int
    ids: tuple[int, ...]
    """(T,) its tokens."""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """All prompts of the data, in its order."""

    prompts: list[SamplePrompt] = field(repr=False)
    tokenizer: TokenizerSpec
    stop: tuple[str, ...]
    """Tokens that end an answer: the template's end of a turn if there are conversations, and the end of a sequence."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids of `stop`."""
        ids = map(_tokenizer(self.tokenizer.json).token_to_id, self.stop)
        return tuple(id for id in ids if id is not None)

    @property
    def vocabulary(self) -> int:
        """One more than the tokenizer's highest id."""
        return 1 + int(max(_tokenizer(self.tokenizer.json).get_vocab(with_added_tokens=True).values()))

    @property
    def hash(self) -> str:
        """BLAKE3, shortened, of ids, rows and tokens."""
        plain = [(one.id, one.row, one.ids) for one in self.prompts]
        return blake3.blake3(msgspec.json.encode(plain)).hexdigest()[:16]


def read_prompts(config: RunConfig, base: Path, observer: Observer) -> PromptSet:
    """Read the prompts of a configuration's only source.

    Args:
        config: its source, and its tokenizer; nothing else of it is used.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError: the data, or one of its rows, cannot be used; names the
            rows.
    """
    (source,), section = config.sources, config.tokenizer
    tokenizer = load_tokenizer(find_tokenizer(section.path, base), chat_template=section.chat_template, base=base)
    with TemporaryDirectory(prefix="packtrain-sample-") as spool:
        files = scan_inputs([source], base, LocalStore(Path(spool)))
        form, own_rows = _form(source, base, files)
        if form.said is not None:
            observer.note(form.said)
        spec = make_spec(
            tokenizer, section, "tokenizers", version("tokenizers"), needs_template=form.make().needs_template
        )
        tasks = [
            _RenderTask(spec, file, block, form.name, form.options, source, first, own_rows)
            for file, block, first in numbered_blocks(files)
        ]
        rendered = list(_rendered(tasks))
    if any(block.conversations for block in rendered) and spec.template is None:
        tokenizer.require_template()
    rejects = [one for block in rendered for one in block.rejects]
    if rejects:
        raise _refused(rejects, files[0])
    prompts = [one for block in rendered for one in block.prompts]
    if not prompts:
        raise InputError(f"--data {files[0].path}: no row gives a prompt; check the file, --format and `where`")
    seen: set[int] = set()
    for one in prompts:
        if one.row in seen:
            raise InputError(f"--data: two prompts belong to row {one.row}; give each row once")
        seen.add(one.row)
    ends = [block.stop for block in rendered if block.stop] + [tokenizer.eos_token]
    return PromptSet(prompts, tokenizer, tuple(dict.fromkeys(one for one in ends if one)))


@dataclass(frozen=True, slots=True)
class _RenderTask:
    """One block of the data to read and render."""

    spec: EncodeSpec
    file: InputFile
    block: Block
    format: str
    options: Options
    source: SourceConfig
    first: int
    """The row number of the block's first row."""
    own_rows: bool
    """Whether each row says which row of other data it is."""

    def at(self, row: int) -> str:
        """The file and the number of a row, for messages."""
        return f"{self.file.path}, row {row + 1:,}"

    def __str__(self) -> str:
        return f"{self.file.path} (rows from {self.first + 1:,} on)"


@dataclass(slots=True)
class _RenderedBlock:
    prompts: list[SamplePrompt] = field(default_factory=list)
    rejects: list[str] = field(default_factory=list)
    conversations: int = 0
    stop: str | None = None


def _rendered(tasks: Sequence[_RenderTask]) -> Iterator[_RenderedBlock]:
    if tasks[0].spec.template is None:
        yield from map(_render, tasks)
        return
    with closing(Pool(1)) as pool:  # a template may have no end, and a process can be killed
        yield from pool.map(_render, tasks)


def _render(task: _RenderTask) -> _RenderedBlock:
    form = make_format(task.format, task.options)
    spec, out = task.spec, _RenderedBlock()
    columns = columns_of(form)
    path = task.file.where(task.block)
    rows = read_rows(path, task.block, task.source.max_row_bytes, None if columns is None else (*columns, *ID_COLUMNS))
    prepared = prepare_rows(rows, form)
    if task.source.where is not None:
        prepared = Where(task.source.where, "where").wanted(prepared)
    shown = task.file.origin or str(task.file.path)

    def reject(line: int, reason: str, detail: str) -> None:
        out.rejects.append(f"{shown}, line {task.block.first_line + line + 1:,}: {reason}: {detail}")

    for line, reason, detail in prepared.rejects:
        reject(line, reason, detail)
    tokenizer = _tokenizer(spec.tokenizer_json)
    renderer = make_renderer(spec, spec.template) if spec.template is not None else None
    given = given_ids(rows)
    with rows_of(task.at):
        for example in prepared.examples:
            note_row(task.block.first_line + example.line)
            own_id, own_row = given[example.line]
            number = task.first + example.line
            if task.own_rows:
                if own_row is None or not own_id:
                    reject(example.line, "wrong_type", "`id` must be a text, and `row` a whole number from 0")
                    continue
                number = own_row
            prompt, prefix = example.prompt, spec.around.prefix
            if not prompt:
                reject(example.line, "empty", "there is nothing before the answer to continue")
                continue
            if not isinstance(prompt, str):
                out.conversations += 1
                if renderer is None:
                    continue  # refused as a whole
                try:
                    prompt, prefix = renderer.prompt(prompt, example.tools), ()
                except RowRejectedError as error:
                    reject(example.line, error.reason, error.detail)
                    continue
                out.stop = renderer.stop
            elif spec.around.prefix_text and prompt.startswith(spec.around.prefix_text):
                prefix = ()
            ids = (*prefix, *tokenizer.encode(prompt, add_special_tokens=False).ids)
            out.prompts.append(SamplePrompt(example.group or own_id or str(number), number, ids))
    return out


@lru_cache(maxsize=1)
def _tokenizer(tokenizer_json: str) -> Any:
    return reference_tokenizer(tokenizer_json)


def _form(source: SourceConfig, base: Path, files: Sequence[InputFile]) -> tuple[SourceFormat, bool]:
    """The format, and whether each row says which row it is, because `packtrain prep --prompt-only` wrote it."""
    if source.expand == "per_turn":
        raise ConfigError("expand: per_turn gives several prompts for a row; leave it out")
    if source.format in (AUTO, "prompt_completion") and not source.keys:
        rows = sample_rows(files[0], 8)
        if rows and all({"id", "row", "prompt"} <= row.keys() <= {"id", "row", "prompt", "tools"} for row in rows):
            known = source.model_copy(update={"format": "prompt_completion"})
            return SourceFormat("prompt_completion", format_options(known, prompt_only=True)), True
    form = resolve_format(source, base, files, prompt_only=True)
    if form.name in _NO_PROMPT:
        raise ConfigError(
            f"--data: a row of format {form.name} has no prompt; give apps, prompt_completion or messages, or what "
            "packtrain prep --prompt-only wrote"
        )
    return form, False


def _refused(rejects: Sequence[str], file: InputFile) -> InputError:
    lines = "".join(f"\n  {escape_line(one)}" for one in rejects[:_SHOWN])
    more = f"\n  and {len(rejects) - _SHOWN:,} more" if len(rejects) > _SHOWN else ""
    what = what_it_is(file, rejects[0].split(": ")[1]) if ": " in rejects[0] else ""
    return InputError(
        f"--data: {plural(len(rejects), 'row')} cannot be used, and a test set without them would be another one:"
        f"{lines}{more}\nFix them, or leave them out: packtrain prep --prompt-only writes the others{what}"
    )
