"""What each source loses at a length adds up to what the length loses."""

from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.report.choices import at, choice_of, configured, of_sources
from tests.support.examples import examples


@examples(40)
@given(
    st.lists(st.lists(st.integers(1, 3000), min_size=1, max_size=15), min_size=2, max_size=4),
    st.lists(st.floats(0, 0.99), min_size=4, max_size=4),
    st.sampled_from(["truncate", "drop", "split", "error"]),
    st.booleans(),
)
def test_what_sources_lose_is_what_the_point_loses(
    lengths: list[list[int]], prompts: list[float], overlong: str, untrained: bool
) -> None:
    stats, sources = of_sources(**{f"s{n}": (one, prompts[n]) for n, one in enumerate(lengths)})
    config = configured(sources=sources, truncate={"max_length": 512, "overlong": overlong}, keep_untrained=untrained)
    choice = choice_of(stats, config, lengths=(64, 512, 2048))
    assert choice.advice is not None
    point = at(choice, "bfd", 512)
    for name in ("documents_cut", "documents_lost", "tokens_lost", "labels_lost"):
        assert sum(getattr(one, name) for one in choice.sources) == getattr(point, name), name
