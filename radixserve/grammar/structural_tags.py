"""Structural tags as a grammar: free text until a trigger, then one of the tags that it opens.

A trigger that is a special token is that token; one that is text ends the free text as soon as it is written (a lazy
lexeme), so that no text can hold a trigger and go on as if it were none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import llguidance

from radixserve.constraints import Choice, Grammar, JsonObject, JsonSchema, Regex, StructuralTag, Tag, TagContent
from radixserve.errors import InvalidRequest
from radixserve.grammar.content import escape, json_schema, lark_text, regex_text
from radixserve.grammar.schema_helper import SchemaHelper
from radixserve.grammar.special_tokens import Pieces, SpecialTokens

_ANY_TEXT = r"TAG_TEXT: /(.|\n)*/"


def structural_tag_grammar(constraint: StructuralTag, special: SpecialTokens, helper: SchemaHelper) -> str:
    """The grammar in the library's own JSON form. Raises `InvalidRequest` for what cannot be told apart in a stream."""
    return _Writer(constraint, special, helper).grammar()


@dataclass(slots=True)
class _Opener:
    """What opens some of the tags: a token, or a text. ``tags``: their numbers."""

    trigger: str | int
    tags: list[int]


class _Writer:
    def __init__(self, constraint: StructuralTag, special: SpecialTokens, helper: SchemaHelper) -> None:
        self._constraint = constraint
        self._special = special
        self._helper = helper
        self._begins = [self._cut(tag.begin, f"constraint.tags[{at}].begin") for at, tag in enumerate(constraint.tags)]
        self._lines: list[str] = []
        self._nested: list[dict[str, str]] = []

    def grammar(self) -> str:
        """All grammars, the main one first."""
        start = self._required() if self._constraint.required else self._free()
        main = "\n".join(["%llguidance {}", f"start: {start}", *self._lines])
        return json.dumps({"grammars": [{"name": "tags", "lark_grammar": main}, *self._nested]})

    # ---------------------------------------------------------------- shapes

    def _required(self) -> str:
        tags = [self._tag(number, self._begins[number]) for number in range(len(self._constraint.tags))]
        self._lines.append(f"any_tag: {' | '.join(tags)}")
        some = "any_tag"
        if not self._constraint.single:
            separator = self._literals(self._cut(self._constraint.separator, "constraint.separator"))
            most = self._constraint.most
            some = f"any_tag ({separator} any_tag){f'{{0,{most - 1}}}' if most else '*'}"
        if self._constraint.otherwise is None:
            return some
        return f"{some} | {self._otherwise(self._constraint.otherwise)}"

    def _otherwise(self, content: TagContent) -> str:
        if isinstance(content, (Regex, Choice)):
            self._lines.append(f"otherwise: /{llguidance.regex_to_lark(regex_text(content), use_ascii='')}/")
        else:
            self._lines.append(f"otherwise: {self._structured(content, 'otherwise', 'constraint.otherwise')}")
        return "otherwise"

    def _free(self) -> str:
        if self._constraint.separator:
            raise InvalidRequest("constraint.separator", "stands between required tags only")
        openers = self._openers()
        rules = []
        for number, opener in enumerate(openers):
            tails = []
            for tag in opener.tags:
                begin = self._begins[tag]
                rest = begin[1:]
                if isinstance(opener.trigger, str):
                    first = str(begin[0])[len(opener.trigger) :]
                    rest = ((first,) if first else ()) + rest
                tails.append(self._tag(tag, rest))
            if isinstance(opener.trigger, int):
                head = f"TAG_TEXT {_token(opener.trigger)}"
            else:
                self._lines.append(f"trigger_{number}[lazy]: TAG_TEXT {_literal(opener.trigger)}")
                head = f"trigger_{number}"
            self._lines.append(f"opened_{number}: {head} ({' | '.join(tails)})")
            rules.append(f"opened_{number}")
        self._lines += [_ANY_TEXT, f"opened: {' | '.join(rules)}"]
        in_text = sorted(self._special.in_text - {opener.trigger for opener in openers})
        text = f"(TAG_TEXT <[{','.join(map(str, in_text))}]>)" if in_text else ""
        if self._constraint.single:
            return f"{text}{'*' if text else ''} (TAG_TEXT | opened)"
        return f"({text} | opened)* TAG_TEXT" if text else "opened* TAG_TEXT"

    def _openers(self) -> list[_Opener]:
        """The triggers with what each opens, in their order."""
        triggers = [
            (trigger, self._cut(trigger, f"constraint.triggers[{at}]"))
            for at, trigger in enumerate(self._constraint.triggers)
        ]
        texts = [pieces[0] for _, pieces in triggers if pieces and isinstance(pieces[0], str)]
        for trigger, pieces in triggers:
            if not pieces:
                raise InvalidRequest("constraint.triggers", "a trigger must not be empty")
            if isinstance(pieces[0], str):
                if len(pieces) > 1:
                    raise InvalidRequest(
                        "constraint.triggers", f"{trigger!r}: a trigger with a special token begins with it"
                    )
                inside = next((text for text in texts if text in pieces[0] and not pieces[0].startswith(text)), None)
                if inside is not None:
                    raise InvalidRequest(
                        "constraint.triggers", f"{trigger!r} holds the trigger {inside!r}, which would come first"
                    )
        openers: dict[str | int, _Opener] = {}
        used: set[str] = set()
        for number, tag in enumerate(self._constraint.tags):
            fitting = [(trigger, pieces) for trigger, pieces in triggers if tag.begin.startswith(trigger)]
            if not fitting:
                raise InvalidRequest(f"constraint.tags[{number}].begin", f"{tag.begin!r} starts with no trigger")
            used.update(trigger for trigger, _ in fitting)
            # The shortest is complete first.
            first = min(fitting, key=lambda item: len(item[0]))[1][0]
            openers.setdefault(first, _Opener(first, [])).tags.append(number)
        idle = next((trigger for trigger, _ in triggers if trigger not in used), None)
        if idle is not None:
            raise InvalidRequest("constraint.triggers", f"{idle!r} opens no tag")
        return list(openers.values())

    # ---------------------------------------------------------------- parts

    def _tag(self, number: int, begin: Pieces) -> str:
        """The name of a rule for tag ``number`` from ``begin`` on."""
        tag, param = self._constraint.tags[number], f"constraint.tags[{number}]"
        end = self._end(tag, f"{param}.end")
        if isinstance(tag.content, (Regex, Choice)):
            # One regular expression with the texts around it: as lexemes of their own the content could swallow the end.
            before = begin[-1] if begin and isinstance(begin[-1], str) else ""
            after = end[0] if end and isinstance(end[0], str) else ""
            begin, end = begin[: len(begin) - bool(before)], end[bool(after) :]
            pattern = f"{escape(before)}(?:{regex_text(tag.content)}){escape(after)}"
            # With an end the first that follows a match is it; without, the match is as long as can be.
            lazy = "[lazy]" if after else ""
            self._lines.append(f"content_{number}{lazy}: /{llguidance.regex_to_lark(pattern, use_ascii='')}/")
            content = f"content_{number}"
        else:
            content = self._structured(tag.content, f"grammar_{number}", f"{param}.content")
        name = f"tag_{number}"
        self._lines.append(f"{name}: {self._literals(begin)} {content} {self._literals(end)}")
        return name

    def _structured(self, content: JsonSchema | JsonObject | Grammar, name: str, param: str) -> str:
        """A document in place, or the reference to a grammar of its own, which is called ``name``."""
        if isinstance(content, Grammar):
            self._nested.append({"name": name, "lark_grammar": lark_text(content, param)})
            return f"@{name}"
        return f"%json {json.dumps(json_schema(content, param, self._helper))}"

    def _end(self, tag: Tag, param: str) -> Pieces:
        pieces = self._special.cut(tag.end)
        if pieces and pieces[-1] in self._special.eos_ids:
            if not self._constraint.single:
                raise InvalidRequest(
                    param, "ends with the model's end token, after which nothing can follow: use single"
                )
            pieces = pieces[:-1]
        self._refuse_end_tokens(pieces, param)
        return pieces

    def _cut(self, text: str, param: str) -> Pieces:
        pieces = self._special.cut(text)
        self._refuse_end_tokens(pieces, param)
        return pieces

    def _refuse_end_tokens(self, pieces: Pieces, param: str) -> None:
        if any(piece in self._special.eos_ids for piece in pieces):
            raise InvalidRequest(param, "holds the model's end token, which ends the output")

    def _literals(self, pieces: Pieces) -> str:
        return " ".join(_token(piece) if isinstance(piece, int) else _literal(piece) for piece in pieces)


def _token(token: int) -> str:
    return f"<[{token}]>"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
