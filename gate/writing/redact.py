"""Cuts secrets out of a text before it is stored, logged, embedded or answered.

Owns the cut and what is not one: placeholders, words, names of variables. Invariants: what was found is in no part of the result;
redacting a redacted text changes nothing; time is linear in the text. The value itself leaves this module in no form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from gate.steps import PIECE_CHARS, Steps, finished
from gate.writing.fold import fold
from gate.writing.secret_rules import CONTEXT, LONG_RUN, NUMBERS, VENDOR


class Span(NamedTuple):
    """`text[start:end]` of the stored text is the mark that stands for a secret of `type`."""

    type: str
    start: int
    end: int


class Redacted(NamedTuple):
    text: str
    spans: tuple[Span, ...]


class _Found(NamedTuple):
    """A secret in the original text."""

    start: int
    end: int
    type: str


def redact(text: str) -> Redacted:
    """The text with each secret replaced by `[redacted:<type>]`, and where the marks are."""
    return finished(cut(text))


def cut(text: str) -> Steps[Redacted]:
    """The same in steps: a text of 64 KiB takes 16 ms."""
    seen: list[_Found] = []
    for one in _found(text):
        if one is None:
            yield
        else:
            seen.append(one)
    found = _merged(seen)
    if not found:
        return Redacted(text, ())
    parts: list[str] = []
    spans: list[Span] = []
    length = done = 0
    for start, end, type_ in found:
        mark = f"[redacted:{type_}]"
        length += start - done
        parts += (text[done:start], mark)
        spans.append(Span(type_, length, length + len(mark)))
        length += len(mark)
        done = end
    parts.append(text[done:])
    return Redacted("".join(parts), tuple(spans))


def _found(text: str) -> Iterator[_Found | None]:
    """In the order of the rules, the more telling type first; of a long text None after each rule that was tried."""
    folded = fold(text)
    copy = folded.text
    lower = copy.lower()
    for rules, is_secret in _JUDGED if LONG_RUN.search(copy) else _JUDGED_SHORT:
        for rule in rules:
            for literal in rule.literals:  # a loop: `any` over a generator takes twice as long
                if literal in lower:
                    break
            else:
                continue
            for match in rule.pattern.finditer(copy):
                start, end = match.span(1)
                end -= len(match[1]) - len(match[1].rstrip(_TRAILING))
                if is_secret(rule.type, copy[start:end]):
                    yield _Found(*folded.original_span(start, end), rule.type)
            if len(copy) > PIECE_CHARS:
                yield None


def _merged(found: list[_Found]) -> list[_Found]:
    """Disjoint, in order of place; of overlapping ones the union, under the type of the first rule."""
    merged: list[_Found] = []
    for _, f in sorted(enumerate(found), key=lambda item: (item[1].start, item[0])):
        if merged and f.start < merged[-1].end:
            last = merged[-1]
            merged[-1] = last._replace(end=max(last.end, f.end))
        else:
            merged.append(f)
    return merged


# --- what only looks like a secret ----------------------------------------------------------------
_TRAILING: Final = ".,;:!?"
_DISTINCT_LEAST: Final = 5  # xxxxxxxx, 0000-0000 and **** are placeholders
_PLACEHOLDER: Final = re.compile(
    r"^\$|\$[{(A-Z]|%[sdv(]|^[<{\[]|[*.]{3}|x{4}|your[_-]?|example\b|placeholder|redacted|changeme"
    r"|process\.env|os\.environ|env\.|secrets?\.|vault:",
    re.IGNORECASE,
)
_EXAMPLES: Final = frozenset(
    ("user:pass", "user:password", "username:password", "username:token", "user:token", "password", "pass", "test:test")
)
# what follows "the password is" in prose without being one
_PROSE_WORDS: Final = """
a also always an another any at being blank broken case changed checked compromised confidential configured correct
default deleted different disabled empty encrypted enabled enough entered expired false fine forgotten good gone handled
hashed here hidden in incorrect invalid just kept known leaked less like long lost mandatory missing more must needed
never none not null now of off ok okay old on only optional outdated over private protected public rather really
required reset retired revoked rotated safe saved secret secure sensitive sent set shared short shown simple still
stored string strong that the their there too true type undefined under unknown unset updated used using valid weak what
when where wrong yours
"""
_PROSE: Final = frozenset(_PROSE_WORDS.split())


def _vendor_secret(_: str, value: str) -> bool:
    return len(set(value[-24:])) > _DISTINCT_LEAST


def _said_secret(type_: str, value: str) -> bool:
    if type_ in ("pin", "access_code"):
        return True
    if _PLACEHOLDER.search(value) or len(set(value)) < min(_DISTINCT_LEAST, len(value)):
        return False
    if type_ == "password":
        return _is_unlike_prose(value)
    if type_ in ("authorization", "url_password", "basic_credentials"):
        return value.lower() not in _EXAMPLES
    return any(c.isdigit() for c in value) and any(c.isalpha() for c in value) and "://" not in value


def _is_unlike_prose(value: str) -> bool:
    """A password: has a digit or sign or inner capital, or is a word that does not follow "the password is" in prose."""
    if not value.isalpha():
        return any(c.isalnum() for c in value)
    return value.lower() not in _PROSE and not value.lower().endswith(("ed", "ing", "able", "ly"))


def _valid_number(type_: str, value: str) -> bool:
    return _is_card(value) if type_ == "payment_card" else _is_iban(value.replace(" ", ""))


def _is_card(value: str) -> bool:
    """13 to 19 digits with a right check digit (Luhn, ISO/IEC 7812-1). Millisecond times begin with 1 and never come here."""
    digits = [int(c) for c in reversed(value) if c.isdigit()]
    doubled = [d if i % 2 == 0 else d * 2 - 9 * (d > 4) for i, d in enumerate(digits)]
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and sum(doubled) % 10 == 0


def _is_iban(value: str) -> bool:
    """15 to 34 characters that leave 1 of 97 (ISO 13616)."""
    return 15 <= len(value) <= 34 and int("".join(str(int(c, 36)) for c in value[4:] + value[:4])) % 97 == 1


_JUDGED: Final = ((VENDOR, _vendor_secret), (CONTEXT, _said_secret), (NUMBERS, _valid_number))
_JUDGED_SHORT: Final = _JUDGED[1:]  # where no run of characters is as long as a vendor's token
