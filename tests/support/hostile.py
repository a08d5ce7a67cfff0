"""Contents as somebody could send them who means harm, and what must not come of them."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packtrain.pipeline.store.sealed_notes import seal, unseal
from packtrain.schemas.fingerprint import fingerprint

SECRET = "nobody but me reads this"
EVIL = "\x1b]0;owned\x07\x1b[2J\u202eevil\x9b31m[red]:smile:[/red]\u2066x\u2069"
"""For terminals: a title, a cleared screen, reversed text, a colour; and markup of rich, which is to be shown."""
MARKUP = (
    "</script><script>window.__pwned=1</script><img src=x onerror='__pwned=1'>--> ]]> {{7*7}} [a](http://evil.example)"
)
"""For pages and cards."""
ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff\U000e0001]")
"""Characters that control a terminal, or reorder or hide text."""
COLOURS = re.compile("\x1b\\[[0-9;]*m")
"""What a console may write itself, in a terminal."""


def ran(folder: Path) -> str:
    """Python whose only effect is that the file `ran` appears in a folder."""
    return f"open({str(folder / 'ran')!r}, 'a').close()\n"


@contextmanager
def patience(seconds: int = 300) -> Iterator[None]:
    """Ends what waits for ever, as the reader of a pipe without a writer does."""

    def give_up(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Trap:
    """Unpickled, it makes a file appear."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return open, (str(self.folder / "ran"), "a")


def forge(folder: Path, change: Callable[[dict[str, Any]], None], name: str = "manifest.json") -> None:
    """Change a JSON file of a dataset, and give it the hash or the checksum that goes with it."""
    path = folder / name
    data = path.read_bytes()
    content = json.loads(data)
    for key in ("hash", "check"):
        content.pop(key, None)
    names = [one for one in ("", name, path.name, f"{path.parent.name}/{path.name}") if unseal(data, one) is not None]
    change(content)
    if names:
        path.write_bytes(seal(json.dumps(content).encode(), names[0]))
    elif name == "manifest.json":
        path.write_text(json.dumps({"hash": fingerprint(content), **content}))
    else:
        path.write_text(json.dumps(content))


def leaves(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """The places of all values in a JSON value, of containers too."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield from leaves(below, *path, key)


def put(value: Any, path: tuple[Any, ...], new: Any) -> None:
    """Replace what is at a place."""
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new
