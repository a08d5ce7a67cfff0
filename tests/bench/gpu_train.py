"""What packing buys on a GPU: a Llama of 1.1 billion parameters on documents as long as APPS's.

    python tests/bench/gpu_train.py [--out FILE] [--seconds 20] [--limit 450] [--only NAME ...]
    python tests/bench/gpu_train.py --toy          # the same path on a CPU, a tiny model, under a minute

One command of under eight minutes (`--limit`): variants that do not fit any more are named and left out. Needs torch,
transformers, numpy and pyarrow, and no network; packtrain is taken from the folder that this script lies in. The
trainers want accelerate and pydantic as well, TRL's also trl and datasets; where one is missing its line says so. The
table comes last; the numbers go to --out, else to $OUT/gpu_train.json.

A step is one forward, backward and AdamW step over `--rows` packed rows of 8,192 tokens, weights and optimizer state in
bf16, no checkpointing. A padded or padding-free step has as many documents as a packed one, so a step learns from as
much: it is what the same batch size in documents costs in each form. Padding is on the right; attention is SDPA with a
mask, as transformers pads. `padded by length` is transformers' group_by_length: sorted within 50 batches.

tokens/s counts real tokens, never padding. Utilisation is their model FLOPs (6 for each weight of a matrix and token,
attention from the sum of squared lengths; forward and backward) by the device's dense peak in bf16. `wait` is the
share of the time that the loop spent in the loader's next(). Variants run one after another in one process, each with
a model of its own from the same seed; warming up is not counted.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import torch
import transformers

try:
    import packtrain
except ImportError:  # not installed: the repository is the package
    sys.path.insert(0, str(Path(__file__).parents[2] / ".types"))
    import packtrain

if TYPE_CHECKING:
    from tests.bench.gpu_data import write_dataset
    from tests.bench.gpu_measure import Bench, Measured, Variant
else:
    sys.path.insert(0, str(Path(__file__).parent))
    from gpu_data import write_dataset
    from gpu_measure import Bench, Measured, Variant

VARIANTS = (
    Variant("padded, random order", "padded", "sdpa"),
    Variant("padded, by length", "padded by length", "sdpa"),
    Variant("padding-free, varlen", "padding-free", "packed_varlen"),
    Variant("packed, varlen", "packed", "packed_varlen"),
    Variant("packed, SDPA with a mask", "packed", "sdpa"),
    Variant("packed, varlen, chunked loss", "packed", "packed_varlen", loss="chunked"),
    Variant("packed, varlen, compiled", "packed", "packed_varlen", compile=True),
    Variant("packed, varlen, compiled, chunked loss", "packed", "packed_varlen", loss="chunked", compile=True),
    Variant("packed, varlen, Liger's loss", "packed", "packed_varlen", loss="liger"),
    Variant("packed, varlen, checkpointing", "packed", "packed_varlen", checkpointing=True),
    Variant("PackedTrainer", "packed", "packed_varlen", trainer="packtrain"),
    Variant("PackedTrainer, chunked loss", "packed", "packed_varlen", loss="chunked", trainer="packtrain"),
    Variant("TRL's SFTTrainer", "packed", "packed_varlen", trainer="trl"),
)
FIRST = VARIANTS[0].name
"""What the others are compared with."""

BILLION = {
    "vocab_size": 32_768,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
TOY = BILLION | {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def main(arguments: list[str] | None = None) -> int:
    """Run; 0 if something was measured."""
    options = parser().parse_args(arguments)
    began = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() and not options.toy else "cpu")
    if device.type == "cpu" and not options.toy:
        print("no CUDA device: only --toy runs here", file=sys.stderr)
        return 2
    if options.toy:
        torch.set_num_threads(1)
    chosen = [one for one in VARIANTS if not options.only or any(word in one.name for word in options.only)]
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "packed"
        length, scale, count = (512, 1 / 16, 600) if options.toy else (8192, 1.0, 20_000)
        model = TOY if options.toy else BILLION
        manifest = write_dataset(
            folder, documents=count, max_length=length, vocabulary=model["vocab_size"], scale=scale
        )
        split = manifest.splits["train"]
        bench = Bench(
            folder=folder,
            model=model,
            rows=options.rows,
            device=device,
            dtype=torch.float32 if options.toy else torch.bfloat16,
            seconds=0.3 if options.toy else options.seconds,
            warmup=2 if options.toy else 4,
            backend="aot_eager" if options.toy else "inductor",
        )
        results: list[Measured] = []
        longest = 0.0
        for number, variant in enumerate(chosen):
            spent = time.monotonic() - began
            # What has not run yet may need as long as the slowest so far, and half as long again.
            if number and spent + 1.5 * longest > options.limit:
                results.append(Measured(variant.name, failed=f"left out: {spent:.0f} of {options.limit} s are spent"))
                continue
            print(f"{variant.name} …", file=sys.stderr, flush=True)
            result = bench.run(variant)
            longest = max(longest, time.monotonic() - began - spent)
            results.append(result)
            _keep(options.out, about(bench, split), results, bench.peak)  # a command that is cut short leaves these
        print_report(about(bench, split), [one.to_json(bench.peak) for one in results])
    return 0 if any(one.steps for one in results) else 1


def about(bench: Bench, split: Any) -> dict[str, Any]:
    """What was measured on what."""
    cuda = bench.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if cuda else f"CPU, {platform.machine()}",
        "peak_flops": bench.peak,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "packtrain": packtrain.__version__,
        "numpy": np.__version__,
        "pyarrow": pyarrow.__version__,
        "model": bench.model,
        "dtype": str(bench.dtype).removeprefix("torch."),
        "rows_per_step": bench.rows,
        "rows": split.rows,
        "tokens": split.tokens,
        "trained": split.trained,
        "fill": split.windows[0].fill,
        "compile_backend": bench.backend,
        "seconds_each": bench.seconds,
    }


def print_report(facts: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Print the Markdown table, at the end."""
    print(
        f"\n{facts['device']}, torch {facts['torch']}, transformers {facts['transformers']}, {facts['dtype']}; "
        f"{facts['rows']:,} packed rows, {facts['tokens']:,} tokens, fill {facts['fill']:.2%}, "
        f"{facts['rows_per_step']} rows a step\n"
    )
    base = next((one["tokens_per_second"] for one in results if one["name"] == FIRST), 0.0)
    print("| | tokens/s | to the first | trained/s | utilisation | fill | peak GiB | wait | kernel |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---|")
    for one in results:
        if one["failed"]:
            print(f"| {one['name']} | {one['failed']} | | | | | | | |")
            continue
        times = f"{one['tokens_per_second'] / base:.2f}" if base else ""
        used = f"{one['utilisation']:.1%}" if one["utilisation"] is not None else "unknown"
        memory = f"{one['peak_bytes'] / 2**30:.1f}" if one["peak_bytes"] else ""
        wait = f"{one['wait']:.2%}" if one["wait"] else ""
        print(
            f"| {one['name']} | {one['tokens_per_second']:,.0f} | {times} | {one['trained_per_second']:,.0f} | {used} "
            f"| {one['fill']:.1%} | {memory} | {wait} | {one['kernel']} |"
        )


def _keep(out: Path | None, facts: dict[str, Any], results: list[Measured], peak: float | None) -> None:
    target = out or Path(os.environ.get("OUT") or ".") / "gpu_train.json"
    target.write_text(json.dumps({"about": facts, "results": [one.to_json(peak) for one in results]}, indent=2))


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(description="What packing buys on a GPU.")
    made.add_argument("--toy", action="store_true", help="a tiny model on the CPU")
    made.add_argument("--rows", type=int, default=2, help="packed rows a step")
    made.add_argument("--seconds", type=float, default=20.0, help="measured for each variant")
    made.add_argument("--limit", type=float, default=450.0, help="seconds in all, after which no variant begins")
    made.add_argument("--only", nargs="*", help="variants whose name holds one of these")
    made.add_argument("--out", type=Path, help="the file for the numbers")
    return made


if __name__ == "__main__":
    sys.exit(main())
