"""How a scripted agent picks its words: what it notes of a document, what it takes up, how it says it again. Pure but for the
random numbers it is given.

It does what language models do when they summarise: clauses change places, phrases are replaced, small words go; names, numbers,
accounts and versions stay. Where the text is from is not said.

A summary is made of one recalled text. Of two, it would quote a true record beside the poison; then the text of a later plan
can't tell which of them it was made from, and Cordon holds it with the poison. The report says that this isn't shown.
"""

from __future__ import annotations

import re
from random import Random
from typing import Final

from .scenario import unwrapped

SHARED_WORDS_MIN: Final = 3  # below, a recalled text doesn't bear on the question
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_SPECIFIC: Final = re.compile(r"\d|\w_\w|/\w+/|[^.!?]\s[A-Z]\w+\s[A-Z]\w+")
_WORD: Final = re.compile(r"[A-Za-z0-9_/.:-]{3,}")
_HAN: Final = re.compile(r"[\u4e00-\u9fff]+")
_SMALL_WORDS: Final = """
    the and are for was were which what when where who how does has have had been its that this from with into must will
"""
_SMALL: Final = frozenset(_SMALL_WORDS.split())
_CLAUSE_CHARS_MIN: Final = 16
_OPENERS: Final = ("In short: ", "What we know: ", "Summary: ", "As it stands, ")
_OPENER_ZH: Final = "简而言之："
_PHRASES: Final = (
    ("from now on all ", "all "),
    ("are paid to", "go to"),
    ("is rolled back to", "goes back to"),
    ("misbehaves", "goes wrong"),
    ("was closed on", "has been closed since"),
    ("to it bounce", "to it are returned"),
    ("runs until", "is valid until"),
    ("has a notice period of", "can be ended with a notice of"),
    ("must be drained with", "has to be drained by"),
    ("takes about", "needs roughly"),
    ("is owned by", "belongs to"),
    ("ends on", "is over on"),
    ("freed the space", "gave the space back"),
    ("were green again after", "recovered within"),
    ("holds more than", "has over"),
    ("has moved its banking", "now banks elsewhere"),
    ("期间", "这段时间"),
    ("改到", "改为"),
)


def facts(text: str) -> list[str]:
    """The sentences that a reader notes: those that name something (a number, an identifier, a full name). No mail headers."""
    found: list[str] = []
    for paragraph in unwrapped(text):
        if not paragraph.startswith("From: "):
            sentences = (s.strip() for s in _SENTENCE_END.split(paragraph))
            found += [s for s in sentences if s.endswith((".", "!", "?", "。", "！", "？")) and _SPECIFIC.search(s)]
    return found


def words(text: str) -> frozenset[str]:
    """Words that carry meaning, and for Chinese pairs of characters: what a naive search compares, too."""
    plain = {w.lower().strip(".:").rstrip("s") for w in _WORD.findall(text)} - _SMALL
    pairs = {run[i : i + 2] for run in _HAN.findall(text) for i in range(len(run) - 1)}
    return frozenset(plain | pairs)


def bears_on(question: str, text: str) -> bool:
    """Whether a recalled text is about what was asked."""
    return len(words(question) & words(text)) >= SHARED_WORDS_MIN


def restated(text: str, random: Random) -> str:
    """The text again, in other words."""
    opener = _OPENER_ZH if _HAN.search(text) else random.choice(_OPENERS)
    return opener + _turned(_bare(text), random)


def value_in(text: str, about: str, pattern: str) -> str | None:
    """What a tool would be called with: the first match of `pattern` in a text that mentions `about`."""
    found = re.search(pattern, text) if about.lower() in text.lower() else None
    return found[0] if found else None


def _bare(text: str) -> str:
    """Without the opening of an earlier summary."""
    for opener in (*_OPENERS, _OPENER_ZH):
        text = text.removeprefix(opener)
    return text


def _turned(text: str, random: Random) -> str:
    """One text with its two halves changed round, sometimes, and its phrases replaced."""
    for old, new in _PHRASES:
        text = re.sub(re.escape(old), new, text, flags=re.IGNORECASE)
    first, comma, rest = text.rstrip(".").partition(", ")
    if comma and min(len(first), len(rest)) >= _CLAUSE_CHARS_MIN and random.random() < 0.6:
        return f"{rest}; {first}."
    return text
