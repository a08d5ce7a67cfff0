"""Prompts that run into their completions: `there?` and `Let x` become `there?Let x`, rarely on purpose."""

import unicodedata

from ..schemas.config import SourceConfig
from ..schemas.hints import setting
from ..stages.prep import Options, make_format
from .sources import InputFile, read_rows

_ENDS = ".,;:!?…)"
"""What a text ends with that goes on after a space."""
_AROUND = 20
"""Characters of both sides that are shown."""
_NO_SPACES = ("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "CJK", "HIRAGANA", "KATAKANA")
"""Scripts that put no spaces between words, by the beginning of their characters' names."""


def joined_words(prompt: str, completion: str) -> bool:
    """Whether two texts, joined, make one word or one sentence of two."""
    if not prompt or not completion:
        return False
    last, first = prompt[-1], completion[0]
    return (last in _ENDS or _in_word(last)) and _in_word(first)


def _in_word(character: str) -> bool:
    return character.isalnum() and not unicodedata.name(character, "").startswith(_NO_SPACES)


def about_joints(source: SourceConfig, form: str, options: Options, file: InputFile, rows: int) -> str | None:
    """A sentence for the person, if most prompts among a file's first rows run into their completions; else None.

    Args:
        source: whose file it is.
        form, options: its format.
        rows: how many are looked at, of the first block.
    """
    if form not in ("prompt_completion", "python") or not file.blocks:
        return None
    block = file.blocks[0]
    found = read_rows(file.where(block), block, source.max_row_bytes, limit=rows)
    reader = make_format(form, options)
    made = reader.prepare(found.lines) if found.lines is not None else reader.prepare_rows(found.records or ())
    pairs = [
        (one.prompt, one.completion)
        for one in made.examples
        if isinstance(one.prompt, str) and isinstance(one.completion, str)
    ]
    joined = [pair for pair in pairs if joined_words(*pair)]
    if 2 * len(joined) <= len(pairs):
        return None
    prompt, completion = joined[0]
    shown = repr(f"{prompt[-_AROUND:]}{completion[:_AROUND]}")
    count = f"{len(joined):,} of the first {len(pairs):,} prompts run" if len(pairs) > 1 else "the prompt runs"
    # On a command line without a file there is one source; a file is shown the key below its source.
    turns = f"; {setting('sources.0.style', 'chat')} makes two turns of them" if form != "python" else ""
    return (
        f"source {source.name}: {count} into the completion without a space or a line break between them, such as "
        f"{shown}: end prompts or begin completions with one{turns}"
    )
