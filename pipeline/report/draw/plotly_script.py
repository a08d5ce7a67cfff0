"""Changes plotly's script in three places, so that a browser loads it in a third of the time.

Nothing is removed, but modules that our charts do not use are not started. The changes expect the form that esbuild
gives plotly.js in versions 3.0, 3.1, 3.3, 4.0 and 4.1. A script of another form is used unchanged; the page then opens
more slowly.
"""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ....schemas.errors import PacktrainError

TRACES = ("bar", "sankey")
"""The kinds of traces that our charts use, besides `scatter`, which is always registered."""

_SCRIPT_END = re.compile("</(?i:script)")
_OPENING = re.compile(r'( : this, )\(\) => \{(\s*"use strict";\s*var Plotly=)\(\(\)=>\{')
_CLOSING = re.compile(r"(return Plotly;\s*\})\)\);?\s*\Z")
_REGISTERED = re.compile(r"\.register\(\[([\w$]+\(\)(?:,[\w$]+\(\))*)\]\)")
_MODULE = re.compile(r"([\w$]+)=([\w$]+)\(\(([\w$]+,[\w$]+)\)=>\{")
_MODULE_SPAN = 4000
"""A trace's module starts within this many characters before the trace's name."""
_END = 200
"""The closing brackets are within this many characters of the end."""


@cache
def plotly_script() -> str:
    """Return the plotly.js of the installed package, made faster. The package is not imported, because that takes a
    second.

    Raises:
        PacktrainError: the script was not found, or cannot be embedded in a page.
    """
    found = find_spec("plotly")
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder, "package_data", "plotly.min.js")
        if path.is_file():
            # A browser normalizes line ends before it hashes a script.
            text = path.read_text(encoding="utf-8").replace("\r\n", "\n").replace("\r", "\n")
            if _SCRIPT_END.search(text) or "<!--" in text:
                raise PacktrainError(f"{path} cannot be embedded in a page; install another version of plotly")
            return made_ready(text)
    raise PacktrainError("plotly's script was not found; install plotly>=6: pip install --force-reinstall plotly")


def made_ready(text: str) -> str:
    """Return the script with only `TRACES` registered; unchanged if its form is unknown.

    1. Only these are registered, so modules of the others (maps, 3D, …) never run.
    2. The two outermost functions are put in brackets. This tells the engine that they are called at once, so it
    compiles them while parsing, instead of parsing five million characters twice.
    3. Modules become functions instead of arrow functions, because engines parse only functions lazily.
    """
    modules = [_module(text, name) for name in TRACES]
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
    """Return (name, function that creates modules) of the module that defines a kind of traces; None if it is not
    found.
    """
    place = text.find(f'moduleType:"trace",name:"{trace}"')
    before = list(_MODULE.finditer(text, max(place - _MODULE_SPAN, 0), max(place, 0)))
    return (before[-1][1], before[-1][2]) if before else None
