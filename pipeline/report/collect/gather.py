"""The report of a finished dataset. A section that cannot be made is left out, with the reason."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from ....schemas.alignment import why_padded
from ....schemas.errors import PacktrainError
from ....schemas.ledger import SourceLedger
from ....schemas.manifest import SplitRecord
from ....schemas.report import FORMAT, BatchSize, Choice, Overlap, Packing, Report, SplitPacking, Training
from ....stages.mask.policy import Mask
from ...dataset.decode import Decoder
from ...dataset.open import Finished, open_dataset
from ...dataset.run_notes import recall
from ..options import ReportOptions
from .flow import flow_of
from .lengths.packed import spreads_of
from .model_shapes import with_tokenizers_model
from .overlap import noted_hits, overlap_of
from .padding import padding_cost
from .rejects import rejects_of
from .rows.balance import balance_of
from .rows.look import RowLook, RowWeight, look_at, read_weights
from .rows.packing import RowOrder, order_of, split_packing
from .rows.shown import Shown, shown_rows
from .rows.shown_pairs import shown_pairs
from .saving import batch_size, packing_sentence, savings_of
from .shares import training_of
from .trust import trust_of

PAIRS = "Preference pairs are not packed: each is a row of its own."
Section = TypeVar("Section")


def report_of(folder: str | Path, options: ReportOptions | None = None) -> Report:
    """The report of a finished dataset, given by folder or URL.

    Raises:
        InputError: there is no finished dataset.
        IntegrityError: its manifest is damaged.
    """
    return report_of_dataset(open_dataset(folder), options or ReportOptions())


def report_of_dataset(
    dataset: Finished,
    options: ReportOptions,
    decoder: Decoder | None = None,
) -> Report:
    """The report of an open dataset.

    Args:
        decoder: the run's tokenizer, if it is loaded: loading takes a third of a second.
    """
    try:
        origin = recall(dataset.store)
    except PacktrainError:
        origin = None
    if origin is not None:
        options = with_tokenizers_model(options, origin.config.tokenizer.path, origin.base)
    return _Gathering(dataset, options, decoder).report()


@dataclass(slots=True)
class _Gathering:
    """Collects the sections of one report."""

    dataset: Finished
    options: ReportOptions
    decoder: Decoder | None = None
    absent: dict[str, str] = field(default_factory=dict)
    looks: dict[str, RowLook] = field(default_factory=dict)

    def report(self) -> Report:
        from .... import __version__

        manifest = self.dataset.manifest
        if manifest.preference:
            self.absent |= {
                "choice": f"{PAIRS} `truncate.max_length` limits the length of a pair.",
                "packing": PAIRS,
                "batch": f"{PAIRS} A batch of rows is a batch of as many pairs.",
            }
        choice = None if manifest.preference else self._try("choice", self._choice)
        packing = None if manifest.preference else self._try("packing", lambda: self._packing(choice))
        batch = None if manifest.preference else self._try("batch", self._batch)
        return Report(
            format=FORMAT,
            kind="run",
            name=self.dataset.store.url.rstrip("/").rpartition("/")[2] or self.dataset.store.url,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            packtrain=__version__,
            sample=None,
            choice=choice,
            flow=self._try("flow", lambda: flow_of(manifest.ledger, rejects_of(self.dataset.store))),
            overlap=self._try("overlap", self._overlap) if "evaluation" in manifest.plan else None,
            training=self._try("training", self._training),
            packing=packing,
            batch=batch,
            trust=self._try("trust", lambda: trust_of(self.dataset.store, manifest)),
            absent=self.absent,
        )

    def _try(self, name: str, make: Callable[[], Section | None]) -> Section | None:
        """A section, or None with its reason in `absent`: files beside the data may be damaged in any way."""
        try:
            made = make()
        except PacktrainError as error:
            self.absent[name] = str(error)
            return None
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, pa.ArrowException) as error:
            self.absent[name] = (
                f"This section cannot be made: {type(error).__name__}: {str(error).removesuffix('.')}. "
                f"`packtrain verify {self.dataset.store.url}` says whether a file is damaged."
            )
            return None
        if made is None:
            self.absent.setdefault(name, "There are no packed rows.")
        return made

    def _choice(self) -> Choice | None:
        from .lengths.choice import choose
        from .lengths.encoded import stats_of

        found = stats_of(self.dataset, self.options)
        if isinstance(found, str):
            self.absent["choice"] = f"{found[:1].upper()}{found[1:]}; a run of the same configuration brings it back."
            return None
        return choose(found.stats, found.config, self.options, documents_in_all=found.documents_in_all)

    def _overlap(self) -> Overlap:
        manifest = self.dataset.manifest
        return overlap_of(noted_hits(self.dataset.store), manifest.plan, manifest.ledger)

    def _look(self, split: str) -> RowLook:
        if split not in self.looks:
            self.looks[split] = look_at(self.dataset, self.dataset.manifest.splits[split])
        return self.looks[split]

    def _training(self) -> Training:
        manifest = self.dataset.manifest
        policy = manifest.plan["config"]["mask"]
        spreads = spreads_of(self.dataset, Mask.of_plan(policy))
        return training_of(manifest.ledger, spreads, self._shown(), policy=policy["policy"])

    def _shown(self) -> Shown:
        manifest = self.dataset.manifest
        if manifest.preference:
            return shown_pairs(self.dataset, self._main(), self.options.rows, self.decoder)
        split = self._main()
        total = manifest.ledger.total()
        config = manifest.plan["config"]["pack"]
        cut = bool(total.examples_truncated or total.examples_split) or config["strategy"] in ("bfd_split", "wrapped")
        try:
            look, rows = self._look(split), self.options.rows
            return shown_rows(self.dataset, split, look, rows, cut=cut, decoder=self.decoder)
        except PacktrainError as error:
            return Shown(absent=str(error))

    def _main(self) -> str:
        """The split to train on."""
        return "train" if "train" in self.dataset.manifest.splits else next(iter(self.dataset.manifest.splits))

    def _packing(self, choice: Choice | None) -> Packing | None:
        manifest, options = self.dataset.manifest, self.options
        config = manifest.plan["config"]["pack"]
        splits, weights = list[SplitPacking](), dict[str, RowWeight]()
        for name, split in manifest.splits.items():
            if split.rows:
                weights[name] = read_weights(self.dataset, split)
                splits.append(split_packing(name, split, manifest.max_length, weights[name], self._look(name)))
        if not splits:
            return None
        main = self._main()
        weight, split = weights.get(main), manifest.splits[main]
        balance, order, savings = [], RowOrder(None, None), []
        if weight is not None:
            balance = balance_of(weight, options.shape, options.world_size, shuffled=config["shuffle"])
            order = order_of(manifest, split, self._look(main))
            savings = savings_of(
                choice,
                config["strategy"],
                split.rows,
                int(weight.tokens.sum(dtype="int64")),
                int(weight.squares.sum(dtype="int64")),
                options.device_flops,
                options.shape,
            )
        shown = next((one for one in splits if one.split == main), splits[0])
        alignment, without = manifest.alignment, None if choice is None else choice.rows_unpadded
        if alignment.document == 1:
            without = shown.rows
        elif choice is not None and choice.documents != choice.documents_in_all:
            without = None  # of a sample
        why = why_padded(config["align"], manifest.parallel)
        cost = padding_cost(why, alignment, shown.rows, manifest.max_length, shown.padding, without)
        return Packing(
            sentence=packing_sentence(shown.rows, shown.bound, shown.fill, manifest.max_length, savings, choice, cost),
            max_length=manifest.max_length,
            strategy=config["strategy"],
            splits=splits,
            world_size=options.world_size,
            balance=balance,
            order_before=order.before,
            order_after=order.after,
            savings=savings,
            shape=options.shape,
            device_flops=options.device_flops,
            padding=cost,
        )

    def _batch(self) -> BatchSize | None:
        manifest, main = self.dataset.manifest, self._main()
        split: SplitRecord = manifest.splits[main]
        total: SourceLedger = manifest.ledger.total()
        # Repeats are in the training split only.
        examples = total.examples_packed.get(main, 0) + total.examples_repeated
        tokens = split.document_tokens
        return batch_size(split.rows, tokens, split.trained, examples)
