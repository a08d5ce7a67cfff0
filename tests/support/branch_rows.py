"""Rows whose documents share tokens, made from documents that are known."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from packtrain.schemas.dataset.row_batch import Row
from packtrain.stages.pack.shared_prefixes import share_prefixes

MASKED = -100


class Document(NamedTuple):
    """A document by itself."""

    tokens: list[int]
    labels: list[int]
    """Equal to the token, or -100."""


def plain_row(documents: Sequence[Document]) -> Row:
    """A row without branches."""
    lengths = [len(document.tokens) for document in documents]
    return Row(
        np.array([token for document in documents for token in document.tokens], np.int32),
        np.array([label for document in documents for label in document.labels], np.int32),
        np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        np.array(lengths, np.int32),
    )


def branch_row(groups: Sequence[Sequence[Document]]) -> tuple[Row, list[Document]]:
    """A row in which the documents of each group share what they can; and the documents, piece by piece."""
    pieces: list[Document] = []
    positions: list[int] = []
    parents: list[int] = []
    order: list[Document] = []
    for group in groups:
        tokens = [np.array(document.tokens, np.int32) for document in group]
        trained = [
            next((place for place, label in enumerate(document.labels) if label != MASKED), len(document.labels))
            for document in group
        ]
        found = share_prefixes(tokens, np.array(trained), 10**6)
        for index, count, parent in zip(found.order, found.shared, found.parents, strict=True):
            prefix = max(int(count) - 1, 0)
            document = group[index]
            labels = document.labels[prefix:]
            pieces.append(Document(document.tokens[prefix:], [MASKED, *labels[1:]] if parent else labels))
            positions += range(prefix, len(document.tokens))
            parents.append(int(parent))
            order.append(document)
    row = plain_row(pieces)
    row.position_ids = np.array(positions, np.int32)
    row.parents = np.array(parents, np.int32)
    return row, order


def continued(prefix: list[int], own: int, trained: int, chance: random.Random, vocabulary: int = 500) -> Document:
    """A document that begins with a prefix; of its own tokens, the last ones are trained."""
    tokens = [*prefix, *(chance.randrange(5, vocabulary) for _ in range(own))]
    untrained = max(1, len(tokens) - trained)
    return Document(tokens, [MASKED] * untrained + tokens[untrained:])


def chat_of_turns(turns: int, chance: random.Random, *, keeps_thoughts: bool) -> list[Document]:
    """One document a turn, as `expand: per_turn` makes them, under a template that keeps earlier thoughts or drops
    them: then each turn branches off where its thought began.
    """
    history = [chance.randrange(5, 500) for _ in range(9)]
    documents: list[Document] = []
    for _ in range(turns):
        question = [chance.randrange(5, 500) for _ in range(chance.randint(3, 8))]
        thought = [1, *(chance.randrange(5, 500) for _ in range(chance.randint(3, 11))), 2]
        answer = [chance.randrange(5, 500) for _ in range(chance.randint(4, 8))]
        prompt = [*history, *question]
        completion = [*thought, *answer]
        documents.append(Document(prompt + completion, [MASKED] * len(prompt) + completion))
        history = prompt + (completion if keeps_thoughts else answer)
    return documents


def mixed_groups(seed: int = 0) -> list[list[Document]]:
    """Groups of every shape: chats whose template drops and keeps thoughts, a pair whose completions begin alike,
    rollouts of a prompt, equal documents, and a document alone.
    """
    chance = random.Random(seed)
    prompt = [chance.randrange(5, 500) for _ in range(23)]
    chosen = continued(prompt, 9, 9, chance)
    rejected = continued([*prompt, chosen.tokens[len(prompt)]], 13, 14, chance)
    rollouts = [continued(prompt[:17], own, own, chance) for own in (5, 8, 3, 11)]
    alone = continued([], 21, 8, chance)
    return [
        chat_of_turns(5, chance, keeps_thoughts=False),
        [chosen, rejected],
        chat_of_turns(4, chance, keeps_thoughts=True),
        rollouts,
        [alone],
        [rollouts[0], rollouts[0]],
    ]
