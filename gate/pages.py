"""Pages of answers: what grows with a tenant leaves in parts that each fit into a message.

Invariant: a page holds at least one item where there is one, so who asks on from `following` comes to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

import msgspec

from bus.limits import PAGE_BYTES_MAX, PAGE_ITEMS_MAX

T = TypeVar("T")
_encode: Final = msgspec.json.Encoder().encode


class Page(Generic[T]):
    """A page that is being filled: at most `most` items, and PAGE_BYTES_MAX as JSON unless the first alone is more."""

    def __init__(self, most: int = PAGE_ITEMS_MAX) -> None:
        self.items: list[T] = []
        self._most, self._bytes = most, 0

    def add(self, item: T) -> bool:
        """Whether it still fits; else it begins the next page."""
        self._bytes += len(_encode(item)) + 1
        if self.items and (len(self.items) >= self._most or self._bytes > PAGE_BYTES_MAX):
            return False
        self.items.append(item)
        return True


def filled(items: Iterable[T], most: int = PAGE_ITEMS_MAX) -> list[T]:
    """As many of the first as fit into a page; no more are made than that and one."""
    page = Page[T](most)
    for item in items:
        if not page.add(item):
            break
    return page.items


def following(start: int, shown: int, total: int) -> int | None:
    """The cursor of the next page; None after the last."""
    return start + shown if start + shown < total else None


def newest_first(entries: Iterable[T], cursor: int, place: Callable[[T], int]) -> list[T]:
    """Those before the place `cursor`; 0: all. A place is the event that made an entry, so what comes in meanwhile moves none
    from one page to another.
    """
    return sorted((x for x in entries if not cursor or place(x) < cursor), key=place, reverse=True)


def following_older(newest: list[T], shown: int, place: Callable[[T], int]) -> int | None:
    """The cursor after the first `shown` of `newest_first`; None after the last."""
    return place(newest[shown - 1]) if shown < len(newest) else None
