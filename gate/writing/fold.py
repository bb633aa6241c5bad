"""A copy of a text for looking at: disguises undone, with the way back to the original.

Owns what counts as the same character to a reader: compatibility forms, accents, look-alikes from Cyrillic and Greek, and what
cannot be seen. Invariant: detection runs on the copy, cutting on the original; only the original is ever stored.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Final

_LOOK_ALIKES: Final = str.maketrans(
    "авекмнорстухіјѕԁһӏԛԝгАВЕКМНОРСТУХІЈЅԌ" "αβεικνορτυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧ" "ıɡɑɩᴀʙᴄᴅᴇɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ",
    "abekmhopctyxijsdhlqwrABEKMHOPCTYXIJSG" "abeiknoptuxABEZHIKMNOPTYX" "igaiabcdeghijklmnoprstuvwyz",
)  # fmt: skip
_INVISIBLE: Final = frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f")  # fillers and joiners that are not of category Cf
_CACHE_SIZE: Final = 8_192


@lru_cache(_CACHE_SIZE)
def _fold_character(c: str) -> str:
    """What a reader takes `c` for: nothing, one character or several."""
    category = unicodedata.category(c)
    if category in ("Cf", "Mn", "Me") or c in _INVISIBLE:
        return ""
    if category in ("Zl", "Zp"):
        return "\n"
    composed = unicodedata.normalize("NFKC", c).translate(_LOOK_ALIKES)
    bare = "".join(x for x in unicodedata.normalize("NFKD", composed) if not unicodedata.combining(x))
    return bare if bare.isascii() else composed


@dataclass(frozen=True, slots=True)
class Folded:
    """`text` is the copy; `starts[i]` the position in it where the original's character i begins (None: the same positions)."""

    text: str
    starts: list[int] | None

    def original_span(self, start: int, end: int) -> tuple[int, int]:
        """The original's characters that made `text[start:end]`, unseen ones between them included."""
        if self.starts is None:
            return start, end
        return bisect_right(self.starts, start) - 1, bisect_right(self.starts, end - 1)


def fold(text: str) -> Folded:
    """Linear time; an ASCII text is its own copy."""
    if text.isascii():
        return Folded(text, None)
    parts = [c if c < "\x80" else _fold_character(c) for c in text]
    copy = "".join(parts)
    if len(copy) == len(parts) and all(parts):
        return Folded(copy, None)
    return Folded(copy, list(accumulate(map(len, parts), initial=0)))
