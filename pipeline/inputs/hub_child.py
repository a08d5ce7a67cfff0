"""The child process of `hub.py`: loads a dataset with the `datasets` library, and returns its files.

It imports nothing of packtrain. Its argument is a JSON object; it prints one line of JSON: `files` of the split, or
`splits` to choose from, or `error`.
"""

import json
import sys
from typing import Any


def load(question: dict[str, Any]) -> dict[str, Any]:
    """The answer to a question; see `hub.load`."""
    loaded = _loaded(question)
    splits = [str(name) for name in loaded]
    split = question["split"] or (splits[0] if len(splits) == 1 else None)
    if split not in splits:
        return {"splits": splits}
    return {"files": [file["filename"] for file in loaded[split].cache_files], "rows": len(loaded[split])}


def _loaded(question: dict[str, Any]) -> Any:
    """The splits. A JSON file is read as it is: by default the library makes other rows of what looks like an agent's
    trace."""
    import datasets

    name, subset = question["name"], question["subset"]
    options = {"revision": question["revision"], "cache_dir": question["cache"]}
    try:
        return datasets.load_dataset(name, subset, **options, parse_agent_traces=False)
    except ValueError as error:  # the files are not JSON, or the cache has only such without this option
        if "'parse_agent_traces' key" not in str(error) and "find cache" not in str(error):
            raise
    return datasets.load_dataset(name, subset, **options)


if __name__ == "__main__":
    try:
        print(json.dumps(load(json.loads(sys.argv[1]))))
    except Exception as error:  # the parent reports any error of the library
        print(json.dumps({"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]}))
        sys.exit(1)
