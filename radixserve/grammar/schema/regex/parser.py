r"""Regular expressions of ECMA-262, read into trees.

What is read: literals, ``.``, classes, escapes, groups, alternation, quantifiers, ``^`` and ``$``, ``\p{..}`` of general categories, and
lookaheads at the very start. What no finite automaton does (backreferences) or what is not done here (other
assertions) raises `UnsupportedPattern`. Lazy quantifiers match the same strings as greedy ones. Beyond the standard, what `text` writes is
read back: ``(?s:.)`` and ``\U`` with eight digits.
"""

from __future__ import annotations

from radixserve.grammar.schema.regex.tree import (
    ANY,
    DIGITS,
    LINE_ENDS,
    SPACE,
    WORD,
    Chars,
    Concat,
    Edge,
    Either,
    Lookahead,
    Ranges,
    Regex,
    Repeat,
    UnsupportedPattern,
    complement,
    general_category,
    union,
)

MAX_REPEAT = 100_000
_MAX_NESTING = 60


def parse(pattern: str) -> Regex:
    """The tree of ``pattern``; raises `UnsupportedPattern`."""
    parser = _Parser(pattern)
    tree = parser.alternatives(0)
    if parser.at < len(pattern):
        raise UnsupportedPattern(f"unbalanced {pattern[parser.at]!r}")
    return tree


_CATEGORIES = frozenset(
    {
        "L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf",
        "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp",
    }
)  # fmt: skip
_LONG = {
    "Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Mark": "M", "Number": "N",
    "Decimal_Number": "Nd", "digit": "Nd", "Punctuation": "P", "punct": "P", "Symbol": "S", "Separator": "Z",
}  # fmt: skip
_CONTROL = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B, "0": 0}
_SETS = {"d": DIGITS, "w": WORD, "s": SPACE}


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def alternatives(self, depth: int) -> Regex:
        if depth > _MAX_NESTING:
            raise UnsupportedPattern("groups nested too deep")
        parts: list[Regex] = [self.sequence(depth)]
        while self.take("|"):
            parts.append(self.sequence(depth))
        # Single characters are one class, as they are to the engine.
        classes = [part for part in parts if isinstance(part, Chars)]
        if len(classes) > 1:
            merged = Chars(union(*(part.ranges for part in classes)))
            parts = [merged, *(part for part in parts if not isinstance(part, Chars))]
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def sequence(self, depth: int) -> Regex:
        parts: list[Regex] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            parts.append(self.repeated(self.atom(depth)))
        return parts[0] if len(parts) == 1 else Concat(tuple(parts))

    def take(self, token: str) -> bool:
        found = self.text.startswith(token, self.at)
        self.at += len(token) * found
        return found

    def next(self) -> str:
        if self.at >= len(self.text):
            raise UnsupportedPattern("it ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def atom(self, depth: int) -> Regex:
        char = self.next()
        if char == "(":
            return self.group(depth)
        if char == "[":
            return self.char_class()
        if char == ".":
            return Chars(complement(LINE_ENDS))
        if char in "^$":
            return Edge(start=char == "^")
        if char in "*+?":
            raise UnsupportedPattern(f"nothing to repeat before {char!r}")
        if char == "\\":
            return self.escape(in_class=False)
        return Chars(((ord(char), ord(char)),))

    def group(self, depth: int) -> Regex:
        look: bool | None = None
        if self.take("?"):
            if self.take("s:.)"):
                return ANY
            if self.take("=") or self.take("!"):
                look = self.text[self.at - 1] == "="
            elif self.take("<=") or self.take("<!"):
                raise UnsupportedPattern("lookbehind")
            elif self.take("<"):
                while self.next() != ">":
                    pass
            elif not self.take(":"):
                raise UnsupportedPattern("an unknown kind of group")
        inner = self.alternatives(depth + 1)
        if not self.take(")"):
            raise UnsupportedPattern("an unclosed group")
        return inner if look is None else Lookahead(inner, look)

    def repeated(self, atom: Regex) -> Regex:
        low, high = 1, 1
        limit: int | None = 1
        if self.take("*"):
            low, limit = 0, None
        elif self.take("+"):
            low, limit = 1, None
        elif self.take("?"):
            low, limit = 0, 1
        elif (bounds := self.braces()) is not None:
            low, limit = bounds
        else:
            return atom
        if isinstance(atom, (Edge, Lookahead)):
            raise UnsupportedPattern("a repeated assertion")
        self.take("?")
        high = low if limit is None else limit
        if high < low or high > MAX_REPEAT:
            raise UnsupportedPattern(f"a repetition of {low} to {high}")
        if self.at < len(self.text) and self.text[self.at] in "*+?":
            raise UnsupportedPattern("a repeated repetition")
        return Repeat(atom, low, limit)

    def braces(self) -> tuple[int, int | None] | None:
        end = self.text.find("}", self.at)
        if not self.text.startswith("{", self.at) or end < 0:
            return None
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        if not (
            low.isascii() and low.isdigit() and len(low) < 10 and (not high or (high.isascii() and high.isdigit()))
        ):
            return None
        if len(high) >= 10:
            raise UnsupportedPattern(f"a repetition of up to {high[:20]}")
        self.at = end + 1
        return int(low), (int(high) if high else None) if comma else int(low)

    def escape(self, *, in_class: bool) -> Chars:
        char = self.next()
        if char.lower() in _SETS:
            ranges = _SETS[char.lower()]
            return Chars(ranges if char.islower() else complement(ranges))
        if char in "pP":
            return self.category(negated=char == "P")
        if char == "b" and in_class:
            return _one(0x08)
        if char in "bB":
            raise UnsupportedPattern("a word boundary")
        if char in _CONTROL:
            if char == "0" and self.at < len(self.text) and self.text[self.at].isdigit():
                raise UnsupportedPattern("an octal escape")
            return _one(_CONTROL[char])
        if char == "c":
            letter = self.next()
            if not (letter.isascii() and letter.isalpha()):
                raise UnsupportedPattern("an escape \\c without a letter")
            return _one(ord(letter) % 32)
        if char == "x":
            return _one(self.hexadecimal(2))
        if char == "u":
            return _one(self.unicode_escape())
        if char == "U" and (code := self.hexadecimal(8)) <= 0x10FFFF:
            return _one(code)
        if char.isascii() and char.isalnum():
            raise UnsupportedPattern("a backreference" if char.isdigit() or char == "k" else f"the escape \\{char}")
        return _one(ord(char))

    def hexadecimal(self, digits: int) -> int:
        text = self.text[self.at : self.at + digits]
        self.at += digits
        if len(text) < digits or any(char not in "0123456789abcdefABCDEF" for char in text):
            raise UnsupportedPattern("a broken hexadecimal escape")
        return int(text, 16)

    def unicode_escape(self) -> int:
        if self.take("{"):
            end = self.text.find("}", self.at)
            if not 0 < end - self.at <= 6:
                raise UnsupportedPattern("a broken \\u escape")
            code = self.hexadecimal(end - self.at)
            self.at += 1
        else:
            code = self.hexadecimal(4)
            if 0xD800 <= code <= 0xDBFF and self.take("\\u"):
                code = 0x10000 + ((code - 0xD800) << 10) + (self.hexadecimal(4) - 0xDC00)
        if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
            raise UnsupportedPattern("half of a surrogate pair")
        return code

    def category(self, *, negated: bool) -> Chars:
        end = self.text.find("}", self.at)
        if not self.take("{") or end < 0:
            raise UnsupportedPattern("a broken \\p escape")
        name = self.text[self.at : end].removeprefix("General_Category=").removeprefix("gc=")
        self.at = end + 1
        name = _LONG.get(name, name)
        if name not in _CATEGORIES:
            raise UnsupportedPattern(f"the Unicode property {name!r}")
        ranges = general_category(name)
        return Chars(complement(ranges), rf"\P{{{name}}}") if negated else Chars(ranges, rf"\p{{{name}}}")

    def char_class(self) -> Chars:
        negated = self.take("^")
        sets: list[Ranges] = []
        while not self.take("]"):
            low = self.class_member()
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at) and _single(low):
                self.at += 1
                high = self.class_member()
                if not _single(high) or high.ranges[0][0] < low.ranges[0][0]:
                    raise UnsupportedPattern("a broken range in a class")
                sets.append(((low.ranges[0][0], high.ranges[0][0]),))
            else:
                sets.append(low.ranges)
        ranges = complement(complement(union(*sets)))
        return Chars(complement(ranges) if negated else ranges)

    def class_member(self) -> Chars:
        char = self.next()
        return self.escape(in_class=True) if char == "\\" else _one(ord(char))


def _one(code: int) -> Chars:
    return Chars(((code, code),))


def _single(chars: Chars) -> bool:
    return len(chars.ranges) == 1 and chars.ranges[0][0] == chars.ranges[0][1]
