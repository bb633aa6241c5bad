"""The texts of all contexts of a shard, within a bound: those that wrote longest ago are let go, and made again when they write.

A context that was served as much as its window holds takes 4 to 5 MB here, one that only writes up to 2 MB, and a gateway makes a
context for each of its users.
What can't be made again from the catalog stays: how much of special texts was taken bit by bit. Index thread only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Final, NamedTuple

from gate.projections.vectors import DIM
from gate.state.contexts import Context

from .lineage import ContextText

BYTES_MAX: Final = 512 << 20  # by estimate (ContextText.size): some hundred full windows of ordinary texts

Key = tuple[str, bytes]  # account of the tenant, id of the context


class _Left(NamedTuple):
    """What is kept of a context that was let go."""

    epoch: int
    taken: dict[int, set[str]]


class ContextTexts:
    def __init__(self, most: int = BYTES_MAX) -> None:
        self._most = most
        self._texts: OrderedDict[Key, ContextText] = OrderedDict()
        self._sizes: dict[Key, int] = {}
        self._left: dict[Key, _Left] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._texts)

    def of(self, key: Key) -> ContextText:
        """Perhaps a new one: its epoch is to begin, and what it was served to be heard."""
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = ContextText(DIM)
        self._texts.move_to_end(key)
        return text

    def behind(self, key: Key, ctx: Context) -> int:
        """How many texts it takes to bring a context's up to date: all of its window where it was let go. On any thread."""
        fresh = len(ctx.fresh[1])
        return fresh if key in self._texts else max(fresh, len(ctx.served))

    def resume(self, key: Key, text: ContextText) -> None:
        """An epoch begins here: it may have been under way when the context was let go."""
        left = self._left.pop(key, None)
        if left is not None and left.epoch == text.epoch:
            text.taken = left.taken

    def weigh(self, key: Key, text: ContextText) -> None:
        """It has another size now: those that wrote longest ago go until all fit. It stays itself."""
        if self._texts.get(key) is text:  # else it was let go meanwhile, and ends with its batch
            self._resize(key, text.size)
        while self.bytes > self._most and len(self._texts) > 1:
            self.let_go(next(iter(self._texts)))

    def let_go(self, key: Key) -> None:
        """It is made again when its context writes."""
        gone = self._texts.pop(key, None)
        self._resize(key, 0)
        if gone is not None and gone.taken:
            self._left[key] = _Left(gone.epoch, gone.taken)

    def forget(self, key: Key, seqs: Collection[int], *, own: bool) -> bool:
        """Memories that were erased: nothing of their texts stays; whether anything of them could be here."""
        text, left = self._texts.get(key), self._left.get(key)
        if left is not None:
            gone = left.taken.keys() & set(seqs)
            for s in gone:
                del left.taken[s]
            return bool(gone) or own
        if text is None or not text.forget(seqs, own=own):
            return False
        self.weigh(key, text)
        return True

    def drop(self, account: str) -> None:
        """A tenant's end."""
        for key in [k for k in (*self._texts, *self._left) if k[0] == account]:
            self._texts.pop(key, None)
            self._left.pop(key, None)
            self._resize(key, 0)

    def _resize(self, key: Key, size: int) -> None:
        self.bytes += size - self._sizes.pop(key, 0)
        if size:
            self._sizes[key] = size
