"""Taking the names of special tokens out of text that had to be decoded with them.

Where a family opens calls or reasoning with special tokens, a request must run with ``skip_special_tokens=False``, or
the parser would never see them; the names of all others (ends of turns above all) are then taken out of the text again.
"""

from __future__ import annotations

import re
from collections.abc import Collection


class SpecialNames:
    """Leaves ``names`` out of text that arrives in pieces; of two that begin together the longer one counts."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = sorted(filter(None, set(names)), key=len, reverse=True)
        starts = "".join(sorted({re.escape(name[0]) for name in self._names}))
        self._start = re.compile(f"[{starts}]") if starts else None
        self._held = ""

    def push(self, text: str) -> str:
        """Take the next piece; return what is certain. Only what could become a name is held back."""
        return self._run(text, final=False)

    def finish(self) -> str:
        """Return the rest: no more text comes."""
        return self._run("", final=True)

    def _run(self, text: str, *, final: bool) -> str:
        if self._start is None:
            return text
        text, self._held = self._held + text, ""
        kept: list[str] = []
        done = position = 0
        while (found := self._start.search(text, position)) is not None:
            at = found.start()
            if not final and any(len(name) > len(text) - at and name.startswith(text[at:]) for name in self._names):
                self._held = text[at:]
                text = text[:at]
                break
            name = next((name for name in self._names if text.startswith(name, at)), None)
            if name is None:
                position = at + 1
            else:
                kept.append(text[done:at])
                done = position = at + len(name)
        kept.append(text[done:])
        return "".join(kept)
