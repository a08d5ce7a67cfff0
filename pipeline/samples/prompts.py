"""The prompts to sample: what `packtrain prep --prompt-only` wrote, rendered and tokenized as training does it.

Each prompt is rendered with the chat template and its opening of an assistant's turn; texts stay as they are. The
reference tokenizer encodes it, and puts its own tokens before a text, never before a conversation.
"""

from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import blake3
import msgspec

from ...schemas.config.config import TokenizerConfig
from ...schemas.errors import InputError, RowRejectedError
from ...schemas.escape import escape_line
from ...schemas.files.foreign import open_regular
from ...schemas.jsontext import decode_note
from ...stages.prep import Options, make_format
from ...stages.tokenize.engines import reference_tokenizer
from ..encode.task import EncodeSpec, make_renderer
from ..encode.tokenizer import TokenizerSpec, load_tokenizer
from ..execute.pool import Pool
from ..inputs.find import regular
from ..inputs.lines import bounded

_FORMAT = make_format("prompt_completion", Options(prompt_only=True))
_LINES = 256
"""Lines that are rendered by one task."""
_LONGEST = 64 << 20
"""Bytes of a line."""


class _Given(msgspec.Struct):
    id: str
    row: Annotated[int, msgspec.Meta(ge=0)]


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
    stop_ids: tuple[int, ...]
    """Tokens that end an answer: the template's end of a turn if there are conversations, and the end of a sequence."""
    vocabulary: int
    """One more than the tokenizer's highest id."""

    @property
    def hash(self) -> str:
        """BLAKE3, shortened, of ids, rows and tokens."""
        plain = [(one.id, one.row, one.ids) for one in self.prompts]
        return blake3.blake3(msgspec.json.encode(plain)).hexdigest()[:16]


def read_prompts(data: Path, section: TokenizerConfig, base: Path) -> PromptSet:
    """Read the prompts of a file.

    Args:
        base: where relative paths of the section start.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError: the data, or one of its rows, cannot be used.
    """
    regular(data, "--data")
    tokenizer = load_tokenizer(section.path, base, section.chat_template)
    spec = EncodeSpec.of(tokenizer, section, "tokenizers")
    found: dict[int, SamplePrompt] = {}
    ends: list[str | None] = []
    # A template may have no end, and a process can be killed.
    with BufferedReader(open_regular(data)) as file, closing(Pool(1)) as pool:
        lines = enumerate(bounded(file, f"--data {data}", _LONGEST))
        tasks = (_RenderTask(spec, data, some) for some in iter(lambda: list(islice(lines, _LINES)), []))
        for prompts, end in pool.map(_render, tasks):
            ends.append(end)
            for one in prompts:
                if found.setdefault(one.row, one) is not one:
                    raise InputError(f"--data {data}: two prompts belong to row {one.row}; give each row once")
    if not found:
        raise InputError(f"--data {data} holds no prompts; give what packtrain prep --prompt-only writes")
    known: dict[str, int] = _tokenizer(tokenizer.json).get_vocab(with_added_tokens=True)
    ends.append(tokenizer.special_tokens.get("eos_token"))
    stop_ids = tuple(dict.fromkeys(known[one] for one in ends if one in known))
    return PromptSet(list(found.values()), tokenizer, stop_ids, 1 + max(known.values()))


@dataclass(frozen=True, slots=True)
class _RenderTask:
    """Some lines of the data to render."""

    spec: EncodeSpec
    path: Path
    lines: list[tuple[int, bytes]]
    """(number from 0, line)."""

    def __str__(self) -> str:
        return f"{self.path} (lines from {self.lines[0][0] + 1:,} on)"


def _render(task: _RenderTask) -> tuple[list[SamplePrompt], str | None]:
    """The prompts of some lines, and what ends a turn if they are conversations.

    Raises:
        InputError: a line is no prompt; a test set without it would be another one.
        TokenizerError: there is a conversation, and no template.
    """
    spec, lines = task.spec, dict(task.lines)
    prompts, renderer = list[SamplePrompt](), None
    prepared = _FORMAT.prepare(task.lines)
    tokenizer = _tokenizer(spec.tokenizer.json)
    at = prepared.rejects[0][0] if prepared.rejects else 0
    try:
        if prepared.rejects:
            raise RowRejectedError(*prepared.rejects[0][1:])
        for example in prepared.examples:
            at = example.line
            given, prompt, prefix = decode_note(lines[at], _Given), example.prompt, spec.tokenizer.around.prefix
            if not isinstance(prompt, str):
                renderer = renderer or make_renderer(spec, spec.tokenizer.require_template())
                for_row = renderer.for_row(example.variables, example.documents)
                prompt, prefix = for_row.prompt(prompt or [], example.tools), ()
            elif (own := spec.tokenizer.around.prefix_text) and prompt.startswith(own):
                prefix = ()
            ids = (*prefix, *tokenizer.encode(prompt, add_special_tokens=False).ids)
            prompts.append(SamplePrompt(given.id, given.row, ids))
    except (RowRejectedError, msgspec.MsgspecError) as error:
        raise InputError(
            f"--data {task.path}, line {at + 1:,}: {escape_line(str(error))}; give what packtrain prep --prompt-only "
            "writes: id, row and prompt"
        ) from None
    return prompts, renderer.manner.stop if renderer is not None else None


@lru_cache(maxsize=1)
def _tokenizer(tokenizer_json: str) -> Any:
    return reference_tokenizer(tokenizer_json)
