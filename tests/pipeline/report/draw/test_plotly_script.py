"""plotly's script, made ready for a page."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from packtrain.pipeline.report.draw import plotly_script as script
from packtrain.pipeline.report.draw.plotly_script import made_ready, plotly_script
from packtrain.schemas.errors import PacktrainError

HEAD = '/* MIT */\n(\n function(root, factory) {\n} (typeof self !== "undefined" ? self : this, () => {\n'
OPEN = '"use strict";var Plotly=(()=>{'
TAIL = "return r();})();\nwindow.Plotly = Plotly;\nreturn Plotly;\n}));"
MODULES = (
    'var B$=W((e,t)=>{"use strict";t.exports={moduleType:"trace",name:"bar",y:1}});'
    'var Sk=W((e,t)=>{t.exports={moduleType:"trace",name:"sankey",a:(x)=>x}});'
    'var Mp=W((e,t)=>{t.exports={moduleType:"trace",name:"map"}});'
    "var b=W((e,t)=>{t.exports=B$()}),s=W((e,t)=>{t.exports=Sk()});var q=W(()=>{});"
)
LAST = "var r=W((e,t)=>{R.register([b(),s(),Mp()]);t.exports=R});"
SMALL = HEAD + OPEN + MODULES + LAST + TAIL


def test_only_our_traces_are_registered_and_nothing_is_read_twice() -> None:
    assert made_ready(SMALL) == (
        HEAD.replace("() => {", "(function () {")
        + '"use strict";var Plotly=(function(){'
        + 'var B$=W(function(e,t){"use strict";t.exports={moduleType:"trace",name:"bar",y:1}});'
        + 'var Sk=W(function(e,t){t.exports={moduleType:"trace",name:"sankey",a:(x)=>x}});'
        + 'var Mp=W(function(e,t){t.exports={moduleType:"trace",name:"map"}});'
        + "var b=W(function(e,t){t.exports=B$()}),s=W(function(e,t){t.exports=Sk()});var q=W(function(){});"
        + "var r=W(function(e,t){R.register([B$(),Sk()]);t.exports=R});"
        + TAIL.replace("}));", "})));")
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "window.Plotly={};",
        SMALL.replace('name:"sankey"', 'name:"flow"'),
        SMALL.replace(".register([b(),s(),Mp()])", ".register(all)"),
        SMALL.replace(LAST, LAST + LAST),
        SMALL.replace("Sk=W(", "Sk=V("),
    ],
)
def test_a_script_of_another_form_is_left_as_it_is(text: str) -> None:
    assert made_ready(text) == text


def test_brackets_are_set_in_pairs_or_not_at_all() -> None:
    for broken in (
        SMALL.replace("return Plotly;", "return (Plotly);"),
        SMALL.replace(OPEN, OPEN.replace("var", "let")),
    ):
        ready = made_ready(broken)
        assert ready != broken
        assert ready.count("(") - ready.count(")") == broken.count("(") - broken.count(")")
        assert "(function () {" not in ready


def test_of_the_installed_script_all_but_what_is_registered_is_kept() -> None:
    """Whatever version is installed has the form that is known: else pages open in three times the time."""
    found = find_spec("plotly")
    assert found is not None
    assert found.submodule_search_locations
    path = Path(next(iter(found.submodule_search_locations)), "package_data", "plotly.min.js")
    before, ready = path.read_text(encoding="utf-8"), plotly_script()
    (registered,) = re.findall(r"\.register\(\[([\w$(),]+)\]\)", ready)
    assert registered.count("()") == len(script.TRACES)
    assert ready.count(" : this, (function () {") == 1
    assert ready.endswith("return Plotly;\n})));")
    (helper,) = {helper for _, helper in filter(None, (script._module(before, name) for name in script.TRACES))}
    arrows = re.escape(helper) + r"\(\([\w$,]*\)=>\{"
    assert len(re.findall(arrows, before)) > 500
    assert not re.findall(f"={arrows}", ready)
    undone = re.sub(rf"={re.escape(helper)}\(function\(([\w$,]*)\)\{{", rf"={helper}((\1)=>{{", ready)
    undone = undone.replace(" : this, (function () {", " : this, () => {", 1).replace("=(function(){", "=(()=>{", 1)
    undone = undone.removesuffix(")));") + "));"
    at = undone.index(registered)
    assert before.startswith(undone[:at])
    assert before.rstrip().endswith(undone[at + len(registered) :])


def test_without_the_package_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "find_spec", lambda name: None)
    with pytest.raises(PacktrainError, match="pip install"):
        plotly_script.__wrapped__()
