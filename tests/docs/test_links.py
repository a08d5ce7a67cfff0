"""Links, anchors and pictures of the documentation lead somewhere, and so do paths that are named in passing."""

import re

import pytest

from tests.docs.page import ROOT, names, text_of

PAGES = names()
_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<to>[^()\s]+)(?: \"[^\"]*\")?\)")


def prose(text: str) -> str:
    """A page without its fenced blocks and its code in the text."""
    without = re.sub(r"^( *)(`{3,}|~{3,})[^\n]*\n.*?^\1\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"``.+?``|`[^`\n]+`", "`code`", without)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    plain = re.sub(r"^( *)(`{3,}|~{3,})[^\n]*\n.*?^\1\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)
    out: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", plain, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = sum(1 for one in out if re.fullmatch(re.escape(anchor) + r"(-\d+)?", one))
        out.add(f"{anchor}-{number}" if number and anchor in out else anchor)
    return out


def wrong(name: str, text: str) -> list[str]:
    """The errors of a page's links."""
    out = []
    here = (ROOT / name).parent
    for link in _LINK.finditer(prose(text)):
        to = link["to"]
        if link["picture"] and len(link["text"].strip()) < 10:
            out.append(f"the picture {to} has no words in its place")
        if re.match(r"[a-z][a-z0-9+.-]*:", to):
            if not to.startswith("https://"):
                out.append(f"{to}: only https")
            continue
        path, _, anchor = to.partition("#")
        target = (here / path).resolve() if path else ROOT / name
        if path.startswith("/") or not target.is_relative_to(ROOT.resolve()):
            out.append(f"{to} leads out of the repository")
        elif not target.exists():
            out.append(f"{to} is not there")
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8") if path else text):
            out.append(f"{to}: no such heading")
    return out


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    assert wrong(name, text_of(name)) == []


@pytest.mark.parametrize("name", PAGES)
def test_files_that_are_named_are_there(name: str) -> None:
    text = text_of(name)
    folders = "tests|schemas|stages|pipeline|training|docs"
    named = set(re.findall(rf"(?<![\w/.-])(?<!no `)((?:{folders})/[\w/.-]+\.(?:py|md|svg))", text))
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []
    bare = set(re.findall(r"`(\w+\.py)`", text)) if name in ("docs/architecture.md", "docs/internals.md") else set()
    assert bare <= {path.name for folder in folders.split("|") for path in (ROOT / folder).rglob("*.py")}


@pytest.mark.parametrize("name", PAGES)
def test_no_path_of_a_machine(name: str) -> None:
    assert re.findall(r"(?<![\w/.])/(?:root|tmp|work|home|Users)/[\w./-]*", text_of(name)) == []


def test_pages_are_found_from_the_readme() -> None:
    """Every page is linked from another one that is found."""
    found, ahead = set(), ["README.md"]
    while ahead:
        name = ahead.pop()
        if name in found or not name.endswith(".md"):
            continue
        found.add(name)
        here = (ROOT / name).parent
        for link in _LINK.finditer(prose(text_of(name))):
            target = (here / link["to"].partition("#")[0]).resolve()
            if target.is_file() and target.is_relative_to(ROOT.resolve()):
                ahead.append(target.relative_to(ROOT.resolve()).as_posix())
    assert found == set(PAGES)
