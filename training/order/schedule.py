"""The part of a loader that all ranks share: what is read, in which order, and where it ends."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...schemas.errors import ConfigError
from ...schemas.flops import ModelShape
from ..shards.dataset_rows import PackedRows
from .balance import SAMPLE, Balance, BalanceChoice, choose_balance
from .concat import ConcatRows
from .global_order import GlobalOrder
from .mixture import MixBy, Mixture, Source, Until, even, weighted
from .permutation import EpochOrder, Order
from .state import LoaderState


@dataclass(frozen=True, slots=True)
class Schedule:
    """A canonical order of rows over all epochs, and the state at its beginning."""

    corpus: ConcatRows
    global_order: GlobalOrder
    total: int
    """Number of positions over all epochs."""
    start: LoaderState
    """The state at the first row."""
    choice: BalanceChoice | None
    """What `balance="auto"` chose; None if balance was given."""
    auto_first: bool
    """Whether `first_epoch_sequential` was left to the loader."""

    @classmethod
    def of(
        cls,
        sources: Sequence[Source],
        *,
        epochs: int,
        seed: int,
        order: Order,
        first_sequential: bool | None,
        balance: Balance | str | None,
        model: ModelShape,
        mix_by: MixBy,
        until: Until,
        remote: dict[str, Any],
    ) -> "Schedule":
        """Open the sources, and make the choices that were left to the loader.

        Raises:
            ConfigError: there is no source, one has no rows, or weights and epochs do not fit together.
            InputError, IntegrityError: see `PackedRows`.
        """
        if not sources:
            raise ConfigError("no source was given; give a folder that packtrain run wrote")
        corpus = ConcatRows([PackedRows(source.where, source.split, **remote) for source in sources])
        for source, part in zip(sources, corpus.parts, strict=True):
            if not len(part):
                raise ConfigError(
                    f"{source.where}: the split {source.split!r} has no rows; "
                    "name another split, or leave the source out"
                )
        mixture = _mix(sources, corpus, epochs, mix_by, until) if len(sources) > 1 else None
        if mixture is None:
            epochs = sources[0].epochs or epochs
        auto_first = first_sequential is None
        if first_sequential is None:
            first_sequential = all(part.shuffled for part in corpus.parts)
        choice = None
        if balance == "auto":
            # In stored order if that is random, because then the sample is in one shard.
            lying = Order.SEQUENTIAL if all(part.shuffled for part in corpus.parts) else Order.FULL
            sample = GlobalOrder(corpus, _orders(corpus, seed, lying, False), mixture, seed, None, model)
            rows = sample.at(0, min(SAMPLE, len(corpus) if mixture is None else mixture.total))
            choice = choose_balance(sample.costs(rows))
            balance = choice.balance
        elif isinstance(balance, str):
            raise ConfigError(f"balance={balance!r}: give a Balance, 'auto' or None")
        state = LoaderState(
            fingerprint=corpus.fingerprint,
            mixture=_fingerprint(mixture),
            seed=seed,
            order=order.value,
            first_epoch_sequential=first_sequential,
            balance_block=balance.block if balance else 0,
            balance_group=balance.group if balance else 0,
            epochs=epochs if mixture is None else 1,
            rows=0,
            tokens=0,
        )
        global_order = _global_order(corpus, mixture, state, model)
        total = len(corpus) * epochs if mixture is None else mixture.total
        return cls(corpus, global_order, total, state, choice, auto_first)

    def adopt(self, state: LoaderState) -> "Schedule":
        """Return this schedule with the automatic choices of a state, because another version might choose
        differently.
        """
        start = self.start
        if self.choice is not None:
            start = replace(start, balance_block=state.balance_block, balance_group=state.balance_group)
        if self.auto_first:
            start = replace(start, first_epoch_sequential=state.first_epoch_sequential)
        if start == self.start:
            return self
        try:
            global_order = _global_order(self.corpus, self.global_order.mixture, start, self.global_order.shape)
        except ValueError as error:
            raise ConfigError(f"the state is damaged: {error}; resume from another checkpoint") from error
        return replace(self, start=start, global_order=global_order)

    def refuse_beyond(self, state: LoaderState) -> None:
        """Raise ConfigError if a state is beyond the end of its own order."""
        epochs = max(state.epochs, self.start.epochs)
        total = max(self.total, len(self.corpus) * epochs if self.global_order.mixture is None else 0)
        if state.rows > total or state.tokens > state.rows * self.corpus.max_length:
            raise ConfigError(
                f"the state is after {state.rows:,} rows of {state.tokens:,} tokens, but the order has {total:,} "
                f"rows of at most {self.corpus.max_length:,} tokens; it is damaged, so resume from another checkpoint"
            )


def _mix(sources: Sequence[Source], corpus: ConcatRows, epochs: int, by: MixBy, until: Until) -> Mixture:
    limits = [len(part) * (source.epochs or epochs) for source, part in zip(sources, corpus.parts, strict=True)]
    weights = [source.weight for source in sources if source.weight is not None]
    if not weights:
        return even(limits)
    if len(weights) != len(sources):
        raise ConfigError(
            "some sources of the mixture have a weight and others do not; give all of them a weight, or none"
        )
    if by is MixBy.TOKENS:
        # By the average tokens per row: sources with fuller rows get fewer rows.
        weights = [
            weight * len(part) / max(part.tokens_in_all, 1) for weight, part in zip(weights, corpus.parts, strict=True)
        ]
    return weighted(weights, limits, until)


def _orders(corpus: ConcatRows, seed: int, order: Order, first_sequential: bool) -> list[EpochOrder]:
    several = len(corpus.parts) > 1
    return [
        EpochOrder(len(part), seed, order, first_sequential, f"rows {number}" if several else "rows")
        for number, part in enumerate(corpus.parts)
    ]


def _global_order(corpus: ConcatRows, mixture: Mixture | None, state: LoaderState, model: ModelShape) -> GlobalOrder:
    orders = _orders(corpus, state.seed, Order(state.order), state.first_epoch_sequential)
    balance = Balance(state.balance_block, state.balance_group) if state.balance_block else None
    return GlobalOrder(corpus, orders, mixture, state.seed, balance, model)


def _fingerprint(mixture: Mixture | None) -> str:
    if mixture is None:
        return ""
    text = json.dumps([mixture.weights, mixture.total])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
