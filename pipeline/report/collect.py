"""Makes a report: of a finished dataset, or from what is known before packing (`pipeline.run.plan`).

Both call the same functions. In the report of a dataset, a section that cannot be made is left out, with the reason:
files beside the data may be gone or damaged.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import yaml

from ...schemas.config.config import RunConfig
from ...schemas.dataset.manifest import Manifest, SplitRecord
from ...schemas.dataset.names import REJECTS
from ...schemas.errors import PacktrainError, StoreError
from ...schemas.escape import without_secrets
from ...schemas.files.foreign import read_lines
from ...schemas.fingerprint import version
from ...schemas.report.evaluation_hits import Contamination
from ...schemas.report.flow import COUNTED_ONLY, Flow, Reject
from ...schemas.report.length_choice import Choice
from ...schemas.report.report import Made, Packing, Report, Sample, SplitFigures, Training
from ..dataset.decode import Decoder
from ..dataset.open_dataset import Finished
from ..store.open_store import is_url
from .contamination_summary import contamination_of, noted_hits
from .ledger_lines import supervision_of
from .shown import shown_rows

PAIRS = "With pack.strategy none, preference pairs are not packed: each is a row of its own."
_AT_THE_END = "Lengths are compared by the report at the end of a run, and by packtrain plan."
_DAMAGE = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, pa.ArrowException)
"""What reading files beside the data may raise: they may be damaged in any way."""
_REJECTS_OF_A_REASON = 3
"""Maximum number of rejects per reason and source."""
_REJECTS = 60
"""Maximum number of rejects in total."""
_DETAIL_CHARACTERS = 400
"""Maximum number of characters of a reject's detail, which may quote the row."""
_LINES = 1_000_000
"""Maximum number of lines of rejects.jsonl that are read."""
Part = TypeVar("Part")


def configuration_of(config: RunConfig, base: Path) -> str:
    """YAML that reproduces the dataset, without secrets and defaults."""

    def public(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: public(item) for key, item in value.items()}
        if isinstance(value, list):
            return [public(item) for item in value]
        return without_secrets(value) if isinstance(value, str) and is_url(value) else value

    data = public(config.model_dump(mode="json", exclude={"run"}, exclude_defaults=True))
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)
    return f"# Relative paths start in {base}\n{text}"


def report_of(
    dataset: Finished, choice: Choice | None = None, configuration: str = "", decoder: Decoder | None = None
) -> Report:
    """The report of an open dataset. A section that cannot be made is None, with its reason in `absent`.

    Args:
        choice: the comparison of lengths, which only the run itself can make.
        configuration: YAML that reproduces it, if it is known.
        decoder: the run's tokenizer, if it is loaded: loading takes a third of a second.
    """
    absent: dict[str, str] = {}
    manifest = dataset.manifest
    plan = manifest.plan
    store = dataset.store

    def attempt(name: str, make: Callable[[], Part]) -> Part | None:
        try:
            return make()
        except PacktrainError as error:
            absent[name] = str(error)
        except _DAMAGE as error:
            absent[name] = (
                f"This section cannot be made: {type(error).__name__}: {str(error).removesuffix('.')}. "
                f"`packtrain verify {store.where('')}` says whether a file is damaged."
            )
        return None

    if choice is None:
        absent["choice"] = _AT_THE_END

    def contamination() -> Contamination:
        action = str(plan["config"]["contamination"]["action"])
        return contamination_of(noted_hits(store), plan["evaluation"], manifest.ledger.total().examples_made, action)

    return make_report(
        "run",
        store.where(""),
        absent,
        choice=choice,
        flow=Flow(
            supervision_of(manifest.ledger.total()),
            dict(manifest.ledger.sources),
            rejects_of(dataset),
            store.where(REJECTS),
        ),
        contamination=attempt("contamination", contamination) if "evaluation" in plan else None,
        training=attempt(
            "training", lambda: Training(policies_of(plan["config"]), *shown_rows(dataset, "train", decoder))
        ),
        packing=packing_of(manifest),
        made=Made(manifest.hash, configuration),
    )


def make_report(kind: str, name: str, absent: dict[str, str], sample: Sample | None = None, **sections: Any) -> Report:
    """Put sections together.

    Args:
        name: URL or path of the dataset.
        sections: see `Report`.
    """
    last = name.rstrip("/").rpartition("/")[2] or name
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    return Report(kind, last, made_at, version("packtrain"), sample, absent=absent, **sections)


def rejects_of(dataset: Finished) -> list[Reject]:
    """Some rejected rows of each reason and source, in file order; none if the file is gone."""
    with suppress(OSError, StoreError):
        return some_rejects(_decode_rejects(islice(read_lines(dataset.store.local(REJECTS)), _LINES)))
    return []


def _decode_rejects(lines: Iterable[bytes]) -> Iterator[Reject]:
    """The rejects of lines of rejects.jsonl. A damaged line is left out, which `verify` names."""
    decoder = msgspec.json.Decoder(Reject)
    for line in lines:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            yield decoder.decode(line)


def some_rejects(rejects: Iterable[Reject]) -> list[Reject]:
    """The first few rejects of each reason and source, as a report shows them."""
    shown_counts = Counter[tuple[str, str]]()
    shown = list[Reject]()
    for reject in rejects:
        kind = (reject.source, reject.reason)
        if shown_counts[kind] < _REJECTS_OF_A_REASON and len(shown) < _REJECTS and reject.reason != COUNTED_ONLY:
            shown_counts[kind] += 1
            is_long = len(reject.detail) > _DETAIL_CHARACTERS
            detail = reject.detail[: _DETAIL_CHARACTERS - 1] + "…" if is_long else reject.detail
            shown.append(msgspec.structs.replace(reject, detail=detail))
    return shown


def policies_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The mask policy of each source, by the configuration in a plan."""
    return {source["name"]: str(source.get("mask", config["mask"])["policy"]) for source in config["sources"]}


def _split_figures(name: str, split: SplitRecord, manifest: Manifest) -> SplitFigures:
    """The figures of a split, as page, terminal and card show them."""
    pairs = manifest.preference
    return SplitFigures(
        split=name,
        rows=split.rows,
        bound=0 if pairs else sum(window.bound for window in split.windows),
        fill=0.0 if pairs else split.fill(manifest.row_length),
        tokens=split.tokens,
        labels=split.trained,
        pieces=sum(window.pieces for window in split.windows),
        padding=split.padding,
    )


def packing_of(manifest: Manifest) -> Packing:
    """How the splits are packed."""
    splits = [_split_figures(name, split, manifest) for name, split in manifest.splits.items()]
    return Packing(
        manifest.row_length,
        "pairs" if manifest.preference else manifest.pack.strategy,
        [split for split in splits if split.rows],
        manifest.pack.padded_for,
        manifest.pairs,
    )
