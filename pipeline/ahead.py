"""Before packing: what a run would do to the data, and what other lengths would. Encodes, decides, and stops.

What is encoded stays in the cache, where the run finds it. The output folder is neither made nor claimed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ..schemas.config import RunConfig
from ..schemas.errors import InputError
from ..schemas.ledger import Ledger
from ..schemas.report import FORMAT, BatchSize, Choice, Input, Report, Sample, Trust
from ..stages.arrays import booleans, view
from .accounts import account_cuts, fate_of_rows
from .configfile import load_config
from .encoding import EncodedInputs, Encoding
from .formats import NoRowsError, what_fits
from .observer import Observer, Silent
from .packing import Packing
from .parts import EncodedPart
from .preference import PairPacking
from .rejects import first_reject, reject_lines, what_it_is
from .report.choice import candidates, choose
from .report.flow import flow_of
from .report.lengths import LOOKED_INTO, Spread, Spreads, evenly, pair_spread, part_spread
from .report.options import ReportOptions
from .report.rejects import rejects_among
from .report.sampling import Sampled, sampled
from .report.saving import batch_size, expected_packing
from .report.shares import Heads, training_of
from .report.spoken import many
from .report.stock import read_stock
from .report.trust import configuration_of, stages_of
from .room import require_room
from .run import Driver
from .selecting import mask_of, mask_rejects
from .sources import InputFile
from .stores import require_conditional
from .survey import Survey

_INPUTS = 20
"""That are named."""
_PAIRS = "Preference pairs are not packed: each is a row of its own."
_LATER = "A plan packs nothing; `packtrain run` does."


def plan(
    config: "RunConfig | Mapping[str, Any] | str | Path",
    options: ReportOptions | None = None,
    *,
    rows: int | None = None,
    observer: Observer | None = None,
    base: Path | None = None,
) -> Report:
    """What a run would do, without the run.

    Args:
        rows: look at about so many rows, taken evenly from all inputs; None for all of them.
        config, base, observer: as `run` takes them.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError: something that a person can mend.
        StoreError, IntegrityError, TaskError: a failure.
    """
    loaded, folder = load_config(config, base)
    options, observer = options or ReportOptions(), observer or Silent()
    candidates(loaded, options.lengths)  # refused now, and not when all is encoded
    if rows is None:
        return Ahead(loaded, folder, observer).tell(options)
    with sampled(loaded, folder, rows, observer) as sample:
        try:
            return Ahead(sample.config, folder, observer).tell(options, sample)
        except NoRowsError as error:
            raise sample.true_place(error) from None


@dataclass(slots=True)
class _Seen:
    """What is known before packing."""

    encoding: Encoding
    encoded: EncodedInputs
    ledger: Ledger
    survey: Survey | None
    """None where the run would stop."""
    refused: str | None
    """Why it would."""

    @property
    def files(self) -> list[InputFile]:
        return self.encoding.files


class Ahead(Driver):
    """A run that stops before it packs."""

    def __init__(self, config: RunConfig, base: Path, observer: Observer) -> None:
        # Several that share a run would each have a part of the answer.
        here = {"shard": None} | ({"executor": "local"} if config.run.executor == "static" else {})
        super().__init__(config.model_copy(update={"run": config.run.model_copy(update=here)}), base, observer)

    def tell(self, options: ReportOptions, sample: Sampled | None = None) -> Report:
        """Everything that can be told.

        Raises:
            InputError: nothing would be packed.
        """
        require_conditional(self.cache)
        with self._executor(self.config.run) as executor:
            self.observer.begin("load inputs and tokenizer", 0, "")
            encoding, spec, prospect = self._prepare(executor)
            self.observer.end()
            # Of the encoded parts alone: four bytes a token, and a sample may be off by a fifth.
            room = int(1.2 * 4 * prospect.missing_bytes * prospect.engine.tokens_per_byte)
            require_room(room, "encoding", self.scratch)
            encoded = self._encoded(encoding, executor, spec, prospect)
        self._say_why_missing()
        self.observer.begin("read lengths", 0, "")
        with self.timings.stage("read lengths"):
            seen = self._survey(encoding, encoded, sample)
        report = self._told(seen, options, sample)
        self.observer.end()
        return report

    def _survey(self, encoding: Encoding, encoded: EncodedInputs, sample: Sampled | None) -> _Seen:
        make = PairPacking if encoding.pairs else Packing
        packing = make(self.config, self.out, encoded, 0, self.observer, self.scratch.root)
        try:
            survey = packing.survey()
        except InputError as error:
            if self.config.truncate.overlong != "error":
                raise
            # Which length would not stop the run is what is asked for.
            self.observer.note(str(error))
            return _Seen(encoding, encoded, Ledger(), None, str(error))
        total = survey.ledger.total()
        if not total.examples_packed:
            reasons = mask_rejects(self.config)
            first, looked = first_reject(encoding.files, encoded.records, reasons), ""
            if sample is not None and not sample.exhaustive:
                first, looked = self._first_of(sample, encoding, encoded), " that were looked at"
            fits = "" if total.rows_used else what_fits(encoding.files, encoding.formats)
            mend = fits or (
                "Check each source's format and keys, truncate.max_length, the mask, and what the filters and limits "
                "leave"
            )
            raise InputError(f"nothing would be left to pack: of {fate_of_rows(total, looked)}.{first} {mend}")
        return _Seen(encoding, encoded, survey.ledger, survey, None)

    def _first_of(self, sample: Sampled, encoding: Encoding, encoded: EncodedInputs) -> str:
        """The first reject of a sample, whose lines are not those of its inputs."""
        lines = reject_lines(encoding.files, encoded.records, mask_rejects(self.config)).splitlines()
        for one in sample.true_rejects(rejects_among(lines[:1], encoding.files)).shown:
            is_none = what_it_is(encoding.files[0], one.reason, line=False)
            return f" The first: {one.file}: {one.reason}: {one.detail}.{is_none}"
        return ""

    def _told(self, seen: _Seen, options: ReportOptions, sample: Sampled | None) -> Report:
        from .. import __version__

        absent = {"packing": _LATER}
        choice = batch = flow = training = packing = None
        if seen.encoding.pairs:
            absent = {
                "choice": f"{_PAIRS} `truncate.max_length` is the longest that one may be.",
                "packing": _PAIRS,
                "batch": f"{_PAIRS} A batch of so many rows is a batch of so many pairs.",
            }
        else:
            with self.timings.stage("compare lengths"):
                choice = self._choice(seen, options, sample)
            packing = expected_packing(choice, options)
            if packing is not None:
                absent.pop("packing")
            batch = self._batch(choice)
            if batch is None:
                absent["batch"] = "There is no packed row."
        if seen.survey is None:
            absent["flow"] = absent["training"] = f"The run would stop: {seen.refused}."
        else:
            reasons = mask_rejects(self.config)
            lines = reject_lines(seen.files, seen.encoded.records, reasons).splitlines()
            rejects = rejects_among(lines, seen.files)
            flow = flow_of(seen.ledger, rejects if sample is None else sample.true_rejects(rejects))
            cuts = self.config.pack.strategy in ("bfd_split", "wrapped") and not seen.encoding.pairs
            if not cuts:
                account_cuts(seen.ledger, [source.name for source in self.config.sources], seen.survey.cuts)
            heads = Heads(dict(zip(seen.ledger.sources, seen.survey.heads, strict=True)), cuts)
            training = training_of(seen.ledger, self._spreads(seen), heads=heads)
        return Report(
            format=FORMAT,
            kind="plan",
            name=self.out.url.rstrip("/").rpartition("/")[2] or self.out.url,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            packtrain=__version__,
            sample=self._sample(seen, sample),
            choice=choice,
            flow=flow,
            training=training,
            packing=packing,
            batch=batch,
            trust=self._trust(seen, sample),
            absent=absent,
        )

    def _sample(self, seen: _Seen, sample: Sampled | None) -> Sample | None:
        if sample is None:
            return None
        rows = sum(record.rows for record in seen.encoded.records)
        every = max(rows, round(sample.rows_estimated))
        return Sample(rows, rows if sample.exhaustive else every, sample.exhaustive)

    def _choice(self, seen: _Seen, options: ReportOptions, sample: Sampled | None) -> Choice:
        encoded = seen.encoded
        sizes = [record.examples for record in encoded.records]
        tokenizer = encoded.spec.tokenizer_json
        stock, every = read_stock(self.config, encoded.places, sizes, tokenizer, self.scratch.root, options)
        seen_rows = self._sample(seen, sample)
        if seen_rows is not None and seen_rows.rows:
            every = round(every * seen_rows.rows_estimated / seen_rows.rows)
        return choose(stock, self.config, options, documents_in_all=every)

    def _batch(self, choice: Choice) -> BatchSize | None:
        """As the sweep has it, of all documents where it saw some."""
        known = "bfd" if choice.strategy == "none" else choice.strategy
        point = next(one for one in choice.points if (one.strategy, one.max_length) == (known, choice.max_length))
        more = choice.documents_in_all / max(choice.documents, 1)
        rows = point.pieces if choice.strategy == "none" else point.rows
        tokens, labels, examples = (round(one * more) for one in (point.tokens, point.labels, point.documents))
        return batch_size(max(round(rows * more), min(rows, 1)), tokens, labels, examples)

    def _spreads(self, seen: _Seen) -> Spreads:
        """How long packed examples are, from parts taken evenly."""
        assert seen.survey is not None
        names = [source.name for source in self.config.sources]
        out = Spreads({name: Spread() for name in names})
        lots = seen.survey.packed
        packed = np.concatenate([booleans(lot) for lot in lots]) if lots else np.zeros(0, np.bool_)
        sizes = np.array([record.examples for record in seen.encoded.records], dtype=np.int64)
        starts = np.cumsum(sizes) - sizes
        count, every = len(sizes), int(sizes.sum())
        taken = evenly(count, count if every <= LOOKED_INTO else max(1, count * LOOKED_INTO // every))
        out.exact = out.exact_runs = len(taken) == count
        for part in taken.tolist():
            place = seen.encoded.places[part]
            flags = packed[int(starts[part]) : int(starts[part] + sizes[part])]
            spread = out.sources[names[place.source]]
            lengths = [np.diff(view(batch.column("input_ids").offsets)) for batch in EncodedPart(place.path).batches]
            spread.lengths.add(np.concatenate(lengths)[flags] if lengths else flags[:0])
            if seen.encoding.pairs:
                pair_spread(place.path, flags, spread)
            else:
                part_spread(place.path, flags, spread, mask_of(self.config))
        return out

    def _trust(self, seen: _Seen, sample: Sampled | None) -> Trust:
        from .. import __version__

        encoding, spec = seen.encoding, seen.encoded.spec
        files = encoding.files
        inputs = [Input(file.source, file.shown, file.size, file.hash) for file in files]
        if sample is not None and not sample.exhaustive:
            inputs = sample.inputs
        bytes_in_all = sum(one.bytes for one in inputs)
        versions = {name: version(name) for name in ("jinja2", "pyarrow", "tokenizers")} | {"packtrain": __version__}
        read = sum(file.size for file in files)
        return Trust(
            sentence=(
                f"Read from {many(len(inputs), 'file')} by packtrain {__version__}; a plan packs nothing. A run of "
                "the same configuration, which the page and its JSON hold, finds what was encoded in the cache."
                if sample is None or sample.exhaustive
                else f"Estimated from a sample of {many(len(inputs), 'file')} by packtrain {__version__}; a run of "
                "the same configuration, which the page and its JSON hold, reads all of it."
            ),
            manifest=None,
            plan=None,
            tokenizer=encoding.tokenizer.hash,
            template=encoding.tokenizer.template_hash,
            engine=f"{spec.engine} {spec.engine_version}",
            versions=versions,
            stages=stages_of(self.timings, seen.ledger.total(), read),
            inputs=inputs[:_INPUTS],
            inputs_in_all=len(inputs),
            bytes_in_all=bytes_in_all,
            configuration=configuration_of(sample.asked if sample is not None else self.config, self.base),
        )
