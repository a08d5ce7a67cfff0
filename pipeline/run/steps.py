"""The steps that a run, a plan and a repair share. Each does one part of the work and reports the result."""

import json
from dataclasses import replace
from typing import Any

from ...schemas.config.config import RunConfig
from ...schemas.errors import InputError
from ...schemas.fingerprint import version
from ...schemas.ledger import Ledger
from ...schemas.manifest import FileRecord
from ...schemas.names import PLAN, REJECTS
from ..contamination.compare import compare
from ..dataset.output_folder import plan_inputs
from ..encode.driver import Encoded, encode
from ..encode.encode_spec import PAIRS_FORMAT
from ..encode.notes import first_reject, notes, reject_lines
from ..encode.prepared import Prepared
from ..encode.sampling_notes import check_sampling, check_stops
from ..execute.executor import Executor
from ..inputs.formats import what_fits
from ..pack.accounts import fate_of_rows, nothing_left
from ..pack.outcomes import mask_rejects
from ..pack.pack import Packed, Selected, padding_id
from ..pack.pack import pack as pack_selected
from ..pack.pack import select as select_documents
from ..report.overlap import overlap_of
from .commit import put_record
from .estimate import RunEstimate, estimate_run, require_room, shards_written
from .prepare import prepare
from .selection_notes import selection_notes
from .workers import packing_need
from .workspace import Workspace, fit_workers


def prepare_inputs(config: RunConfig, work: Workspace, executor: Executor) -> tuple[Prepared, RunEstimate]:
    """Prepare, and estimate what must be encoded.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError: something that the user can fix.
    """
    work.observer.begin("load inputs and tokenizer", 0, "")
    prepared = prepare(config, work, executor)
    estimate = estimate_run(prepared, work)
    work.observer.end()
    return prepared, estimate


def encode_inputs(
    config: RunConfig, prepared: Prepared, estimate: RunEstimate | None, work: Workspace, executor: Executor
) -> Encoded:
    """Encode what the cache lacks, and report conversations that the mask cannot train as intended.

    Args:
        estimate: the number of workers is limited by the memory that it needs; None if that is unknown.

    Raises:
        InputError: an input has changed since it was scanned; or a row's turns cannot be located under
            `mask.on_unproved: error`.
        ConfigError: there is not enough memory for one worker.
    """
    if estimate is not None and estimate.memory is not None:
        fit_workers(config.run, estimate.memory, executor, work.observer)
    encoded = encode(prepared, work.parts, executor, work.observer, shared=config.run.shard is not None)
    for said in notes(config, prepared.joined, encoded):
        work.observer.note(said)
    for said in check_sampling(config, prepared.joined, encoded):
        work.observer.note(said)
    if any(one.make().needs_template for one in prepared.formats.values()):
        for said in check_stops(config, prepared.joined, encoded, work.cache, executor):
            work.observer.note(said)
    return encoded


def decontaminate(
    config: RunConfig, prepared: Prepared, encoded: Encoded, work: Workspace, executor: Executor
) -> Encoded:
    """Compare the examples with evaluation rows, if the configuration asks for it, and mark those that share text.

    Raises:
        InputError: an input has changed since it was scanned; a row has token ids instead of text.
    """
    section, evaluation = config.decontaminate, prepared.evaluation
    if section is None or evaluation is None:
        return encoded
    found = compare(
        prepared.sources, prepared.joined, prepared.formats, evaluation, section.share, work.cache, executor,
        work.observer,
    )  # fmt: skip
    overlap = overlap_of(found.lines(), evaluation.payload(), found.examples())
    work.observer.note(overlap.sentence.removesuffix("."))
    each = zip(encoded.places, found.marked(), strict=True)
    places = tuple(replace(place, contaminated=keys) if keys else place for place, keys in each)
    return replace(encoded, places=places, contamination=found)


def select(config: RunConfig, prepared: Prepared, encoded: Encoded, work: Workspace, executor: Executor) -> Selected:
    """Decide what is kept of each document, and limit the workers so that packing has enough memory.

    Raises:
        InputError: nothing is left to pack.
        ConfigError: `pack.align` or `pack.parallel` needs a padding token, and the tokenizer has none; a weight needs
            too many copies; or there is not enough memory for planning.
    """
    pad_id = padding_id(config, prepared.tokenizer)
    work.observer.begin("plan", 0, "")
    selected = select_documents(config, encoded, work.scratch.root, pairs=prepared.pairs, pad_id=pad_id)
    work.observer.end()
    _require_something(config, prepared, encoded, selected.ledger, work)
    tokens, blocks = selected.ledger.total().tokens_packed, len(selected.table.block_sources)
    need = packing_need(selected.copies, tokens, blocks, config, pairs=prepared.pairs)
    fit_workers(config.run, need, executor, work.observer)
    for said in selection_notes(config, selected):
        work.observer.note(said)
    return selected


def _require_something(
    config: RunConfig, prepared: Prepared, encoded: Encoded, ledger: Ledger, work: Workspace
) -> None:
    """Refuse inputs that leave nothing to pack. Writes the rejected rows first.

    Raises:
        InputError: nothing is left; the message says what happened to the rows.
    """
    total = ledger.total()
    if total.examples_packed:
        return
    if not work.out.exists(PLAN):
        write_rejects(config, prepared, encoded, work)
    fits = "" if total.rows_used else what_fits(prepared.files, prepared.formats)
    fix = nothing_left(total, work.out.where(REJECTS), fits)
    first = first_reject(prepared.joined, encoded.records, mask_rejects(config))
    raise InputError(f"nothing is left to pack: of {fate_of_rows(total)}.{first} {fix}")


def pack(selected: Selected, work: Workspace, executor: Executor) -> Packed:
    """Write the shards, after checking that the disk has room for them.

    Raises:
        StoreError: the disk is too full.
        IntegrityError: the ledger does not close, or an earlier file differs from its record.
    """
    room = selected.tokens * (selected.token_bytes + 1) - shards_written(work.out)
    require_room(room, "the shards", work.out)
    return pack_selected(selected, work.out, executor, work.observer)


def write_lists(config: RunConfig, prepared: Prepared, encoded: Encoded, work: Workspace) -> tuple[FileRecord, ...]:
    """Write the rejected rows, and the examples that share text with evaluation rows if they were looked for."""
    rejects = write_rejects(config, prepared, encoded, work)
    return (rejects,) if encoded.contamination is None else (rejects, encoded.contamination.put(work.out))


def write_rejects(config: RunConfig, prepared: Prepared, encoded: Encoded, work: Workspace) -> FileRecord:
    """Write the rejected rows."""
    lines = reject_lines(prepared.joined, encoded.records, mask_rejects(config))
    return put_record(work.out, REJECTS, lines)


def plan_of(config: RunConfig, prepared: Prepared, encoded: Encoded) -> dict[str, Any]:
    """Return everything that the written bytes depend on, as JSON reads it back: lists instead of tuples."""
    tokenizer = prepared.tokenizer
    plan: dict[str, Any] = json.loads(
        json.dumps(
            {
                "config": config.identity(),
                "formats": {name: form.payload() for name, form in prepared.formats.items()},
                "inputs": plan_inputs(prepared.files),
                "tokenizer": {
                    "hash": tokenizer.hash,
                    "template": tokenizer.template_hash,
                    "pad_id": tokenizer.pad_id,
                },
                "encode": encoded.spec.payload() | ({"pairs": PAIRS_FORMAT} if prepared.pairs else {}),
                **({"evaluation": prepared.evaluation.payload()} if prepared.evaluation is not None else {}),
                "versions": {name: version(name) for name in ("jinja2", "pyarrow", "tokenizers")}
                | {"packtrain": packtrain_version()},
            }
        )
    )
    return plan


def packtrain_version() -> str:
    """The version of this package, imported late because the package imports this module."""
    from ... import __version__

    return __version__
