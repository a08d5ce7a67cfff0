"""The child process of `hub.py`: loads a dataset with the `datasets` library, and returns its files.

It imports nothing of packtrain. Its argument is a JSON object; it prints one line of JSON: `files` of the split, or
`splits` to choose from, or `error`.
"""

import json
import sys
from typing import Any


def load(question: dict[str, Any]) -> dict[str, Any]:
    """The answer to a question; see `hub.load`."""
    import datasets

    loaded = datasets.load_dataset(
        question["name"], question["subset"], revision=question["revision"], cache_dir=question["cache"]
    )
    splits = [str(name) for name in loaded]
    split = question["split"] or (splits[0] if len(splits) == 1 else None)
    if split not in splits:
        return {"splits": splits}
    return {"files": [file["filename"] for file in loaded[split].cache_files], "rows": len(loaded[split])}


if __name__ == "__main__":
    try:
        print(json.dumps(load(json.loads(sys.argv[1]))))
    except Exception as error:  # the parent reports any error of the library
        print(json.dumps({"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]}))
        sys.exit(1)
