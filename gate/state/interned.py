"""Small tables of values that repeat: labels, names, clauses, compartments. A value's number never changes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Interned(Generic[T]):
    """Value ↔ number, dense from 0 in order of arrival."""

    def __init__(self, *first: T) -> None:
        self.values: list[T] = []
        self._number: dict[T, int] = {}
        for value in first:
            self.number(value)

    def number(self, value: T) -> int:
        n = self._number.get(value)
        if n is None:
            n = self._number[value] = len(self.values)
            self.values.append(value)
        return n

    def find(self, value: T) -> int | None:
        return self._number.get(value)

    def __getitem__(self, number: int) -> T:
        return self.values[number]

    def __len__(self) -> int:
        return len(self.values)
