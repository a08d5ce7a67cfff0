"""Makes a report: of a finished dataset, or from what is known before packing (`pipeline.run.plan`).

Both call the same functions. In the report of a dataset, a section that cannot be made is left out, with the reason:
files beside the data may be gone or damaged.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pyarrow as pa
import yaml

from ...schemas.config.config import RunConfig
from ...schemas.errors import IntegrityError, PacktrainError
from ...schemas.files.remote import shown
from ...schemas.fingerprint import version
from ...schemas.jsontext import parse_json
from ...schemas.layout import why_padded
from ...schemas.ledger import DECISIONS, Ledger, SourceLedger, reasons_of
from ...schemas.manifest import Manifest, SplitRecord
from ...schemas.model_facts import Limit, stretching
from ...schemas.names import REJECTS
from ...schemas.report import (
    FORMAT,
    Choice,
    Flow,
    Histogram,
    Made,
    Overlap,
    Packing,
    Reject,
    Report,
    Sample,
    ShownRow,
    SplitFigures,
    Training,
)
from ...schemas.rows import ROW_SIZES, ROW_SIZES_NAME
from ...stages.arrays import view
from ...stages.forecast.sweep import CANDIDATES
from ...stages.mask.policy import Mask
from ..dataset.decode import Decoder
from ..dataset.open_dataset import Finished
from ..encode.tokenizer import find_tokenizer
from ..store.open_store import is_url
from .document_lengths import ReadDocuments
from .lengths import choose, fill_histogram
from .overlap import noted_hits, overlap_of
from .rejects import rejects_of
from .shown import shown_rows


def configuration_of(config: RunConfig, base: Path) -> str:
    """YAML that reproduces the dataset, without secrets and defaults."""
    data = _public(config.model_dump(mode="json", exclude={"run"}, exclude_defaults=True))
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)
    return f"# Relative paths start in {base}\n{text}"


def _public(value: Any) -> Any:
    """Plain data whose URLs have no passwords and signatures."""
    if isinstance(value, dict):
        return {key: _public(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_public(one) for one in value]
    return shown(value) if isinstance(value, str) and is_url(value) else value


PAIRS = "Preference pairs are not packed: each is a row of its own."
_AT_THE_END = "Lengths are compared by the report at the end of a run, and by packtrain plan."
Section = TypeVar("Section")
_MOST_POSITIONS = 10_000_000
"""Largest number of positions that is believed."""
_DAMAGE = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, pa.ArrowException)
"""What reading files beside the data may raise: they may be damaged in any way."""


def report_of(
    dataset: Finished,
    read: Callable[[], ReadDocuments] | None = None,
    configuration: str = "",
    decoder: Decoder | None = None,
) -> Report:
    """The report of an open dataset. A section that cannot be made is None, with its reason in `absent`.

    Args:
        read: reads the lengths of its documents, at the end of the run.
        configuration: YAML that reproduces it, if it is known.
        decoder: the run's tokenizer, if it is loaded: loading takes a third of a second.
    """
    absent: dict[str, str] = {}
    manifest, plan, store = dataset.manifest, dataset.manifest.plan, dataset.store

    def attempt(name: str, make: Callable[[], Section | None]) -> Section | None:
        try:
            return make()
        except PacktrainError as error:
            absent[name] = str(error)
        except _DAMAGE as error:
            absent[name] = (
                f"This section cannot be made: {type(error).__name__}: {str(error).removesuffix('.')}. "
                f"`packtrain verify {store.url}` says whether a file is damaged."
            )
        return None

    choice = None
    if manifest.preference or read is None:
        absent["choice"] = PAIRS if manifest.preference else _AT_THE_END
    else:
        train = split_figures("train", manifest.splits["train"], manifest) if "train" in manifest.splits else None
        choice = attempt("choice", lambda: choice_of(read(), CANDIDATES, train))

    def overlap() -> Overlap:
        action, compared = plan["config"]["decontaminate"]["action"], manifest.ledger.total().examples_made
        return overlap_of(noted_hits(store), plan["evaluation"], compared, action)

    def training() -> Training:
        main = "train" if "train" in manifest.splits else next(iter(manifest.splits))
        return training_of(shown_rows(dataset, main, decoder), plan["config"])

    def made() -> Made:
        engine = f"{plan['encode']['engine']} {plan['encode']['engine_version']}"
        return Made(manifest.hash, engine, configuration)

    return make_report(
        "run",
        store.url,
        absent,
        choice=choice,
        flow=attempt("flow", lambda: flow_of(manifest.ledger, rejects_of(dataset), store.where(REJECTS))),
        overlap=attempt("overlap", overlap) if "evaluation" in plan else None,
        training=attempt("training", training),
        packing=attempt("packing", lambda: packing_of(manifest, _fills(dataset))),
        made=attempt("made", made),
    )


def choice_of(documents: ReadDocuments, lengths: Sequence[int], train: SplitFigures | None) -> Choice:
    """The comparison of lengths; see `lengths.choose`."""
    config = documents.config
    limit = model_limit(config.tokenizer.path, documents.base)
    return choose(documents.stats, config, documents.in_all, lengths, limit, train)


def _fills(dataset: Finished) -> dict[str, Histogram | None]:
    """How full the rows of each split are.

    Raises:
        IntegrityError: a file of row sizes is missing, or does not match the manifest.
    """
    out: dict[str, Histogram | None] = {}
    for split, record in dataset.manifest.splits.items():
        if dataset.manifest.preference or not record.rows:
            continue
        name = record.shards[0].name.partition("shards/")[0] + ROW_SIZES_NAME
        try:
            with pa.memory_map(str(dataset.store.local(name))) as source:
                batch = pa.ipc.open_file(source).get_batch(0)
            if batch.schema != ROW_SIZES or batch.num_rows != record.rows:
                raise ValueError(f"it has {batch.num_rows:,} rows, but the split has {record.rows:,}")
            out[split] = fill_histogram(view(batch.column("tokens")), dataset.manifest.max_length)
        except (OSError, ValueError, pa.ArrowException) as error:
            where = dataset.store.where(name)
            raise IntegrityError(f"{where} cannot be read ({error}); packtrain verify --repair rebuilds it") from error
    return out


def make_report(kind: str, name: str, absent: dict[str, str], sample: Sample | None = None, **sections: Any) -> Report:
    """Put sections together.

    Args:
        name: URL or path of the dataset.
        sections: see `Report`.
    """
    last = name.rstrip("/").rpartition("/")[2] or name
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    return Report(FORMAT, kind, last, made_at, version("packtrain"), sample, absent=absent, **sections)


def flow_of(ledger: Ledger, rejects: list[Reject], file: str | None = None) -> Flow:
    """What happened to the data.

    Args:
        rejects: some of those in `file`.
    """
    total, listed = ledger.total(), file if rejects else None
    return Flow(dict(ledger.sources), reasons_of(total), rejected_of(total), rejects, listed)


def rejected_of(total: SourceLedger) -> dict[str, int]:
    """Unusable rows and examples by reason, most frequent first."""
    out = dict(total.rows_rejected)
    for reason, number in total.examples_dropped.items():
        if reason not in DECISIONS:
            out[reason] = out.get(reason, 0) + number
    return dict(sorted(out.items(), key=lambda one: (-one[1], one[0])))


def training_of(shown: tuple[list[ShownRow], str | None], config: Mapping[str, Any]) -> Training:
    """What is trained.

    Args:
        shown: see `shown.shown_rows`.
        config: as in the plan.
    """
    return Training({name: str(mask.policy) for name, mask in Mask.of_plan(config).items()}, *shown)


def split_figures(name: str, split: SplitRecord, manifest: Manifest, fills: Histogram | None = None) -> SplitFigures:
    """The figures of a split, as page, terminal and card show them."""
    pairs = manifest.preference
    return SplitFigures(
        split=name,
        rows=split.rows,
        bound=0 if pairs else sum(window.bound for window in split.windows),
        fill=0.0 if pairs else split.fill(manifest.max_length),
        tokens=split.tokens,
        labels=split.trained,
        pieces=sum(window.pieces for window in split.windows),
        padding=split.padding,
        fills=fills,
    )


def packing_of(manifest: Manifest, fills: Mapping[str, Histogram | None]) -> Packing:
    """How the splits are packed."""
    pack = manifest.plan["config"]["pack"]
    splits = [split_figures(name, split, manifest, fills.get(name)) for name, split in manifest.splits.items()]
    return Packing(
        manifest.max_length,
        "pairs" if manifest.preference else pack["strategy"],
        [one for one in splits if one.rows],
        why_padded(pack["align"], manifest.parallel),
    )


def model_limit(tokenizer: str, base: Path) -> Limit | None:
    """The limit of the model in the tokenizer's folder; None if there is none, or its configuration does not say.

    Args:
        tokenizer, base: as for `find_tokenizer`.
    """
    try:
        config = parse_json((find_tokenizer(tokenizer, base) / "config.json").read_bytes())
    except (PacktrainError, OSError, ValueError, RecursionError):
        return None
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    if not isinstance(config, dict):
        return None
    found = (config.get(name) for name in ("max_position_embeddings", "n_positions"))
    limits = [Limit(one, f"the model's positions end at {one:,}") for one in found if type(one) is int][:1]
    with suppress(AttributeError, TypeError, ValueError, OverflowError):
        limits += [Limit(one.tokens, f"the model's {one.reason}") for one in stretching(SimpleNamespace(**config))]
    return min((one for one in limits if 1 < one.tokens <= _MOST_POSITIONS), key=lambda one: one.tokens, default=None)
