"""Runs prep only: writes source rows as examples in the public form that TRL and other tools read. Needs no
tokenizer.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from ...schemas.config.config import SourceConfig
from ...schemas.errors import ConfigError, InputError, OutputError
from ..inputs.blocks import InputFile
from ..inputs.read import block_examples
from ..inputs.scan import scan_inputs
from ..inputs.source_formats import SourceFormat, resolve_format
from ..observer import Observer
from ..store.local import LocalStore, require_no_file_above

_NO_PROMPT = ("text", "tokenized", "preference", "python")
"""Formats whose rows have no prompt apart from what follows it."""


@dataclass(slots=True)
class PrepCounts:
    """Counts of rows and examples, by what happened to them: reason → how many rows, or how many skipped examples."""

    rows: int = 0
    examples: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    filtered: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    first_reject: str = ""
    """File, line, reason and detail of the first rejected row."""


def prepare_source(
    source: SourceConfig, base: Path, target: Path, *, prompt_only: bool = False, observer: Observer | None = None
) -> PrepCounts:
    """Write a source's examples to one file, as JSON lines. The file appears only when it is complete.

    Args:
        base: where relative paths of the source start.
        target: the file to write, which must not exist.
        prompt_only: write only the prompts. Each line then has a `row`, the number of the source row from 0, by which a
            model's answer finds its row again, and an `id`: that of an APPS problem, or a digest of its question; of
            other rows the group, or the row's number.

    Raises:
        ConfigError: the suffix is not .jsonl, or an input is missing.
        InputError: an input is empty or cannot be read, or no row gave an example.
        OutputError: the file exists.
    """
    if target.suffix != ".jsonl":
        raise ConfigError(f"--output {target}: end its name in .jsonl, which is what is written")
    require_no_file_above(target, "--output")
    exists_error = OutputError(f"--output {target} exists; remove it, or choose another file")
    if target.exists():
        raise exists_error
    observer = observer or Observer()
    counts = PrepCounts()
    store = LocalStore(target.absolute().parent)
    # only compressed and remote inputs are copied there
    with TemporaryDirectory(prefix="packtrain-prep-") as spool:
        files = scan_inputs([source], base, LocalStore(Path(spool)))
        source_format = resolve_format(source, base, files, prompt_only=prompt_only)
        if source_format.note is not None:
            observer.note(source_format.note)
        if prompt_only and source_format.name in _NO_PROMPT:
            raise ConfigError(
                f"--prompt-only: a row of format {source_format.name} has no separate prompt; leave --prompt-only out"
            )
        observer.begin("prep", sum(file.size for file in files), "B")
        with store.draft() as draft:
            for row in _public_rows(files, source, source_format, counts, observer):
                draft.file.write(msgspec.json.encode(row) + b"\n")
            if not counts.examples:
                raise _no_examples(source, target, counts)
            # Another process may have written it meanwhile.
            if not store.create(draft, target.name):
                raise exists_error
    observer.end()
    return counts


def _no_examples(source: SourceConfig, target: Path, counts: PrepCounts) -> InputError:
    """The error for a source without examples: how many rows each reason cost, and the first rejected row."""
    reasons = (counts.rejected + counts.filtered).most_common()
    listed = ", ".join(f"{reason} {number:,}" for reason, number in reasons) or "no rows"
    first = f" The first: {counts.first_reject}." if counts.first_reject else ""
    return InputError(
        f"no row of source {source.name!r} gave an example, so {target} is not written ({listed}).{first} "
        "Check the source's format and keys"
    )


def _public_rows(
    files: Sequence[InputFile],
    source: SourceConfig,
    source_format: SourceFormat,
    counts: PrepCounts,
    observer: Observer,
) -> Iterator[dict[str, Any]]:
    """Yield the examples of all files in their public form, and count them in `counts`."""
    form = source_format.make()
    rows_before = 0  # of earlier files
    for file in files:
        for block in file.blocks:
            prepared = block_examples(
                block, (source_format.name, source_format.options), source.max_row_bytes, source.where
            )
            counts.rows += prepared.rows
            counts.examples += len(prepared.examples)
            counts.filtered += prepared.filtered
            counts.skipped += prepared.skipped
            counts.rejected += Counter(reject.reason for reject in prepared.rejects)
            if prepared.rejects and not counts.first_reject:
                first = prepared.rejects[0]
                # A fetched copy is named by its URL or dataset, as the user knows it.
                place = f"{file.origin or file.path}, line {block.first_line + first.row + 1}"
                counts.first_reject = f"{place}: {first.reason}: {first.detail}"
            for example in prepared.examples:
                row = form.public_row(example)
                if form.options.prompt_only:
                    # By these, answers of a model are matched with the rows later. The group of an APPS example is its
                    # problem's id; without a group, the row's number stands in.
                    number = rows_before + block.first_line + example.line  # `line` counts in the block
                    row = {"id": example.group or str(number), "row": number, **row}
                yield row
            observer.advance(block.end - block.start, rows=prepared.rows)
        # Rows beyond `max_rows` count too: a number is that of the row in the source.
        rows_before += file.lines + file.not_taken
