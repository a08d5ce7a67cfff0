"""Templates that can build lists without an end are known by their source."""

import os
from pathlib import Path

import pytest
from packtrain.stages.template.nested_values import nests_values

REAL = os.environ.get("PACKTRAIN_REALDATA")


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns.x = [ns.x, ns.x] %}",
        "{% set ns.x = [ns.x] * 2 %}",
        "{% set x = (x, 1) %}",
        "{% set x = {'a': x} %}",
        "{% set x = [[1, [x]]] %}",
        "{% set x = dict(a=x, b=x) %}",
        "{% macro f() %}{% set ns.x = varargs %}{% endmacro %}",
        "{% set x = x | batch(2) | list %}",
        "{{ [1, x | length] == [2, 3] }}",
    ],
)
def test_it_nests(source: str) -> None:
    assert nests_values(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content }}",
        "{% set a, b = 1, 2 %}{% for key, value in tools[0] | items %}{{ key }}{% endfor %}",
        "{% if role in ['user', 'tool'] and x == {'a': [1, 2]} %}{% endif %}",
        "{% generation %}{{ messages[::-1] | tojson }}{% endgeneration %}",
        "{% set ns = namespace(found=false, last=messages | length - 1) %}",
    ],
)
def test_it_does_not(source: str) -> None:
    assert not nests_values(source)


@pytest.mark.skipif(not REAL, reason="PACKTRAIN_REALDATA is not set")
def test_public_templates_keep_to_the_quick_way() -> None:
    templates = sorted(Path(REAL or "").glob("tokenizers/*/chat_template.jinja"))
    assert templates
    assert not any(nests_values(path.read_text()) for path in templates)
