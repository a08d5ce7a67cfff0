"""The prompts to sample: what `packtrain prep --prompt-only` wrote, rendered and tokenized as training does it.

Each prompt is rendered with the chat template and its opening of an assistant's turn; texts stay as they are. The
reference tokenizer encodes it, and puts its own tokens before a text, never before a conversation.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ...schemas.config.config import TokenizerConfig
from ...schemas.errors import InputError, RowRejectedError
from ...schemas.escape import escape_line
from ...schemas.files.foreign import open_regular
from ...schemas.fingerprint import hash_bytes
from ...schemas.jsontext import decode_note
from ...stages.prep import Options, make_format
from ...stages.tokenize.engines import reference_tokenizer
from ...stages.tokenize.vocabulary import SpecialTokenAffixes
from ..encode.spec import RenderSpec, TokenizerSpec
from ..encode.task import make_renderer
from ..encode.tokenizer import load_tokenizer
from ..execute.pool import Pool
from ..inputs.find import require_regular
from ..inputs.lines import bounded_lines

_FORMAT = make_format("prompt_completion", Options(prompt_only=True))
"""Reads the prompt of a line."""
_LINES_PER_TASK = 256
_MAX_LINE_BYTES = 64 << 20
"""A longer line of the data is refused."""


class _PromptLine(msgspec.Struct):
    """What a line has beside its prompt, which `_FORMAT` reads."""

    id: str
    row: Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class SamplePrompt:
    """One prompt."""

    id: str
    """The problem's id, as the data gives it."""
    row: int
    """The problem's row in the data that the prompts were made of, from 0."""
    token_ids: tuple[int, ...]
    """(T,) the rendered prompt, with tokens such as <s> that the tokenizer puts before a text."""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """All prompts of the data, in its order."""

    prompts: list[SamplePrompt] = field(repr=False)
    tokenizer: TokenizerSpec
    stop_ids: tuple[int, ...]
    """Tokens that end an answer: the template's end of a turn if there are conversations, and the end of a sequence."""
    vocabulary_size: int
    """One more than the tokenizer's highest id."""

    @property
    def hash(self) -> str:
        """A hash of ids, rows and tokens, of 16 digits: a samples file is continued only for the same prompts."""
        fields = [(prompt.id, prompt.row, prompt.token_ids) for prompt in self.prompts]
        return hash_bytes(msgspec.json.encode(fields))[:16]


def read_prompts(data: Path, section: TokenizerConfig, base: Path) -> PromptSet:
    """Read the prompts of a file.

    Args:
        base: where relative paths of the section start.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError: the data, or one of its rows, cannot be used.
    """
    require_regular(data, "--data")
    tokenizer = load_tokenizer(section.path, base, section.chat_template)
    spec = RenderSpec.of(tokenizer, section)
    prompts: dict[int, SamplePrompt] = {}
    stop_tokens: list[str | None] = []  # the template's, once for each task; None for a task without conversations
    # In another process, which can be killed: a template may loop forever. A single one, because several would give
    # results in any order.
    with BufferedReader(open_regular(data)) as file, closing(Pool(1)) as pool:
        for task_prompts, stop_token in pool.map(_render, _render_tasks(spec, data, file)):
            stop_tokens.append(stop_token)
            for prompt in task_prompts:
                if prompt.row in prompts:
                    raise InputError(f"--data {data}: two prompts belong to row {prompt.row}; give each row once")
                prompts[prompt.row] = prompt
    if not prompts:
        raise InputError(f"--data {data} holds no prompts; give what packtrain prep --prompt-only writes")
    vocabulary: dict[str, int] = _tokenizer(tokenizer.json).get_vocab(with_added_tokens=True)
    # What ends an answer: the token that the template writes after a turn, and the token that ends a text.
    stop_tokens.append(tokenizer.special_tokens.get("eos_token"))
    stop_ids = tuple(dict.fromkeys(vocabulary[token] for token in stop_tokens if token in vocabulary))
    # Not the number of tokens: ids may have gaps.
    vocabulary_size = 1 + max(vocabulary.values())
    return PromptSet(list(prompts.values()), tokenizer, stop_ids, vocabulary_size)


@dataclass(frozen=True, slots=True)
class _RenderTask:
    """Some lines of the data to render."""

    spec: RenderSpec
    path: Path
    lines: list[tuple[int, bytes]]
    """(number from 0, line)."""

    def __str__(self) -> str:
        return f"{self.path} (lines from {self.lines[0][0] + 1:,} on)"


def _render_tasks(spec: RenderSpec, data: Path, file: "BufferedReader[Any]") -> Iterator[_RenderTask]:
    """All lines of the data, `_LINES_PER_TASK` in a task."""
    lines = enumerate(bounded_lines(file, f"--data {data}", _MAX_LINE_BYTES))
    while task_lines := list(islice(lines, _LINES_PER_TASK)):
        yield _RenderTask(spec, data, task_lines)


def _render(task: _RenderTask) -> tuple[list[SamplePrompt], str | None]:
    """The prompts of some lines, and the token that ends a turn; None if no line is a conversation, or the template
    writes no such token.

    Raises:
        InputError: a line is no prompt. It is not skipped, because scores on fewer prompts could not be compared.
        TokenizerError: there is a conversation, and no template.
    """
    spec = task.spec
    lines = dict(task.lines)  # number from 0 → line
    tokenizer = _tokenizer(spec.tokenizer.json)
    prompts: list[SamplePrompt] = []
    renderer = None  # made for the first conversation: texts need no template
    block = _FORMAT.prepare(task.lines)
    if block.rejects:
        number, reason, detail = block.rejects[0]
        raise _bad_line(task, number, RowRejectedError(reason, detail))
    for example in block.examples:
        try:
            line = decode_note(lines[example.line], _PromptLine)
            if isinstance(example.prompt, str):
                text = example.prompt
                prefix = _prefix_of(text, spec.tokenizer.around)  # around: what the tokenizer adds to plain texts
            else:
                renderer = renderer or make_renderer(spec, spec.tokenizer.require_template())
                row_renderer = renderer.for_row(example.variables, example.documents)
                text = row_renderer.prompt(example.prompt or [], example.tools)
                prefix = ()  # the template writes such tokens itself
        except (RowRejectedError, msgspec.MsgspecError) as error:
            raise _bad_line(task, example.line, error) from None
        token_ids = (*prefix, *tokenizer.encode(text, add_special_tokens=False).ids)
        prompts.append(SamplePrompt(line.id, line.row, token_ids))
    # The profile is what was learnt of the template, as which token it writes after a turn.
    stop_token = renderer.profile.stop_token if renderer is not None else None
    return prompts, stop_token


def _bad_line(task: _RenderTask, number: int, error: Exception) -> InputError:
    """The error for a line that is no prompt.

    Args:
        number: of the line in the file, from 0.
    """
    return InputError(
        f"--data {task.path}, line {number + 1:,}: {escape_line(str(error))}; give what packtrain prep --prompt-only "
        "writes: id, row and prompt"
    )


def _prefix_of(text: str, around: SpecialTokenAffixes) -> tuple[int, ...]:
    """The tokens such as <s> that the tokenizer puts before a plain text; none if the text has them already."""
    has_prefix = around.prefix_text != "" and text.startswith(around.prefix_text)
    return () if has_prefix else around.prefix


@lru_cache(maxsize=1)
def _tokenizer(tokenizer_json: str) -> Any:
    """The tokenizer in the text of a tokenizer.json; loaded once in each process, not for each task."""
    return reference_tokenizer(tokenizer_json)
