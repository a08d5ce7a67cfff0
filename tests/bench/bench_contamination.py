"""How fast training data is compared with 10,000 evaluation rows, in megabytes of text a second.

    PACKTRAIN_REALDATA=folder python -m tests.bench.bench_contamination [--mb 200] [--rounds 3]

Prints a Markdown table. The training data is real chats and documents, repeated with a number in each row, so that no
two blocks are equal; the evaluation rows are GSM8K's and LeetCode's questions and answers. Compared are whole runs of
the command (`wc -w` counts the bytes of the same file), and sets of tuples of 13 words in Python, on part of the text.
"""

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from tests.bench.corpus import PROGRAM, print_header, print_table, realdata, run_counted

NGRAM = 13
ROWS = 10_000
SAMPLE = 8_000_000
"""Characters for what is too slow for all of them."""


def write_training(real: Path, target: Path, size: int) -> Iterator[str]:
    """Write chats of several turns and documents, as messages, and give their contents."""
    sources = ["chat/oasst_en100_paths.jsonl", "chat/sgd_dev.jsonl", "longdoc/qmsum_meeting_qa.jsonl"]
    rows = [json.loads(line)["messages"] for source in sources for line in (real / source).open()]
    peps = [json.loads(line)["text"] for line in (real / "longdoc/peps.jsonl").open()]
    rows += [[{"role": "user", "content": "Write a PEP."}, {"role": "assistant", "content": text}] for text in peps]
    written = number = 0
    with target.open("w") as file:
        while written < size:
            turns = [
                {"role": one["role"], "content": one.get("content") or "."}
                for one in rows[number % len(rows)]
                if one["role"] in ("user", "assistant")
            ]
            number += 1
            turns[0]["content"] = f"{number}: {turns[0]['content']}"
            written += file.write(json.dumps({"messages": turns}, ensure_ascii=False) + "\n")
            yield from (turn["content"] for turn in turns)


def write_evaluation(real: Path, target: Path) -> list[str]:
    """Write ROWS rows with a question and an answer, and give the questions."""
    turns = [json.loads(line)["messages"] for line in (real / "chat/gsm8k_train.jsonl").open()]
    rows = [{"question": one[0]["content"], "answer": one[1]["content"]} for one in turns]
    problems = [json.loads(line) for line in (real / "apps/leetcode_apps_schema.jsonl").open()]
    rows += [{"question": one["question"], "solutions": one["solutions"]} for one in problems]
    assert len(rows) >= ROWS
    target.write_text("".join(json.dumps(row) + "\n" for row in rows[:ROWS]))
    return [row["question"] for row in rows[:ROWS]]


def grams(text: str) -> set[tuple[str, ...]]:
    """The n-grams of a text, as most decontamination scripts make them."""
    words = re.sub(r"[^\w\s]", " ", text.lower()).split()
    return {tuple(words[at : at + NGRAM]) for at in range(len(words) - NGRAM + 1)}


def in_tuples(texts: list[str], held: set[tuple[str, ...]]) -> float:
    """Seconds in which texts are looked through for n-grams of the evaluation rows."""
    began, left = time.perf_counter(), SAMPLE
    for text in texts:
        held.isdisjoint(grams(text))
        left -= len(text)
        if left < 0:
            break
    return time.perf_counter() - began


def main() -> None:
    """Runs the benchmark: everything in turns, so that a busy moment strikes all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="packtrain-bench-") as name:
        folder = Path(name)
        train, test, config = folder / "train.jsonl", folder / "test.jsonl", folder / "config.json"
        texts = list(write_training(realdata(), train, asked.mb * 10**6))
        held = {gram for text in write_evaluation(realdata(), test) for gram in grams(text)}
        sizes = {name: sum(map(len, texts)) / 1e6 for name in ("two workers", "one worker")}
        sizes |= {"`wc -w`": train.stat().st_size / 1e6, "tuples": min(SAMPLE / 1e6, sizes["one worker"])}
        seconds: dict[str, list[float]] = {name: [] for name in sizes}
        for number in range(asked.rounds):
            for workers, label in ((2, "two workers"), (1, "one worker")):
                source = {"name": "a", "format": "messages", "path": str(train)}
                tokenizer = {"path": str(files("packtrain.pipeline.demo") / "tokenizer")}
                keys = {"out": str(folder / "out"), "cache": str(folder / f"cache-{number}-{workers}")}
                run = {"sources": [source], "tokenizer": tokenizer, "run": {"workers": workers}, **keys}
                config.write_text(json.dumps(run))
                command = [PROGRAM, "contamination", config, "--against", test]
                seconds[label].append(run_counted(command, folder / "log.txt").wall)
            seconds["`wc -w`"].append(run_counted(["wc", "-w", train], folder / "log.txt").wall)
            seconds["tuples"].append(in_tuples(texts, held))
    print_header(f"{ROWS:,} evaluation rows, {len(held):,} n-grams", ("packtrain",))
    rows = [[name, f"{size / statistics.median(seconds[name]):,.0f}"] for name, size in sizes.items()]
    print_table(["what", "MB/s"], rows)


if __name__ == "__main__":
    main()
