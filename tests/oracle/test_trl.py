"""packtrain's rows are those that TRL prepares and packs, wherever the two promise the same.

TRL tokenizes a prompt alone and the whole, and trains what follows their common prefix; packtrain tokenizes once, and
trains the tokens that reach beyond the prompt. The labels are the same if the prompt's own tokens begin the whole;
where they do not, `differs` says so from the row and the tokenizer alone.
"""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from tests import kit

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

Row = dict[str, Any]
IGNORED = -100
PARTS = ("prompt_ids", "chosen_ids", "rejected_ids")
REAL = "qwen3"
FRAGMENTS = (
    *("Hello", "world", " the", " answer is", "42", "1234567", "don't", "x = f(a, b)\n    return x", "naïve", "ſ", "İ"),
    *("", " ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\u00a0", "\u2028", "\x00", "\x1f", "\ufeff", "\u200d"),
    *("é", "e\u0301", "\u0301", "\u212b", "ﬁ", "각", "\u1100\u1161\u11a8", "क्षि", "中文", "日本語", "עברית"),
    *("🙂", "👩\u200d👩\u200d👧\u200d👦", "🏳️\u200d🌈", "🇩🇪", "\U0001f1e9", "👍🏽", "𝒳", "<|im_", "end|>", "<think>"),
    *("[INST]", "{{", "\\n", '"'),
    *("<|im_start|>", "<|im_end|>", "<|im_start|>assistant\n", "<|endoftext|>", "<|EOT|>", "<s>", "</s>", "Ġ", "▁"),
)


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


# Rows


def some_text(chance: random.Random) -> str:
    return "".join(chance.choices(FRAGMENTS, k=chance.randint(0, 7)))


def said(role: str, content: str) -> Row:
    return {"role": role, "content": content}


def made(count: int) -> dict[str, list[Row]]:
    """Rows of odd fragments, by format."""
    chance = random.Random(20_26)
    chats = []
    for _ in range(count):
        prompt = [said("system", some_text(chance))] if chance.random() < 0.3 else []
        for _ in range(chance.randint(0, 2)):
            prompt += [said("user", some_text(chance)), said("assistant", some_text(chance))]
        prompt.append(said("user", some_text(chance)))
        # Conversations that end with an empty answer are rejected, as nothing would be learned from them.
        chats.append({"prompt": prompt, "completion": [said("assistant", some_text(chance) or "Yes.")]})
    return {
        "plain": [{"prompt": some_text(chance), "completion": some_text(chance)} for _ in range(count)],
        "chats": chats,
        "texts": [{"text": some_text(chance)} for _ in range(count)],
    }


def real(root: Path) -> dict[str, list[Row]]:
    """Conversations, long texts, and answers that are glued to their prompts."""

    def rows(name: str, count: int) -> list[Row]:
        with (root / f"{name}.jsonl").open(encoding="utf-8") as file:
            return [json.loads(line) for _, line in zip(range(count), file, strict=False)]

    found: dict[str, list[Row]] = {}
    for name in ("gsm8k_train", "oasst_en100_paths"):
        chats = [row["messages"] for row in rows(f"chat/{name}", 40)]
        found[name] = [{"prompt": one[:-1], "completion": one[-1:]} for one in chats if one[-1]["role"] == "assistant"]
    chosen = rows("preference/dpo_pairs", 40)
    found["chosen"] = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in chosen]
    found["peps"] = [{"text": row["text"][:20_000]} for row in rows("longdoc/peps", 12)]
    texts = enumerate((row["text"] for row in found["peps"][1:]), 1)
    found["glued"] = [{"prompt": text[:cut], "completion": text[cut : cut + 900]} for cut, text in texts]
    return found


# Both


@dataclass(frozen=True)
class Bench:
    """A tokenizer, and rows by source."""

    folder: Path
    tokenizer: Any
    rows: dict[str, list[Row]]
    work: Path

    def run(self, out: str, **keys: Any) -> list[Row]:
        """What packtrain writes of all rows."""
        for name, rows in self.rows.items():
            kit.write(self.work / f"{name}.jsonl", rows)
        sources = [
            {"name": name, "format": "text" if "text" in rows[0] else "prompt_completion", "path": f"{name}.jsonl"}
            for name, rows in self.rows.items()
        ]
        config = kit.configure(self.work, *sources, out=str(self.work / out), tokenizer={"path": str(self.folder)})
        base: Row = {
            "truncate": {"max_length": 1 << 20},
            "pack": {"shuffle": False},
            "keep_untrained": True,
            "max_rejected": 1,
        }
        packed = kit.packed(kit.merged(kit.merged(config, base), keys))
        names = {entry["doc_id"]: entry["id"] for entry in packed.documents()}
        return [row | {"names": [names[one] for one in row["doc_ids"]]} for row in packed.rows()]


@pytest.fixture(scope="module", params=["tiny", "tiny-bos", pytest.param(REAL, marks=pytest.mark.slow)])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Every tokenizer over odd rows; the real one over real rows as well."""
    name, work = str(request.param), tmp_path_factory.mktemp("trl")
    rows = made(150)
    if name == REAL:
        root: Path = request.getfixturevalue("realdata")
        folder = root / "tokenizers" / name
        rows |= real(root)
    else:
        folder = kit.tokenizer(work / name, bos=name == "tiny-bos")
    return Bench(folder, AutoTokenizer.from_pretrained(folder), rows, work)


@contextmanager
def unnamed() -> Iterator[None]:
    """Datasets in memory have no cache files, which are named by a hash of the function with all that it holds.

    With a tokenizer of 150,000 entries the hash takes many times as long as what TRL does with the rows.
    """
    from datasets import arrow_dataset, fingerprint

    with pytest.MonkeyPatch.context() as patch:
        for module in (arrow_dataset, fingerprint):
            patch.setattr(module, "update_fingerprint", lambda *_: fingerprint.generate_random_fingerprint())
        yield


def prepared(tokenizer: Any, rows: list[Row]) -> list[Row]:
    """What SFTTrainer makes of rows; see `test_a_trainer_prepares_as_it_is_driven_here`."""
    from trl import SFTConfig, SFTTrainer

    args = SFTConfig(output_dir="unused", use_cpu=True, bf16=False, report_to="none", max_length=None)
    trainer = SimpleNamespace(_tokenizer=tokenizer, chat_template=None, completion_only_loss="prompt" in rows[0])
    with unnamed():
        found = SFTTrainer._prepare_dataset(trainer, Dataset.from_list(rows), tokenizer, args, False, None, "train")
    return list(found.select_columns(["input_ids", "labels"]))


def differs(row: Row, tokenizer: Any, ids: list[int]) -> bool:
    """Whether TRL promises other labels: the prompt's own tokens do not begin the row.

    Args:
        ids: the row's tokens as TRL has them.
    """
    if "text" in row:
        return False
    if isinstance(row["prompt"], str):
        alone = tokenizer(row["prompt"]).input_ids
    else:
        alone = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
    return bool(ids[: len(alone)] != alone)


def without_doubles(row: Row, their: Row, tokenizer: Any) -> Row:
    """TRL's row without a beginning or an end of the sequence that was there already."""
    ids, labels = their["input_ids"], their["labels"]
    plain = "text" in row or isinstance(row["prompt"], str)
    text = row["text"] if "text" in row else row["prompt"] + row["completion"] if plain else ""
    last = str(row["text"] if "text" in row else row["completion"]) if plain else ""
    begin, end = tokenizer.bos_token, tokenizer.eos_token
    if plain and begin and ids[:2] == [tokenizer.bos_token_id] * 2 and text.startswith(begin):
        ids, labels = ids[1:], labels[1:]
    if plain and text.endswith(end) and not last.endswith(end):
        ids, labels = ids[:-1], labels[:-1]
    return {"input_ids": ids, "labels": labels}


def without_heads(labels: list[int], lengths: list[int]) -> list[int]:
    """Labels without those of the first tokens of pieces, which TRL masks in its collator."""
    heads = {0, *np.cumsum(lengths[:-1]).tolist()}
    return [IGNORED if place in heads else label for place, label in enumerate(labels)]


def test_every_label_of_every_row(bench: Bench) -> None:
    ours = {row["names"][0]: row for row in bench.run("rows", pack={"strategy": "none"})}
    same = 0
    for source, rows in bench.rows.items():
        theirs = prepared(bench.tokenizer, rows)
        for line, (row, their) in enumerate(zip(rows, theirs, strict=True), 1):
            mine = ours.pop(f"{source}/{source}:{line}", None)
            if mine is None:  # without a text there is nothing to learn
                learned = row["completion"] if "completion" in row else row["text"]
                texts = [learned] if isinstance(learned, str) else [message["content"] for message in learned]
                assert not "".join(texts).strip()
                continue
            whole = without_doubles(row, their, bench.tokenizer)
            assert mine["input_ids"] == whole["input_ids"], row
            expected = without_heads(whole["labels"], [len(whole["labels"])])
            if not differs(row, bench.tokenizer, their["input_ids"]):
                assert mine["labels"] == expected, row
                same += 1
            else:  # TRL trains from where the tokens begin to differ, which is within the prompt
                assert all(one in (IGNORED, other) for one, other in zip(mine["labels"], expected, strict=True)), row
    assert not ours
    assert same > 0.8 * sum(map(len, bench.rows.values())) > 300


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
def test_packed_rows_in_order(bench: Bench, strategy: str) -> None:
    """TRL packs packtrain's own tokens into packtrain's rows, where nothing is shuffled."""
    from trl import pack_dataset

    length = 96 if bench.folder.name.startswith("tiny") else 2048
    alone = bench.run("alone", pack={"strategy": "none"})
    table = Dataset.from_list([{name: row[name] for name in ("input_ids", "labels")} for row in alone])
    theirs = pack_dataset(table, length, strategy, {"batch_size": len(table)})
    ours = bench.run(strategy, truncate={"max_length": length}, pack={"strategy": strategy})
    assert len(ours) == len(theirs) > 20
    for mine, their in zip(ours, theirs, strict=True):
        assert mine["input_ids"] == their["input_ids"]
        if strategy != "wrapped":  # TRL forgets where documents begin when it wraps
            assert mine["seq_lengths"] == their["seq_lengths"]
        assert mine["labels"] == without_heads(their["labels"], mine["seq_lengths"])


def test_a_trainer_prepares_as_it_is_driven_here(tmp_path: Path) -> None:
    """`prepared` calls one method of a trainer that was never built; a real one gives the same."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    tokenizer = AutoTokenizer.from_pretrained(kit.tokenizer(tmp_path / "tiny"))
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **size))
    for rows in made(40).values():
        args = SFTConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", max_length=None)
        trainer = SFTTrainer(model, args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
        found = list(trainer.train_dataset.select_columns(["input_ids", "labels"]))
        assert found == prepared(tokenizer, rows)
        assert len(found) == 40


# Preference pairs


def prepared_pairs(tokenizer: Any, rows: list[Row]) -> list[Row]:
    """What DPOTrainer makes of pairs."""
    from trl import DPOConfig, DPOTrainer

    config = DPOConfig(output_dir="unused", max_length=None, report_to="none", use_cpu=True, bf16=False)
    trainer = SimpleNamespace(_tokenizer=tokenizer)
    with unnamed():
        found = DPOTrainer._prepare_dataset(trainer, Dataset.from_list(rows), tokenizer, config, "train")
    return [{name: row[name] for name in PARTS} for row in found]


def check_pairs(folder: Path, rows: list[Row], work: Path) -> float:
    """Hold the pairs that packtrain writes against TRL's; returns in how many the prompt's tokens begin both."""
    source = {"name": "pairs", "format": "preference", "path": "pairs.jsonl"}
    kit.write(work / "pairs.jsonl", rows)
    # Two of the real templates write nothing of tools.
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = kit.configure(
        work, source, tokenizer={"path": str(folder), "allow_lost": ["tools"]}, truncate={"max_length": 1 << 20},
        pack={"strategy": "none", "shuffle": False},
    )  # fmt: skip
    same = 0
    ours = kit.packed(config).rows()
    for row, mine, their in zip(rows, ours, prepared_pairs(tokenizer, rows), strict=True):
        for name in PARTS[1:]:
            assert mine["prompt_ids"] + mine[name] == their["prompt_ids"] + their[name]
        assert len(mine["prompt_ids"]) >= len(their["prompt_ids"])
        if isinstance(row["prompt"], str):
            alone = tokenizer(row["prompt"]).input_ids
        else:
            tools = json.loads(row["tools"]) if row.get("tools") else None
            alone = tokenizer.apply_chat_template(
                row["prompt"], tools=tools, add_generation_prompt=True, return_dict=False
            )
        if all((their["prompt_ids"] + their[name])[: len(alone)] == alone for name in PARTS[1:]):
            assert {name: mine[name] for name in PARTS} == their
            same += 1
    return same / len(rows)


def test_pairs(tmp_path: Path) -> None:
    texts = [row | {"prompt": row["prompt"] + "\n"} for row in kit.corpus("choices", 40)]
    texts.append({"prompt": "behind t", "chosen": "he last", "rejected": "he houses<|im_end|>"})
    chats = [
        {name: [said("user" if name == "prompt" else "assistant", text)] for name, text in row.items()} for row in texts
    ]
    folder = kit.tokenizer(tmp_path / "tiny")
    (tmp_path / "texts").mkdir()
    assert check_pairs(folder, texts, tmp_path / "texts") > 0.9
    assert check_pairs(folder, chats, tmp_path / "chats") == 1
