"""Text of an exact number of tokens: words that a tokenizer takes as one token each, strung together by a seeded choice."""

from __future__ import annotations

import random
from typing import Protocol

_WORDS = (
    "about above across action after again air all almost along already also although always among animal answer apple area "
    "arm around art aside autumn away back ball bank base bear beautiful because bed before began begin behind believe below "
    "best better between big bird black blue board boat body book born both bottom box boy branch bread break bridge bright "
    "bring broken brother brought brown build building business buy call came car care carry case cat catch cause center "
    "certain chair change chart check child children choose church circle city class clean clear close cloud coast cold color "
    "come common company complete condition consider contain control cook cool copy corn corner correct cost cotton could count "
    "country course cover cow create cross crowd cry current cut dance dark daughter day dead deal dear decide deep degree desert "
    "design develop dictionary differ difficult direct discover distance divide doctor dog door double down draw dream dress drive "
    "drop dry during each ear early earth ease east eat edge effect egg eight either electric element else end enemy energy engine "
    "enough enter equal especially even evening event every exact example except excite exercise expect experience experiment eye "
    "face fact fair fall family famous far farm fast father favor fear feel feet few field fight figure fill final find fine "
    "finger finish fire first fish five flat floor flow flower fly follow food foot force forest form forward four free fresh "
    "friend front fruit full game garden gas gave general gentle girl give glass gold good govern grand grass gray great green "
    "ground group grow guess guide hair half hand happen happy hard hat head hear heart heat heavy held help here high hill "
    "history hit hold hole home hope horse hot hour house huge human hundred hunt hurry ice idea imagine inch include indicate "
    "industry insect inside instrument interest invent iron island join joy jump just keep kept key kill kind king knew know "
    "lady lake land language large last late laugh law lay lead learn least leave left leg length less letter level lie life "
    "lift light like line list listen little live locate long look lost lot loud love low machine made magnet main make man many "
    "map mark market mass master match material matter mean measure meat meet melody men metal method middle might mile milk "
    "million mind mine minute miss mix modern molecule moment money month moon morning most mother motion mountain mouth move much "
    "multiply music name nation natural nature near necessary neck need never new next night nine noise noon north nose note "
    "nothing notice noun now number object observe ocean offer office often oil old once one only open operate opposite order "
    "organ original other out over own page paint pair paper paragraph parent part particular party pass past path pattern pay "
    "people perhaps period person phrase picture piece pitch place plain plan plane planet plant play please plural poem point "
    "poor populate port pose position possible post pound power practice prepare present press pretty print probable problem "
    "process produce product proper property protect prove provide pull push put quart question quick quiet quite race radio rail "
    "rain raise ran range rather reach read ready real reason receive record red region remember repeat reply represent require "
    "rest result rich ride right ring rise river road rock room root rope rose round row rub rule run safe sail salt same sand "
    "sat save scale school science score sea search season seat second section see seed seem segment select self sell send sense "
    "sentence separate serve set settle seven several shape share sharp sheet shell shine ship shoe shop shore short shoulder show "
    "side sight sign silent silver similar simple since single sister sit six size skill skin sky sleep slip slow small smell "
    "smile snow soft soil soldier solution solve some son song soon sound south space speak special speech speed spell spend spoke "
    "spot spread spring square stand star start state station stay steam steel step stick still stone stood stop store story "
    "straight strange stream street stretch string strong student study subject substance subtract success sudden suffix sugar "
    "suggest suit summer sun supply support sure surface surprise swim syllable symbol system table tail take talk tall teach team "
    "tell temperature ten term test thank thick thin thing think third thought thousand three through throw thus tie time tiny tire "
    "together told tone tool top total touch toward town track trade train travel tree triangle trip trouble truck true try tube "
    "turn twenty two type under unit until usual valley value vary verb very view village visit voice vowel wait walk wall war "
    "warm wash watch water wave way wear weather week weight west wheel white whole wide wife wild wind window wing winter wire "
    "wish woman wonder wood word work world write wrong yard year yellow young"
)
_JOINTS = ["the", "of", "and", "to", "in", "is", "that", "for", "on", "with", "as", "from", "this", "are", "or", "by"]
_FEWEST = 64


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Token ids, without any that stand for the beginning of a text."""


class Prose:
    """Writes text for one tokenizer. Where that takes too few words as single tokens, words of several are used as well."""

    def __init__(self, tokenizer: Encoder) -> None:
        self._tokenizer = tokenizer
        counted = self._counted(_WORDS.split())
        single = [word for word in counted if word[1] == 1]
        self._words = single if len(single) >= _FEWEST else counted
        self._joints = [word for word in self._counted(_JOINTS) if word[1] == 1] or self._words

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self._tokenizer.encode(text))

    def ids(self, text: str) -> list[int]:
        """Token ids of a text."""
        return self._tokenizer.encode(text)

    def write(self, chance: random.Random, tokens: int) -> str:
        """Something like sentences, of ``tokens`` tokens: exactly so many where a stop is one token and words are not merged."""
        pieces: list[str] = []
        words, left = 0, tokens
        length = chance.randint(8, 14)
        while left > 0:
            word, size = chance.choice(self._joints if words % 3 == 2 else self._words)
            if words == length or size > left:
                pieces.append(".")
                words, length, left = 0, chance.randint(8, 14), left - 1
            else:
                pieces.append(word)
                words, left = words + 1, left - size
        return "".join(pieces)

    def _counted(self, words: list[str]) -> list[tuple[str, int]]:
        """Each word with the space before it, and its tokens."""
        return [(f" {word}", self.count(f" {word}")) for word in words]
