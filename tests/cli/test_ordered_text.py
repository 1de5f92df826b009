from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.cli.ordered_text import OrderedText


@settings(deadline=None)
@given(data=st.data(), prompts=st.integers(1, 3), samples=st.integers(1, 2), live=st.booleans())
def test_any_interleaving_gives_the_same_text(data: st.DataObject, prompts: int, samples: int, live: bool) -> None:
    places = [(p, s) for p in range(prompts) for s in range(samples)]
    pieces = {place: data.draw(st.lists(st.text("ab", max_size=2), max_size=3)) for place in places}
    written: list[str] = []
    text = OrderedText(prompts, samples, written.append, live=live)
    left = {place: [*pieces[place], ""] for place in places}
    while left:
        place = data.draw(st.sampled_from(sorted(left)))
        piece = left[place].pop(0)
        finished = not left[place]
        if finished:
            del left[place]
        text.add(place, piece, finished=finished)
    headed = len(places) > 1
    expected = "".join(
        (f"--- prompt {p + 1}, sample {s + 1}\n" if headed else "") + "".join(pieces[p, s]) + "\n" for p, s in places
    )
    assert "".join(written) == expected


def test_live_text_is_not_held_back() -> None:
    written: list[str] = []
    text = OrderedText(2, 1, written.append, live=True)
    text.add((1, 0), "later", finished=False)
    text.add((0, 0), "now", finished=False)
    assert written == ["--- prompt 1, sample 1\n", "now"]
    text.add((0, 0), "", finished=True)
    assert written[2:] == ["\n", "--- prompt 2, sample 1\n", "later"]
