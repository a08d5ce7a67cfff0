"""Command lines that stand below the help of each command. A test runs them as they are."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": (
        "packtrain run --demo",
        "packtrain run mix.yaml --dry-run",
        "packtrain run mix.yaml --out packed-2k --set truncate.max_length=2048",
        "packtrain run --format messages --input chats.jsonl --tokenizer tokenizer --out packed-chats",
    ),
    "plan": ("packtrain plan mix.yaml", "packtrain plan mix.yaml --rows 20000"),
    "prep": (
        "packtrain prep mix.yaml --source pairs -o pairs-prepared.jsonl",
        "packtrain prep --format messages --input chats.jsonl -o chats-prepared.parquet",
    ),
    "wait": ("packtrain wait packed --timeout 2h",),
    "report": ("packtrain report packed",),
    "diff": ("packtrain diff packed packed-2k",),
    "inspect": ("packtrain inspect packed --row 3", "packtrain inspect packed --id chats/chats:17"),
    "loader": (
        "packtrain loader packed --steps 5",
        "packtrain loader packed --rows-per-step 16 --world-size 8 --rank 3 --steps 1 --explain",
    ),
    "verify": ("packtrain verify packed", "packtrain verify packed --deep"),
    "repair": ("packtrain repair packed", "packtrain repair packed --config mix.yaml"),
    "clean": ("packtrain clean mix.yaml", "packtrain clean mix.yaml --older-than 30d --yes"),
    "train": (
        "packtrain train --demo",
        "packtrain train train.yaml --set trainer.max_steps=100 --dry-run",
        "torchrun --nproc-per-node 8 -m packtrain.pipeline.cli train train.yaml",
    ),
    "probe": ("packtrain probe path/to/model", "packtrain probe path/to/model --tiny --attention eager --json"),
    "doctor": ("packtrain doctor", "torchrun --nproc-per-node 8 -m packtrain.pipeline.cli doctor --ranks"),
    "launch": ("packtrain launch", "packtrain launch fsdp2 -o fsdp2.yaml"),
    "schema": ("packtrain schema > packtrain.schema.json",),
}
"""Command → its examples."""


def epilog(command: str) -> str | None:
    """What stands below a command's help; None where there is nothing."""
    lines = EXAMPLES.get(command)
    if not lines:
        return None
    # \b keeps click from wrapping the paragraph.
    return "\n".join(["\b", "Examples:" if len(lines) > 1 else "Example:", *(f"  {one}" for one in lines)])
