"""Makes a report: of a finished dataset, or from what is known before packing (`pipeline.run.plan`).

Both call the same functions. In the report of a dataset, a section that cannot be made is left out, with the reason:
files beside the data may be gone or damaged.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import yaml

from ...schemas.config.config import RunConfig
from ...schemas.dataset.manifest import Manifest
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
from ..store.open_store import Store, is_url
from .contamination_summary import contamination_of, noted_hits
from .ledger_lines import supervision_of
from .shown import shown_rows

PAIRS = "With pack.strategy none, preference pairs are not packed: each is a row of its own."
"""Why a plan has no section on packing, where pairs are not packed."""
_AT_THE_END = "Lengths are compared by the report at the end of a run, and by packtrain plan."
"""Why the report of a finished dataset has no comparison of lengths, where none is given to it."""
_DAMAGE = (
    PacktrainError, OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, pa.ArrowException
)  # fmt: skip
"""What reading files beside the data may raise: they may be damaged in any way."""
_REJECTS_OF_A_REASON = 3
"""Maximum number of rejects per reason and source."""
_REJECTS = 60
"""Maximum number of rejects in total."""
_DETAIL_CHARACTERS = 400
"""Maximum number of characters of a reject's detail, which may quote the row."""
_LINES = 1_000_000
"""Maximum number of lines of rejects.jsonl that are read: more lines would hardly change which ones are shown."""


def configuration_of(config: RunConfig, base: Path) -> str:
    """YAML that reproduces the dataset, without secrets and defaults.

    Args:
        base: where relative paths of the configuration start.
    """
    # `run` says on which workers and machines, which changes no byte.
    data = _without_logins(config.model_dump(mode="json", exclude={"run"}, exclude_defaults=True))
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)
    return f"# Relative paths start in {base}\n{text}"


def _without_logins(value: Any) -> Any:
    """The data of a configuration; its URLs have neither passwords nor signatures."""
    if isinstance(value, dict):
        return {key: _without_logins(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_logins(item) for item in value]
    if isinstance(value, str) and is_url(value):
        return without_secrets(value)
    # Other texts stay as they are: a condition or a template may have what looks like a login.
    return value


def report_of(
    dataset: Finished, choice: Choice | None = None, configuration: str = "", decoder: Decoder | None = None
) -> Report:
    """The report of an open dataset. A section that cannot be made is None, with its reason in `absent`.

    Args:
        choice: the comparison of lengths, which only the run itself can make, because documents.parquet has no trained
            spans; None: the report has none.
        configuration: YAML that reproduces the dataset; "" if it is not known.
        decoder: the run's tokenizer; None: it is loaded here, which takes a third of a second.
    """
    manifest = dataset.manifest
    plan = manifest.plan
    store = dataset.store
    total = manifest.ledger.total()
    # Two sections read files beside the data. Each may fail by itself, and the report then has all others.
    absent: dict[str, str] = {}
    if choice is None:
        absent["choice"] = _AT_THE_END
    contamination = None
    # Only the plan of a run that compared its examples with evaluation data has this key.
    if "evaluation" in plan:
        try:
            action = str(plan["config"]["contamination"]["action"])
            contamination = contamination_of(
                noted_hits(store), plan["evaluation"], compared=total.examples_made, action=action
            )
        except _DAMAGE as error:
            absent["contamination"] = _describe_damage(error, store)
    training = None
    try:
        rows, rows_absent = shown_rows(dataset, "train", decoder)
        training = Training(policies_of(plan["config"]), rows, rows_absent)
    except _DAMAGE as error:
        absent["training"] = _describe_damage(error, store)
    return make_report(
        kind="run",
        place=store.where(""),
        absent=absent,
        choice=choice,
        flow=Flow(
            supervision=supervision_of(total),
            sources=dict(manifest.ledger.sources),
            rejects=rejects_of(dataset),
            rejects_file=store.where(REJECTS),
        ),
        contamination=contamination,
        training=training,
        packing=packing_of(manifest),
        made=Made(manifest=manifest.hash, configuration=configuration),
    )


def _describe_damage(error: Exception, store: Store) -> str:
    """Why a section cannot be made."""
    if isinstance(error, PacktrainError):
        return str(error)
    return (
        f"This section cannot be made: {type(error).__name__}: {str(error).removesuffix('.')}. "
        f"`packtrain verify {store.where('')}` says whether a file is damaged."
    )


def make_report(
    kind: str,
    place: str,
    absent: dict[str, str],
    sample: Sample | None = None,
    *,
    choice: Choice | None,
    flow: Flow,
    contamination: Contamination | None,
    training: Training | None,
    packing: Packing | None,
    made: Made,
) -> Report:
    """A report of some sections, made now by this version of packtrain.

    Args:
        kind: `run` for a finished dataset, `plan` before packing.
        place: URL or path of the dataset, whose last part is the report's name.
        absent: name of a missing section → why it is missing.
        sample: how many rows the report is from; None: from all.
    """
    return Report(
        kind=kind,
        name=place.rstrip("/").rpartition("/")[2] or place,  # the root of a disk, `/`, has no last part
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        packtrain=version("packtrain"),
        sample=sample,
        choice=choice,
        flow=flow,
        contamination=contamination,
        training=training,
        packing=packing,
        made=made,
        absent=absent,
    )


def rejects_of(dataset: Finished) -> list[Reject]:
    """Some rejected rows of each reason and source, in file order; none if rejects.jsonl is gone."""
    with suppress(OSError, StoreError):
        return some_rejects(_decode_rejects(islice(read_lines(dataset.store.local(REJECTS)), _LINES)))
    return []


def _decode_rejects(lines: Iterable[bytes]) -> Iterator[Reject]:
    """The rejects of lines of rejects.jsonl. Damaged lines are left out: `packtrain verify` says which."""
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
        # Reading goes on: behind a million rejects of one reason there may be the first of another. A line with the
        # reason `COUNTED_ONLY` says how many more there are, and names no row.
        if reject.reason == COUNTED_ONLY or shown_counts[kind] == _REJECTS_OF_A_REASON:
            continue
        if len(shown) == _REJECTS:
            break
        shown_counts[kind] += 1
        # The first characters say what is wrong, and what follows quotes the row, which may be a megabyte.
        detail = reject.detail
        if len(detail) > _DETAIL_CHARACTERS:
            detail = f"{detail[: _DETAIL_CHARACTERS - 1]}…"
        shown.append(msgspec.structs.replace(reject, detail=detail))
    return shown


def policies_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Name of a source → its mask policy: its own, or that of the whole configuration.

    Args:
        config: the configuration in a plan.
    """
    policies = {}
    for source in config["sources"]:
        mask = source.get("mask", config["mask"])
        policies[source["name"]] = str(mask["policy"])
    return policies


def packing_of(manifest: Manifest) -> Packing:
    """How the splits that have rows are packed."""
    # With `pack.strategy: none`, each row is a preference pair that is not packed (`preference`). Packed rows may hold
    # pairs, too, two pieces each (`pairs`).
    is_packed = not manifest.has_unpacked_pairs
    splits = []
    for name, split in manifest.splits.items():
        if not split.rows:
            continue
        # Each window is planned alone, so the least rows of all windows are the sum of their bounds.
        figures = SplitFigures(
            split=name,
            rows=split.rows,
            # A row that is a pair has no capacity, so there is no bound and no fill.
            bound=sum(window.bound for window in split.windows) if is_packed else 0,
            fill=split.fill(manifest.row_length) if is_packed else 0.0,
            tokens=split.tokens,
            labels=split.trained,
            pieces=sum(window.pieces for window in split.windows),
            padding=split.padding,
        )
        splits.append(figures)
    strategy = manifest.pack.strategy if is_packed else "pairs"
    return Packing(
        row_length=manifest.row_length,
        strategy=strategy,
        splits=splits,
        padded_for=manifest.pack.padded_for,
        pairs=manifest.has_packed_pairs,
    )
