"""What a person sees of preference data: a table of the splits, and a pair as text."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..schemas.escape import escape, escape_line
from ..schemas.manifest import Manifest

if TYPE_CHECKING:
    from .inspect import Decoder
    from .reader import Finished

PARTS = (("prompt_ids", "prompt", "dim"), ("chosen_ids", "chosen", "bold green"), ("rejected_ids", "rejected", "red"))
"""(column, how it is called, how it is shown)."""


def pairs_table(manifest: Manifest) -> Table:
    """Pairs and tokens, by split."""
    table = Table(title="Preference pairs", title_justify="left", show_edge=False, pad_edge=False)
    for name in ("split", "pairs", "tokens", "of completions", "tokens a pair", "shards"):
        table.add_column(name, justify="left" if name == "split" else "right")
    for name, split in manifest.splits.items():
        table.add_row(
            name,
            f"{split.rows:,}",
            f"{split.tokens:,}",
            f"{split.trained / max(split.tokens, 1):.1%}",
            f"{split.tokens / max(split.rows, 1):,.0f}",
            f"{len(split.shards):,}",
        )
    return table


def show_pair(
    console: Console, dataset: "Finished", row: int, split: str, name: str, decoder: "Decoder | None", ids: bool
) -> None:
    """Print one pair: its prompt once, and both completions.

    Args:
        name: of the example.
        decoder: None prints ids alone.
        ids: print each token's id before its text.
    """
    found = dataset.row(row, split).to_pylist()[0]
    prompt, *completions = (len(found[column]) for column, _, _ in PARTS)
    console.print(
        Text(
            f"row {row} of {split}: {escape_line(name)}, a preference pair of {prompt:,} tokens and "
            f"{completions[0]:,} chosen or {completions[1]:,} rejected ones "
            f"(at most {dataset.manifest.max_length:,} with either)"
        )
    )
    for column, title, style in PARTS:
        tokens = found[column]
        if column == "prompt_ids" or decoder is None:
            text = _text(tokens, decoder)
        else:
            # Decoded with the prompt, and then without it: some tokenizers drop a space before the first token.
            text = decoder.spans([found["prompt_ids"], tokens])[1]
        body = Text()
        if ids and decoder is not None:
            for one, token in zip(tokens, decoder.tokens(tokens), strict=True):
                body.append(f"{one} ", "cyan")
                body.append(f"{token!r}  ", style)
        else:
            body.append(escape(text), style)
        console.print(Panel(body, title=Text(f"{title} · {len(tokens):,} tokens"), title_align="left"))


def _text(tokens: list[int], decoder: "Decoder | None") -> str:
    return " ".join(map(str, tokens)) if decoder is None else decoder.text(tokens)
