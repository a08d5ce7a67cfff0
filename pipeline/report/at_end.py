"""Makes the report at the end of every run: like `packtrain report`, but from fewer documents."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from ...schemas.config.config import RunConfig
from ...schemas.jsontext import decode_note
from ...schemas.report import Choice
from ..dataset.decode import Decoder
from ..dataset.open import Finished
from ..encode.driver import Encoded
from ..observer import Observer
from ..pack.survey import Surveyor
from ..store.checksummed import seal, unseal
from ..store.open import Store
from .collect.gather import report_of_dataset
from .collect.lengths.by_source import source_warning
from .collect.lengths.choice import choose
from .collect.lengths.encoded import read_stats
from .collect.lengths.packed import SpreadNote, Spreads, spreads_of_note
from .collect.model_shapes import with_tokenizers_model
from .draw.plotly_script import plotly_script
from .files import write_report
from .options import ReportOptions

DOCUMENTS = 500_000
"""Maximum number of documents that the comparison of lengths reads; that takes about a second."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What a run knows of its report before it ends."""

    decoder: Decoder | None = None
    """The run's tokenizer, if it is loaded."""
    choice: Choice | None = None
    """The comparison of lengths, if it is already made."""
    spreads: Spreads | None = None
    """The length statistics of packed examples, if they are already made."""


NOTHING = Known()
NOTE = "_run/ahead.json"
"""Name of the note of what takes long to make."""


@dataclass(frozen=True, slots=True)
class AheadNote:
    """What a run made of its end before its shards were finished, for a run that continues."""

    key: str
    """Identifies what it was made from (see `pack.planned.key_of`), and how advice is worded."""
    untrained: str | None
    """Advice on examples that truncation left without a trained token."""
    choice: Choice | None
    spreads: dict[str, SpreadNote] | None
    """By source."""


def put_ahead(out: Store, note: AheadNote) -> None:
    """Put the note."""
    out.replace_bytes(NOTE, seal(msgspec.json.encode(note)))


def read_ahead(out: Store, key: str) -> AheadNote | None:
    """Read the note of an earlier process; None if it is missing, damaged, or made from something else."""
    try:
        note = decode_note(unseal(out.read(NOTE)), AheadNote)
    except ValueError:
        return None
    return note if note.key == key else None


def known_of(note: AheadNote, tokenizer_json: str) -> Known | None:
    """What the report needs, with what else it loads; None if that fails: the report tries again, and says why."""
    try:
        plotly_script()
        spreads = spreads_of_note(note.spreads) if note.spreads is not None else None
        return Known(Decoder.of_json(tokenizer_json), note.choice, spreads)
    except Exception:  # of any kind, as in `try_report`
        return None


def choice_options(config: RunConfig, base: Path) -> ReportOptions:
    """The options of the report at the end of a run.

    Args:
        base: where relative paths of the configuration start.
    """
    return with_tokenizers_model(ReportOptions(documents=DOCUMENTS), config.tokenizer.path, base)


def early_choice(
    config: RunConfig, encoded: Encoded, scratch: Path, options: ReportOptions, surveyor: Surveyor | None = None
) -> Choice | None:
    """Make the report's comparison of lengths from encoded parts; None if that fails: the report tries again, and says
    why. Needs no shards, so that the driver can do it while workers write them.

    Args:
        scratch: a local folder for anonymous files.
        options: see `choice_options`.
        surveyor: the run's, if it has read the parts.
    """
    sizes = [record.examples for record in encoded.records]
    try:
        found = read_stats(config, encoded.places, sizes, encoded.spec.tokenizer_json, scratch, options, surveyor)
        return choose(found[0], config, options, documents_in_all=found[1])
    except Exception:  # of any kind, as in `try_report`
        return None


@dataclass(frozen=True, slots=True)
class AtEnd:
    """The part of a report that the end of a run prints."""

    place: str
    """Path or URL of the page."""
    advice: str | None
    warning: str | None = None
    """That the run's length is above what the model is made for, and sources that lose much at it; None if neither."""


def try_report(dataset: Finished, observer: Observer, known: Known = NOTHING) -> AtEnd | None:
    """Write the report; failures are noted and never fail a finished run."""
    observer.begin("report", 0, "")
    try:
        made = report_at_end(dataset, known)
    except Exception as error:  # errors of any kind, because the dataset is already finished
        observer.end()
        observer.note(
            f"the report was not written ({type(error).__name__}: {error}); `packtrain report {dataset.store.url}` "
            "tries again"
        )
        return None
    observer.end()
    return made


def report_at_end(dataset: Finished, known: Known = NOTHING) -> AtEnd:
    """Make the report and write it.

    Raises:
        OutputError: the folder cannot be written.
    """
    report = report_of_dataset(dataset, ReportOptions(documents=DOCUMENTS), known.decoder, known.choice, known.spreads)
    place, _ = write_report(report, dataset.store)
    advice = report.choice.advice if report.choice is not None else None
    warnings = [report.choice.over_limit, source_warning(report.choice)] if report.choice is not None else []
    warning = " ".join(one for one in warnings if one is not None) or None
    return AtEnd(place, advice.sentence if advice is not None else None, warning)
