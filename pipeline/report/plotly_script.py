"""plotly's script, changed in three places so that a browser is through with it in a third of the time.

Nothing is taken out: what our charts do not use is only not started. The changes fit the form that esbuild gives
plotly.js: seen in 3.0, 3.1, 3.3, 4.0 and 4.1. Another form is left as it is: the page is the same, and opens later.
"""

import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ...schemas.errors import PacktrainError

TRACES = ("bar", "sankey")
"""Kinds of traces that charts have. `scatter` is always there."""

_OPENING = re.compile(r'( : this, )\(\) => \{(\s*"use strict";\s*var Plotly=)\(\(\)=>\{')
_CLOSING = re.compile(r"(return Plotly;\s*\})\)\);?\s*\Z")
_REGISTERED = re.compile(r"\.register\(\[([\w$]+\(\)(?:,[\w$]+\(\))*)\]\)")
_MODULE = re.compile(r"([\w$]+)=([\w$]+)\(\(([\w$]+,[\w$]+)\)=>\{")
_MODULE_SPAN = 4000
"""Characters before a trace's name in which its module begins."""
_END = 200
"""Characters in which the closing brackets stand."""


@cache
def plotly_script() -> str:
    """plotly.js as the package brings it, made ready. The package itself is not imported: that takes a second.

    Raises:
        PacktrainError: the script is not where its package has it, or cannot stand in a page.
    """
    found = find_spec("plotly")
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder, "package_data", "plotly.min.js")
        if path.is_file():
            # A browser hashes what it has read, in which line ends are single.
            text = path.read_text(encoding="utf-8").replace("\r\n", "\n").replace("\r", "\n")
            if "</script" in text.lower() or "<!--" in text:
                raise PacktrainError(f"{path} cannot stand in a page; install another version of plotly")
            return made_ready(text)
    raise PacktrainError("plotly's script was not found; install plotly>=6: pip install --force-reinstall plotly")


def made_ready(text: str, traces: Sequence[str] = TRACES) -> str:
    """The script with these traces alone; the same text where it is not of the form that is known.

    1. Only `traces` are registered: modules of the others (maps, three dimensions, …) are never run.
    2. The two functions around everything are set in brackets, by which an engine knows that they are called at once,
       and compiles them as it reads. Else it reads five million characters twice.
    3. Modules are functions instead of arrow functions, whose insides an engine does not skip.
    """
    modules = [_module(text, name) for name in traces]
    registered = list(_REGISTERED.finditer(text))
    helpers = {helper for _, helper in filter(None, modules)}
    if None in modules or len(helpers) != 1 or len(registered) != 1:
        return text
    calls = ",".join(f"{name}()" for name, _ in filter(None, modules))
    text = text[: registered[0].start(1)] + calls + text[registered[0].end(1) :]
    opened, openings = _OPENING.subn(r"\1(function () {\2(function(){", text, count=1)
    closed, closings = _CLOSING.subn(r"\1)));", opened[-_END:], count=1)
    if (openings, closings) == (1, 1):
        text = opened[:-_END] + closed
    helper = helpers.pop()
    return re.sub(rf"={re.escape(helper)}\(\(([\w$,]*)\)=>\{{", rf"={helper}(function(\1){{", text)


def _module(text: str, trace: str) -> tuple[str, str] | None:
    """(name, function that makes modules) of the module that defines a kind of traces."""
    place = text.find(f'moduleType:"trace",name:"{trace}"')
    before = list(_MODULE.finditer(text, max(place - _MODULE_SPAN, 0), max(place, 0)))
    return (before[-1][1], before[-1][2]) if before else None
