"""Texts that are made side by side, printed one after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

Place = tuple[int, int]  # (prompt, sample)


class OrderedText:
    """Writes each text whole, by prompt and sample: the first unfinished one live, later ones when it is done.

    With ``live=False`` a text is written only when it is finished. Where there are several, each gets a heading.
    """

    def __init__(self, prompts: int, samples: int, write: Callable[[str], None], *, live: bool) -> None:
        self._samples = samples
        self._count = prompts * samples
        self._write = write
        self._live = live
        self._current = 0
        self._held: defaultdict[Place, list[str]] = defaultdict(list)
        self._finished: set[Place] = set()
        self._headed = False

    def add(self, place: Place, text: str, *, finished: bool) -> None:
        """A further piece of the text at ``place``; ``finished`` when it is the last."""
        self._held[place].append(text)
        if finished:
            self._finished.add(place)
        while self._current < self._count:
            current = divmod(self._current, self._samples)
            if self._live or current in self._finished:
                self._flush(current)
            if current not in self._finished:
                return
            self._write("\n")
            self._current += 1
            self._headed = False

    def _flush(self, place: Place) -> None:
        if self._count > 1 and not self._headed:
            self._headed = True
            self._write(f"--- prompt {place[0] + 1}, sample {place[1] + 1}\n")
        text = "".join(self._held.pop(place, []))
        if text:
            self._write(text)
