"""Shows the stages of one example: what prep made of its row, its text, and its tokens."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...schemas.config.config import RunConfig
from ...schemas.errors import ConfigError, PacktrainError
from ...schemas.rows import MIXED_KINDS, UNPROVED_KINDS, RunKind
from ...stages.mask.policy import Mask
from ...stages.prep import PreparedBlock
from ..dataset.cached_parts import CachedParts, EncodedDocument
from ..dataset.decode import Decoder, load_decoder
from ..dataset.open import Finished
from ..dataset.run_notes import recall_spec, tokenizer_folder
from .redo import Reencoded, ReferenceEncoder, prepare_row
from .story import Span, Story, Text
from .tokens import TokenFate, tokens_of, tokens_of_pieces


class Stages:
    """Fills in the stages of stories from what is left of one run.

    Args:
        given: the run's configuration and its folder, if the user gave them.
        tokenizer: the folder of the tokenizer that turns tokens into text; by default the run's.
    """

    def __init__(
        self,
        dataset: Finished,
        config: RunConfig,
        given: tuple[RunConfig, Path] | None,
        cached: CachedParts | None,
        tokenizer: Path | None,
    ) -> None:
        self.notes: list[str] = []
        """Sentences that say what is missing."""
        self._dataset = dataset
        self._config = config
        self._given = given
        self._cached = cached
        self._mask = Mask.of(config.mask)
        self._spec = recall_spec(cached.store, dataset.manifest.plan) if cached is not None else None
        self._decoder = self._find_decoder(tokenizer)
        self._encoder: ReferenceEncoder | None = None

    @property
    def tokenizer_json(self) -> str:
        """Content of the run's tokenizer.json; empty if the cache has lost it."""
        return self._spec.tokenizer_json if self._spec is not None else ""

    def prepared(self, story: Story) -> PreparedBlock | None:
        """Run prep on the story's row; None if the row is not available, or its reader has changed.

        Raises:
            ConfigError: only the dataset names the reader, not the user.
        """
        if story.origin.rows is None:
            return None
        try:
            return prepare_row(self._dataset, self._config, self._given, story.address.source, story.origin.rows)
        except PacktrainError as error:
            if self._given is None and isinstance(error, ConfigError):
                raise
            story.notes.append(str(error))
            return None

    def example(self, story: Story) -> None:
        """Fill in the example that prep made."""
        prepared = self.prepared(story)
        if prepared is not None:
            mine = (one for one in prepared.examples if one.sub == story.address.sub)
            story.example = next(mine, None)

    def fill(self, story: Story, one: EncodedDocument | None) -> None:
        """Fill in example, text and tokens. The positions in rows must be known already.

        Args:
            one: the document from the cache; None if the cache is gone.
        """
        self.example(story)
        redone = self._reencoded(story)
        if one is not None:
            story.tokens = tokens_of(one.ids, self._texts(one.ids), one.runs, self._mask, story.standings)
        else:
            pieces = [self._texts(standing.ids) for standing in story.standings]
            story.tokens = tokens_of_pieces(story.total, story.standings, pieces)
        checks = _checks(story, one, redone)
        if redone is not None and redone.runs is not None:
            begins = (0, *redone.runs.ends[:-1])
            decoded = self._decoded(story, one)
            if "".join(span.text for span in decoded) == redone.text:
                story.text = Text(decoded, True, redone.unproved, checks)
                return
            # The tokenizer changes text, so tokens have no exact place in it; match them by kind and turn instead.
            trained = {(token.kind, token.turn) for token in story.tokens if token.fate is TokenFate.TRAINED}
            spans = [
                Span(redone.text[begin:end], RunKind(kind), turn, bool(train), (RunKind(kind), turn) in trained)
                for begin, end, kind, turn, train in zip(begins, *redone.runs, strict=True)
            ]
            story.text = Text(spans, True, redone.unproved, checks)
            return
        unproved = ""
        if self._cached is not None and one is not None and _is_unproved(one):
            unproved = self._cached.unproved_detail(one)
        story.text = Text(self._decoded(story, one), False, unproved, checks)

    def _reencoded(self, story: Story) -> Reencoded | None:
        if story.example is None:
            return None
        if self._spec is None:
            if self._cached is not None:
                story.notes.append("the cache has lost the run's template, so the text is decoded from tokens")
            return None
        if self._encoder is None:
            self._encoder = ReferenceEncoder(self._spec)
        made = self._encoder(story.example)
        if isinstance(made, str):
            story.notes.append(f"it cannot be rendered again: {made}")
            return None
        return made

    def _decoded(self, story: Story, one: EncodedDocument | None) -> list[Span]:
        """Return the text, decoded from the tokens."""
        if self._decoder is None:
            return []
        flags = [True] * len(story.tokens)
        if one is not None:
            sizes = np.diff([run[0] for run in one.runs], prepend=0).tolist()
            flags = [run[3] for run, size in zip(one.runs, sizes, strict=True) for _ in range(size)]
        # Without the cache, only tokens in rows are known. A new text starts wherever tokens are missing.
        out: list[Span] = []
        groups: list[tuple[Span, list[int]]] = []
        last = -1
        for token, train in zip(story.tokens, flags, strict=True):
            span = Span("", token.kind, token.turn, train, token.fate is TokenFate.TRAINED)
            if token.index != last + 1:
                out += self._spans(groups)
                groups = []
            if not groups or groups[-1][0] != span:
                groups.append((span, []))
            groups[-1][1].append(token.id)
            last = token.index
        return out + self._spans(groups)

    def _spans(self, groups: Sequence[tuple[Span, list[int]]]) -> list[Span]:
        """Return the spans, with the texts of their consecutive tokens."""
        assert self._decoder is not None
        texts = self._decoder.spans([ids for _, ids in groups])
        return [replace(span, text=text) for (span, _), text in zip(groups, texts, strict=True)]

    def _texts(self, ids: Sequence[int]) -> list[str]:
        return self._decoder.pieces(ids) if self._decoder is not None else [""] * len(ids)

    def _find_decoder(self, folder: Path | None) -> Decoder | None:
        if folder is not None:
            return load_decoder(folder)
        if self._spec is not None:
            return Decoder.of_json(self._spec.tokenizer_json)
        place = tokenizer_folder(self._dataset.store)
        if place is not None:
            return load_decoder(place)
        self.notes.append("the run's tokenizer was not found; give its folder with --tokenizer to see text")
        return None


def _checks(story: Story, one: EncodedDocument | None, redone: Reencoded | None) -> list[tuple[str, bool]]:
    """Compare the newly encoded example with the cache and the shards."""
    if redone is None:
        return []
    out = []
    if one is not None:
        out += [
            ("the digest in the cache", redone.digest == one.digest),
            ("its tokens", redone.ids == one.ids),
            ("its runs", redone.token_runs == one.runs),
        ]
    if story.standings:
        ends = [(standing, standing.start + len(standing.ids)) for standing in story.standings]
        out.append(("the shards' tokens", all(one.ids == redone.ids[one.start : end] for one, end in ends)))
    return out


def _is_unproved(one: EncodedDocument) -> bool:
    return any(kind in UNPROVED_KINDS or kind in MIXED_KINDS for _, kind, _, _ in one.runs)
