"""Long work that others get in between of. In steps, on the index thread: a generator that yields None wherever other work may go
first, and returns what was worked out. In parts, on the loop.

One step takes milliseconds, whatever the text: the index thread has one for all tenants (gate/index_thread.py).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
PIECE_CHARS: Final = 8_192  # a millisecond or two of tokenising
_SPACE: Final = re.compile("[ \n\t]")  # where a text may be cut: no word, and no normalisation, goes across


def finished(steps: Steps[T]) -> T:
    """What the steps return, in one go."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def pieces(text: str) -> Iterator[str]:
    """A text in parts of about PIECE_CHARS, cut at white space: their words, one after another, are the text's. Where there is
    none for as long again it is cut in the middle, which costs a word, or two characters of Chinese as a term.
    """
    start = 0
    while len(text) - start > PIECE_CHARS:
        cut = _SPACE.search(text, start + PIECE_CHARS, start + 2 * PIECE_CHARS)
        end, following = cut.span() if cut else (start + 2 * PIECE_CHARS,) * 2
        yield text[start:end]
        start = following
    yield text[start:]


async def in_parts(whole: Sequence[T], size: int) -> AsyncIterator[Sequence[T]]:
    """On the loop: parts of so many, and others have their turn after each."""
    for start in range(0, len(whole), size):
        yield whole[start : start + size]
        await asyncio.sleep(0)
