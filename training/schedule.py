"""What is read, in which order, to where: everything about a loader that all ranks share."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..schemas.errors import ConfigError
from .balance import SAMPLE, Balance, Choice, choose_balance
from .corpus import Corpus
from .cost import ModelShape
from .mixture import MixBy, Mixture, Source, Until, even, weighted
from .order import EpochOrder, Order
from .rows import PackedRows
from .state import LoaderState
from .stream import RowStream


@dataclass(frozen=True, slots=True)
class Schedule:
    """A canonical order of rows over all epochs, and where it begins."""

    corpus: Corpus
    stream: RowStream
    total: int
    """Positions, over all epochs."""
    start: LoaderState
    """At the first row."""
    choice: Choice | None
    """What `balance="auto"` found; None where balance was given."""
    auto_first: bool
    """Whether it was left open how epoch 0 is read."""

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
        """Open the sources and settle what was left open.

        Raises:
            ConfigError: there is no source, one has no rows, or weights and epochs do not go together.
            InputError, IntegrityError: see `PackedRows`.
        """
        if not sources:
            raise ConfigError("no source was given; give a folder that packtrain run wrote")
        corpus = Corpus([PackedRows(source.where, source.split, **remote) for source in sources])
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
            # As the rows lie, where that is a random order: one shard then holds the sample.
            lying = Order.SEQUENTIAL if all(part.shuffled for part in corpus.parts) else Order.FULL
            sample = RowStream(corpus, _orders(corpus, seed, lying, False), mixture, seed, None, model)
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
        stream = _stream(corpus, mixture, state, model)
        total = len(corpus) * epochs if mixture is None else mixture.total
        return cls(corpus, stream, total, state, choice, auto_first)

    def adopt(self, state: LoaderState) -> "Schedule":
        """This schedule, with what was left open taken from a state: another version might settle it otherwise."""
        start = self.start
        if self.choice is not None:
            start = replace(start, balance_block=state.balance_block, balance_group=state.balance_group)
        if self.auto_first:
            start = replace(start, first_epoch_sequential=state.first_epoch_sequential)
        if start == self.start:
            return self
        try:
            stream = _stream(self.corpus, self.stream.mixture, start, self.stream.shape)
        except ValueError as error:
            raise ConfigError(f"the state is damaged: {error}; resume from another checkpoint") from error
        return replace(self, start=start, stream=stream)

    def refuse_beyond(self, state: LoaderState) -> None:
        """Raise ConfigError where a state stands beyond the end of its own order."""
        epochs = max(state.epochs, self.start.epochs)
        total = max(self.total, len(self.corpus) * epochs if self.stream.mixture is None else 0)
        if state.rows > total or state.tokens > state.rows * self.corpus.max_length:
            raise ConfigError(
                f"the state stands after {state.rows:,} rows of {state.tokens:,} tokens, but the order has {total:,} "
                f"rows of at most {self.corpus.max_length:,} tokens; it is damaged, so resume from another checkpoint"
            )


def _mix(sources: Sequence[Source], corpus: Corpus, epochs: int, by: MixBy, until: Until) -> Mixture:
    limits = [len(part) * (source.epochs or epochs) for source, part in zip(sources, corpus.parts, strict=True)]
    weights = [source.weight for source in sources if source.weight is not None]
    if not weights:
        return even(limits)
    if len(weights) != len(sources):
        raise ConfigError(
            "some sources of the mixture have a weight and others have none; give all of them one, or none"
        )
    if by is MixBy.TOKENS:
        # A row of a source holds so many tokens on the average: fewer rows of the fuller ones.
        weights = [
            weight * len(part) / max(part.tokens_in_all, 1) for weight, part in zip(weights, corpus.parts, strict=True)
        ]
    return weighted(weights, limits, until)


def _orders(corpus: Corpus, seed: int, order: Order, first_sequential: bool) -> list[EpochOrder]:
    several = len(corpus.parts) > 1
    return [
        EpochOrder(len(part), seed, order, first_sequential, f"rows {number}" if several else "rows")
        for number, part in enumerate(corpus.parts)
    ]


def _stream(corpus: Corpus, mixture: Mixture | None, state: LoaderState, model: ModelShape) -> RowStream:
    orders = _orders(corpus, state.seed, Order(state.order), state.first_epoch_sequential)
    balance = Balance(state.balance_block, state.balance_group) if state.balance_block else None
    return RowStream(corpus, orders, mixture, state.seed, balance, model)


def _fingerprint(mixture: Mixture | None) -> str:
    if mixture is None:
        return ""
    text = json.dumps([mixture.weights, mixture.total])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
