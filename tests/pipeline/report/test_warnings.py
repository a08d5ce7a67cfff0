"""Each warning of a report and of a run's end: there with its cause and its number where the data was made so, and not
there where the data is just otherwise.
"""

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import packtrain
import pytest
from packtrain.schemas.units import share

from tests import kit

ONE_TURN = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% endfor %}"
"""A template that ends no turn."""


def documents(lengths: Sequence[int], prompt: int = 1) -> list[kit.Row]:
    """Documents of exactly these lengths, no two alike; of each, all but the first `prompt` tokens are supervised."""
    chance = random.Random(len(lengths))
    rows = []
    for number, length in enumerate(lengths):
        tokens = [number % 256, number // 256, *(chance.randrange(256) for _ in range(length - 2))]
        rows.append({"input_ids": tokens, "labels": [-100] * min(prompt, length) + tokens[prompt:]})
    return rows


def configured(folder: Path, sources: dict[str, list[kit.Row]], kind: str = "ids", **keys: Any) -> kit.Config:
    """A configuration of sources with these rows."""
    listed = []
    for name, rows in sources.items():
        kit.write(folder / f"{name}.jsonl", rows)
        listed.append(kit.source(kind, name=name, path=f"{name}.jsonl"))
    return kit.configure(folder, *listed, **keys)


def report_notes(config: kit.Config) -> str:
    """Everything that the report of a run says in sentences."""
    kit.packed(config)
    return "\n".join(packtrain.report(config["out"]).notes)


def chats(count: int, answer: str = "fine") -> list[kit.Row]:
    return [
        {"messages": [{"role": "user", "content": f"q {n}"}, {"role": "assistant", "content": answer}]}
        for n in range(count)
    ]


# What happened to my data?


@pytest.mark.parametrize(
    ("long", "short", "max_length", "overlong", "warning"),
    [
        (100, 50, 80, "truncate", "these sources lose to the limits: long 20 %."),
        (100, 50, 25, "truncate", "these sources lose to the limits: long 75 %, short 50 %."),
        (200, 50, 190, "truncate", "these sources lose to the limits: long 5 %."),
        (200, 50, 191, "truncate", ""),
        (100, 50, 80, "drop", "these sources lose to the limits: long 100 %."),
        (100, 50, 100, "drop", ""),
    ],
)
def test_sources_that_lose_their_tokens_to_a_limit(
    long: int, short: int, max_length: int, overlong: str, warning: str, tmp_path: Path
) -> None:
    sources = {"short": documents([short] * 10), "long": documents([long] * 10)}
    limits = {"max_length": max_length, "overlong": overlong}
    notes = report_notes(configured(tmp_path, sources, truncate=limits))
    assert ("lose to the limits" in notes) == bool(warning)
    assert warning in notes


def test_a_single_source_is_not_compared_with_others(tmp_path: Path) -> None:
    notes = report_notes(configured(tmp_path, {"only": documents([100] * 10)}, truncate={"max_length": 50}))
    assert "lose to the limits" not in notes
    assert "50 % of the encoded tokens are lost." in notes


def test_the_share_of_lost_tokens_is_said(tmp_path: Path) -> None:
    """200 tokens and 100, of which 80 and 0 are cut."""
    sources = {"s": documents([120, 80, 100])}
    assert "No token was lost." in report_notes(configured(tmp_path, sources))
    cut = report_notes(configured(tmp_path, sources, truncate={"max_length": 90}, out=str(tmp_path / "cut")))
    assert f"{share((30 + 10) / 300)} of the encoded tokens are lost." in cut
    assert "No token was lost." not in cut


def test_rows_that_are_rejected_are_said_with_the_most_frequent_reason(tmp_path: Path) -> None:
    config = configured(tmp_path, {"s": documents([50] * 40)}, max_rejected=0.5)
    file = tmp_path / "s.jsonl"
    whole = kit.packed(config).notes
    assert not any(note.startswith("Rejected: ") for note in whole)
    assert "could not be used" not in "\n".join(packtrain.report(config["out"]).notes)
    file.write_bytes(file.read_bytes() + b"{not json\n" * 3 + b"[1]\n" * 2)
    config["out"] = str(tmp_path / "damaged")
    (line,) = (note for note in kit.packed(config).notes if note.startswith("Rejected: "))
    assert line.startswith("Rejected: 5 rows or examples of 45 rows (invalid_json 3, not_an_object 2). invalid_json: ")
    assert line.endswith(f"All: {tmp_path / 'damaged' / 'rejects.jsonl'}")
    assert "5 rows or examples could not be used." in "\n".join(packtrain.report(config["out"]).notes)


def test_rows_that_are_filtered_are_said(tmp_path: Path) -> None:
    """Every fourth problem has no solution."""
    kit.write(tmp_path / "apps.jsonl", kit.corpus("apps", 20))
    (line,) = (note for note in kit.packed(kit.configure(tmp_path, "apps")).notes if note.startswith("Filtered: "))
    assert line.startswith("Filtered: 5 rows (no_solution 5). ")
    kit.write(tmp_path / "solved.jsonl", [row for row in kit.corpus("apps", 20) if row["id"] % 4])
    solved = kit.configure(tmp_path, kit.source("apps", path="solved.jsonl"), out=str(tmp_path / "solved"))
    assert not any(note.startswith("Filtered: ") for note in kit.packed(solved).notes)


def test_examples_that_are_dropped_are_said(tmp_path: Path) -> None:
    """Of 30 documents, 4 are shorter and 7 are longer than is asked for."""
    sources = {"s": documents([20] * 4 + [60] * 19 + [90] * 7)}
    between = {"min_tokens": 30, "max_tokens": 80}
    (line,) = (
        note for note in kit.packed(configured(tmp_path, sources, filter=between)).notes if note.startswith("Dropped: ")
    )
    assert line.startswith("Dropped: 11 examples of 30 (max_tokens 7, min_tokens 4). max_tokens: ")
    everything = configured(
        tmp_path, sources, filter={"min_tokens": 20, "max_tokens": 90}, out=str(tmp_path / "everything")
    )
    assert not any(note.startswith("Dropped: ") for note in kit.packed(everything).notes)


def test_a_run_that_trains_nothing_says_so(tmp_path: Path) -> None:
    sources = {"s": documents([50] * 5, prompt=50)}
    notes = kit.packed(configured(tmp_path, sources, keep_untrained=True)).notes
    assert "No token is supervised: nothing is trained." in notes
    one = configured(
        tmp_path, {"t": [*sources["s"], *documents([50], prompt=49)]}, keep_untrained=True, out=str(tmp_path / "one")
    )
    notes = kit.packed(one).notes
    assert "Trained: all of 1 supervised token." in notes
    assert not any("nothing is trained" in note for note in notes)


# What is being trained on?


@pytest.mark.parametrize(
    ("template", "count", "warning"),
    [
        (ONE_TURN, 3, "3 trained turns without an end-of-turn token: there the model does not learn to stop."),
        (ONE_TURN, 1, "1 trained turn without an end-of-turn token: there the model does not learn to stop."),
        (kit.CHATML, 3, ""),
    ],
)
def test_turns_that_do_not_end_are_warned_of(template: str, count: int, warning: str, tmp_path: Path) -> None:
    folder = kit.tokenizer(tmp_path / "tokenizer", template=template)
    config = configured(
        tmp_path, {"s": chats(count)}, "chats", tokenizer={"path": str(folder)}, mask={"policy": "assistant"}
    )
    notes = report_notes(config)
    assert ("without an end-of-turn token" in notes) == bool(warning)
    assert warning in notes


@pytest.mark.parametrize(("weight", "is_warned"), [(2.0, True), (1.0, False)])
def test_loss_weights_are_warned_of(weight: float, is_warned: bool, tmp_path: Path) -> None:
    config = configured(tmp_path, {"s": documents([50] * 10), "t": documents([40] * 10)})
    config["sources"][0]["loss_weight"] = weight
    notes = report_notes(config)
    assert ("Tokens have loss weights: a trainer that ignores them trains another objective." in notes) == is_warned


def test_the_share_on_which_the_loss_falls_is_that_of_the_masks(tmp_path: Path) -> None:
    """Of 50 tokens, the first 10 are a prompt."""
    notes = report_notes(configured(tmp_path, {"s": documents([50] * 20, prompt=10)}))
    assert f"The loss falls on {share(40 / 50)} of the packed tokens, 800 tokens (mask: " in notes


# How good is the packing?


@pytest.mark.parametrize("length", [4, 64, 256])
def test_how_many_documents_a_row_holds_is_said(length: int, tmp_path: Path) -> None:
    notes = report_notes(configured(tmp_path, {"s": documents([length] * 256)}))
    assert f"A row holds {256 / length:.1f} documents on average." in notes


@pytest.mark.parametrize(("align", "padding"), [(64, 28), (1, 0)])
def test_padding_is_said_with_its_share(align: int, padding: int, tmp_path: Path) -> None:
    """Two documents of 100 tokens a row: of 256 tokens, 56 are padding, or the row's own rest."""
    notes = report_notes(configured(tmp_path, {"s": documents([100] * 20)}, pack={"align": align}))
    assert ("Padding for" in notes) == bool(padding)
    if padding:
        assert f"Padding for pack.align takes {share(2 * padding / 256, 2)} of the rows." in notes


def test_the_rows_of_a_holdout_are_said(tmp_path: Path) -> None:
    sources = {"s": documents([64] * 40)}
    config = configured(tmp_path, sources, holdout={"fraction": 0.5})
    notes = report_notes(config)
    held_out = packtrain.open(config["out"]).splits["holdout"]
    fill = held_out.tokens / (held_out.rows * 256)
    assert f" holdout: {held_out.rows} rows, {share(fill, 2)} full." in notes
    assert not any("is held out, because" in note for note in notes.splitlines())
    assert "holdout:" not in report_notes(configured(tmp_path, sources, out=str(tmp_path / "whole")))


# Which max_length?


def test_documents_that_are_cut_and_left_out_are_counted(tmp_path: Path) -> None:
    """At 100 tokens, 5 documents of 150 lose 50 each; 3 of 150, whose supervised tokens come later, lose all 30."""
    sources = {"s": documents([150] * 5) + documents([150] * 3, prompt=120) + documents([90] * 2)}
    report = packtrain.plan(configured(tmp_path, sources, truncate={"max_length": 100}), base=tmp_path)
    notes = "\n".join(report.notes)
    supervised = 5 * 149 + 3 * 30 + 2 * 89
    lost = 5 * 50 + 3 * 30
    expected = f"At 100 with bfd, {share(lost / supervised, 2)} of the trained tokens is lost."
    assert f"{expected} Of 10 documents, 5 are cut and 3 are left out." in notes
    enough = packtrain.plan(configured(tmp_path, sources, truncate={"max_length": 150}), base=tmp_path)
    assert "At 150 with bfd, none of the trained tokens is lost. No document is cut." in "\n".join(enough.notes)


def test_a_length_above_that_of_the_model_is_warned_of_with_the_longer_documents(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(kit.demo_tokenizer(), tmp_path / "model"))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 128}))
    config = configured(tmp_path, {"s": documents([200] * 3 + [128] * 4)}, tokenizer={"path": str(folder)})
    above = packtrain.plan(config, base=tmp_path, overrides={"truncate.max_length": 256})
    assert (
        "max_length 256 is above what the model is made for: the model's positions end at 128; 3 documents are longer."
    ) in above.notes
    enough = packtrain.plan(config, base=tmp_path, overrides={"truncate.max_length": 128})
    assert "above what the model is made for" not in "\n".join(enough.notes)


def test_a_sample_says_of_how_many_documents_it_is(tmp_path: Path) -> None:
    config = configured(tmp_path, {f"s{number}": documents([50 + number] * 100) for number in range(8)})
    sampled = packtrain.plan(config, base=tmp_path, rows=200)
    assert sampled.sample is not None
    assert sampled.choice is not None
    assert sampled.sample.rows_in_all == 800
    read = sampled.choice.documents
    assert 200 <= read < 800
    assert f"That is from {read:,} of about 800 documents." in "\n".join(sampled.notes)
    assert "That is from" not in "\n".join(packtrain.plan(config, base=tmp_path).notes)


def test_pairs_whose_prompt_leaves_no_room_are_counted_with_what_keeps_them(tmp_path: Path) -> None:
    """Five prompts are longer than all of `max_length`, each at its end another one; ten pairs are short."""
    short = [{"prompt": f"q {n}", "chosen": f"yes {n}", "rejected": f"no {n}"} for n in range(10)]
    long = [{**row, "prompt": "how far " * 300 + row["prompt"]} for row in short[:5]]
    crowded = packtrain.plan(configured(tmp_path, {"s": [*short, *long]}, "choices"), base=tmp_path)
    notes = "\n".join(crowded.notes)
    assert "at 256, 5 pairs are left out; with truncate.keep=end, none" in notes
    kept = packtrain.plan(
        configured(tmp_path, {"s": [*short, *long]}, "choices", truncate={"keep": "end"}), base=tmp_path
    )
    assert "pairs are left out" not in "\n".join(kept.notes)
    roomy = packtrain.plan(configured(tmp_path, {"t": short}, "choices"), base=tmp_path)
    assert "pairs are left out" not in "\n".join(roomy.notes)


# Is the evaluation data in it?


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        ("drop", "2 of 20 examples share text with 1 of 1 evaluation row, 2 of them most or all of a question or an "
                 "answer. They are left out."),
        ("report", "2 of 20 examples share text with 1 of 1 evaluation row, 2 of them most or all of a question or an "
                   "answer. They are kept, because `action` is `report`."),
    ],
)  # fmt: skip
def test_what_becomes_of_examples_with_evaluation_text_is_said(action: str, sentence: str, tmp_path: Path) -> None:
    question = " ".join(f"word{number}" for number in range(30))
    texts = [{"text": " ".join(f"{word}{number}" for word in range(20))} for number in range(18)]
    kit.write(tmp_path / "test.jsonl", [{"question": question}])
    contamination = {"against": str(tmp_path / "test.jsonl"), "action": action}
    planted = [*texts, {"text": f"first {question}"}, {"text": f"second {question}"}]
    config = configured(tmp_path, {"s": planted}, "texts", contamination=contamination)
    assert sentence in report_notes(config)
    clean = configured(tmp_path, {"t": texts}, "texts", contamination=contamination, out=str(tmp_path / "clean"))
    notes = report_notes(clean)
    assert "No example shares" in notes
    assert "They are" not in notes
