"""The stages of one example: what prep made of its row, its text, its tokens."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..schemas.config import RunConfig
from ..schemas.errors import ConfigError, PacktrainError
from ..schemas.rows import Kind
from ..stages.prep import Prepared
from .follow_anew import Again, Anew, find_spec, prepare_row
from .follow_cache import CachedParts, EncodedDocument
from .follow_fate import unproved_detail
from .follow_origin import Inputs, State
from .follow_tokens import Fate, tokens_of, tokens_of_pieces
from .inspect import Decoder, load_decoder
from .outfolder import tokenizer_folder
from .reader import Finished
from .selecting import mask_of
from .story import Span, Story, Text


class Stages:
    """Fills the stages of stories, from what is left of one run.

    Args:
        tokenizer: a folder whose tokenizer gives tokens their text; by default the run's.
    """

    def __init__(
        self, dataset: Finished, config: RunConfig, inputs: Inputs, cached: CachedParts | None, tokenizer: Path | None
    ) -> None:
        self.notes: list[str] = []
        """What could not be had."""
        self._dataset = dataset
        self._config = config
        self._inputs = inputs
        self._cached = cached
        self._mask = mask_of(config)
        self._spec = find_spec(dataset, cached.store) if cached is not None else None
        self._decoder = self._find_decoder(tokenizer)
        self._again: Again | None = None

    def prepared(self, story: Story) -> Prepared | None:
        """What prep makes of the story's row; None where the row is not at hand, or its reader has changed.

        Raises:
            ConfigError: only the dataset names the reader.
        """
        if story.origin.state is not State.SAME:
            return None
        try:
            return prepare_row(self._dataset, self._config, self._inputs, story.address.source, story.origin)
        except PacktrainError as error:
            if self._inputs.given is None and isinstance(error, ConfigError):
                raise
            story.notes.append(str(error))
            return None

    def example(self, story: Story) -> None:
        """What prep made of it."""
        prepared = self.prepared(story)
        if prepared is not None:
            mine = (one for one in prepared.examples if one.sub == story.address.sub)
            story.example = next(mine, None)

    def fill(self, story: Story, one: EncodedDocument | None) -> None:
        """Example, text and tokens; the places in rows must be there already.

        Args:
            one: the document as the cache has it; None where the cache is gone.
        """
        self.example(story)
        anew = self._anew(story)
        if one is not None:
            story.tokens = tokens_of(one.ids, self._texts(one.ids), one.runs, self._mask, story.standings)
        else:
            pieces = [self._texts(standing.ids) for standing in story.standings]
            story.tokens = tokens_of_pieces(story.total, story.standings, pieces)
        checks = _checks(story, one, anew)
        if anew is not None and anew.runs is not None:
            begins = (0, *anew.runs.ends[:-1])
            decoded = self._decoded(story, one)
            if "".join(span.text for span in decoded) == anew.text:
                story.text = Text(decoded, True, anew.unproved, checks)
                return
            # The tokenizer changes texts, so that tokens cannot be placed in this one: by kinds and turns.
            trained = {(token.kind, token.turn) for token in story.tokens if token.fate is Fate.TRAINED}
            spans = [
                Span(anew.text[begin:end], Kind(kind), turn, train, (Kind(kind), turn) in trained)
                for begin, end, kind, turn, train in zip(begins, *anew.runs, strict=True)
            ]
            story.text = Text(spans, True, anew.unproved, checks)
            return
        unproved = ""
        if self._cached is not None and one is not None and _is_unproved(one):
            unproved = unproved_detail(self._cached.parts[self._cached.of_document(one.doc_id)], one)
        story.text = Text(self._decoded(story, one), False, unproved, checks)

    def _anew(self, story: Story) -> Anew | None:
        if story.example is None:
            return None
        if self._spec is None:
            if self._cached is not None:
                story.notes.append("the cache has lost the run's template: the text is decoded from the tokens")
            return None
        if self._again is None:
            self._again = Again(self._spec)
        made = self._again(story.example)
        if isinstance(made, str):
            story.notes.append(f"it cannot be rendered again: {made}")
            return None
        return made

    def _decoded(self, story: Story, one: EncodedDocument | None) -> list[Span]:
        """The text from the tokens."""
        if self._decoder is None:
            return []
        flags = [True] * len(story.tokens)
        if one is not None:
            sizes = np.diff([run[0] for run in one.runs], prepend=0).tolist()
            flags = [run[3] for run, size in zip(one.runs, sizes, strict=True) for _ in range(size)]
        # Without the cache only what stands in rows is known: a text ends where tokens are missing.
        out: list[Span] = []
        groups: list[tuple[Span, list[int]]] = []
        last = -1
        for token, train in zip(story.tokens, flags, strict=True):
            span = Span("", token.kind, token.turn, train, token.fate is Fate.TRAINED)
            if token.index != last + 1:
                out += self._spans(groups)
                groups = []
            if not groups or groups[-1][0] != span:
                groups.append((span, []))
            groups[-1][1].append(token.id)
            last = token.index
        return out + self._spans(groups)

    def _spans(self, groups: Sequence[tuple[Span, list[int]]]) -> list[Span]:
        """The same spans with the texts of their tokens, which are neighbours."""
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
        self.notes.append("the tokenizer of the run is not here; give its folder with --tokenizer to see text")
        return None


def _checks(story: Story, one: EncodedDocument | None, anew: Anew | None) -> list[tuple[str, bool]]:
    """What was made anew, held against the cache and the shards."""
    if anew is None:
        return []
    out = []
    if one is not None:
        out += [
            ("the digest in the cache", anew.digest == one.digest),
            ("its tokens", anew.ids == one.ids),
            ("its runs", anew.token_runs == one.runs),
        ]
    if story.standings:
        ends = [(standing, standing.start + len(standing.ids)) for standing in story.standings]
        out.append(("the shards' tokens", all(one.ids == anew.ids[one.start : end] for one, end in ends)))
    return out


def _is_unproved(one: EncodedDocument) -> bool:
    return any(kind in (Kind.UNPROVED, Kind.UNPROVED_COMPLETION) for _, kind, _, _ in one.runs)
