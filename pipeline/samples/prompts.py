"""The prompts to sample: what `packtrain prep --prompt-only` wrote, rendered and tokenized as training does it.

Each prompt is rendered with the chat template and its opening of an assistant's turn; texts stay as they are. The
reference tokenizer encodes it, and puts its own tokens before a text, never before a conversation.
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

from ...schemas.config.config import RunConfig
from ...schemas.errors import InputError, RowRejectedError
from ...schemas.escape import escape_line
from ...schemas.fingerprint import version
from ...schemas.units import plural
from ...stages.prep import Options, make_format
from ...stages.tokenize.engines import reference_tokenizer
from ..encode.encode_spec import EncodeSpec
from ..encode.prepared import make_spec
from ..encode.task import make_renderer
from ..encode.tokenizer import TokenizerSpec, find_tokenizer, load_tokenizer
from ..execute.pool import Pool
from ..execute.template_watchdog import note_row, rows_of
from ..inputs.blocks import Block, InputFile
from ..inputs.read import ID_COLUMNS, columns_of, given_ids, prepare_rows, read_rows
from ..inputs.scan import scan_inputs
from ..store.local import LocalStore

_FORMAT = make_format("prompt_completion", Options(prompt_only=True))
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


def read_prompts(config: RunConfig, base: Path) -> PromptSet:
    """Read the prompts of a configuration's only source.

    Args:
        config: the path of its source, and its tokenizer; nothing else of it is used.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError: the data, or one of its rows, cannot be used; names the
            rows.
    """
    (source,), section = config.sources, config.tokenizer
    tokenizer = load_tokenizer(find_tokenizer(section.path, base), chat_template=section.chat_template, base=base)
    spec = make_spec(tokenizer, section, "tokenizers", version("tokenizers"), needs_template=False)
    with TemporaryDirectory(prefix="packtrain-sample-") as spool:
        files = scan_inputs([source], base, LocalStore(Path(spool)))
        tasks = [_RenderTask(spec, file, block, source.max_row_bytes) for file in files for block in file.blocks]
        rendered = list(_rendered(tasks))
    if any(block.conversations for block in rendered) and spec.template is None:
        tokenizer.require_template()
    rejects = [one for block in rendered for one in block.rejects]
    if rejects:
        lines = "".join(f"\n  {escape_line(one)}" for one in rejects[:_SHOWN])
        more = f"\n  and {len(rejects) - _SHOWN:,} more" if len(rejects) > _SHOWN else ""
        raise InputError(
            f"--data: {plural(len(rejects), 'row')} cannot be used, and a test set without them would be another one:"
            f"{lines}{more}\nGive what packtrain prep --prompt-only writes: id, row and prompt"
        )
    prompts = [one for block in rendered for one in block.prompts]
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
    max_row_bytes: int

    def at(self, row: int) -> str:
        """The file and the number of a row, for messages."""
        return f"{self.file.path}, row {row + 1:,}"

    def __str__(self) -> str:
        return f"{self.file.path} (rows from {self.block.first_line + 1:,} on)"


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
    spec, out, path = task.spec, _RenderedBlock(), task.file.path
    rows = read_rows(path, task.block, task.max_row_bytes, (*(columns_of(_FORMAT) or ()), *ID_COLUMNS))
    prepared, given = prepare_rows(rows, _FORMAT), given_ids(rows)

    def reject(line: int, reason: str, detail: str) -> None:
        place = f"{task.file.origin or task.file.path}, line {task.block.first_line + line + 1:,}"
        out.rejects.append(f"{place}: {reason}: {detail}")

    for line, reason, detail in prepared.rejects:
        reject(line, reason, detail)
    tokenizer = _tokenizer(spec.tokenizer_json)
    renderer = make_renderer(spec, spec.template) if spec.template is not None else None
    with rows_of(task.at):
        for example in prepared.examples:
            note_row(task.block.first_line + example.line)
            id, row = given[example.line]
            prompt, prefix = example.prompt, spec.around.prefix
            if row is None or not id:
                reject(example.line, "wrong_type", "`id` must be a text, and `row` a whole number from 0")
                continue
            if isinstance(prompt, str):
                if spec.around.prefix_text and prompt.startswith(spec.around.prefix_text):
                    prefix = ()
            else:
                out.conversations += 1
                if renderer is None:
                    continue  # refused as a whole
                try:
                    prompt, prefix = renderer.prompt(prompt or [], example.tools), ()
                except RowRejectedError as error:
                    reject(example.line, error.reason, error.detail)
                    continue
                out.stop = renderer.stop
            ids = (*prefix, *tokenizer.encode(prompt, add_special_tokens=False).ids)
            out.prompts.append(SamplePrompt(id, row, ids))
    return out


@lru_cache(maxsize=1)
def _tokenizer(tokenizer_json: str) -> Any:
    return reference_tokenizer(tokenizer_json)
