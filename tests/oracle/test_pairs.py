"""What the limits leave of preference pairs that are not packed, and what the ledger says of it, by lists of tokens."""

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from tests import kit
from tests.oracle.corpora import said
from tests.oracle.packer import Row
from tests.support.examples import examples

PARTS = ("prompt_ids", "chosen_ids", "rejected_ids")
Pair = tuple[list[int], list[int], list[int]]

pairs = st.fixed_dictionaries({"prompt": said.map(lambda text: text + "\n"), "chosen": said, "rejected": said})
limits = st.fixed_dictionaries(
    {
        "max_length": st.sampled_from([32, 64, 2048]),
        "overlong": st.sampled_from(["truncate", "truncate", "drop"]),
        "keep": st.sampled_from(["start", "end"]),
    }
)


def limited(pair: Pair, limit: Row) -> tuple[Pair, Counter[str]]:
    """What is left of a pair, and the tokens that each limit takes; both completions count."""
    prompt, *answers = pair
    lost: Counter[str] = Counter()
    if limit["overlong"] == "truncate":
        room = limit["max_length"]
        if limit["keep"] == "start":
            prompt, kept = prompt[:room], [answer[: max(0, room - len(prompt))] for answer in answers]
        else:
            kept = [answer[-room:] for answer in answers]
            room -= max(map(len, kept))
            lost["max_length"] += len(prompt) - min(len(prompt), room)
            prompt = prompt[len(prompt) - min(len(prompt), room) :]
        lost["max_length"] += sum(map(len, answers)) - sum(map(len, kept))
        answers = kept
    return (prompt, answers[0], answers[1]), lost


def reason(pair: Pair, left: Pair, limit: Row) -> str | None:
    """Why a pair is left out."""
    if pair[1] == pair[2]:
        return "equal"
    if len(left[0]) + max(map(len, left[1:])) > limit["max_length"]:
        return "overlong"
    if not (left[1] and left[2]):
        return "cut_empty"
    return "cut_equal" if left[1] == left[2] else None


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.tokenizer(tmp_path_factory.mktemp("tokenizers") / "tiny")


@given(rows=st.lists(pairs.filter(lambda row: row["chosen"] != row["rejected"]), min_size=5, max_size=20), limit=limits)
@examples(10, derandomize=True, phases=[Phase.generate])
def test_limits(rows: list[Row], limit: Row, tokenizer: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        kit.write(folder / "choices.jsonl", rows)
        config = kit.configure(
            folder, "choices", tokenizer={"path": str(tokenizer)}, pack={"strategy": "none", "shuffle": False}
        )
        whole = kit.packed(kit.merged(config, {"out": str(folder / "whole"), "truncate": {"max_length": 1 << 20}}))
        every = [tuple(row[name] for name in PARTS) for row in whole.rows()]
        left = [limited(pair, limit) for pair in every]
        reasons = [reason(pair, cut, limit) for pair, (cut, _) in zip(every, left, strict=True)]
        config = kit.merged(config, {"truncate": limit})
        if all(reasons):
            assert kit.cli("run", kit.saved(config), "--set", "run.report=false").code == 2, "nothing is left to pack"
            return
        packed = kit.packed(config)
        kept = [(cut, lost) for (cut, lost), why in zip(left, reasons, strict=True) if why is None]
        assert [tuple(row[name] for name in PARTS) for row in packed.rows()] == [cut for cut, _ in kept]
        (ledger,) = packed.ledger.values()
        lost = sum((one for _, one in kept), Counter[str]())
        assert Counter(ledger["tokens_truncated"]) == +lost
        assert ledger["examples_dropped"] == Counter(filter(None, reasons))
        assert ledger["labels_trained"] + ledger["labels_first_token"] == sum(
            len(cut[1]) + len(cut[2]) for cut, _ in kept
        )
        assert ledger["labels_first_token"] == sum(2 * (not cut[0]) for cut, _ in kept)
        assert ledger["tokens_packed"] == sum(sum(map(len, cut)) for cut, _ in kept)
