"""Who is next: requests wait by tenant and by context, and take turns, so that nobody's queue is in front of another's.

Bounded by the in-flight quotas of agents and tenants (gate/quotas.py). Within a context the order of arrival stays.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """A queue of queues of queues. A context, not an agent, has a turn: children of one root have one between them."""

    def __init__(self) -> None:
        self._tenants = OrderedDict[str, OrderedDict[bytes, deque[T]]]()

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def add(self, tenant: str, context: bytes, item: T) -> None:
        self._tenants.setdefault(tenant, OrderedDict()).setdefault(context, deque()).append(item)

    def some(self, most: int) -> list[T]:
        """At most so many, by turns."""
        found: list[T] = []
        while self._tenants and len(found) < most:
            found.append(self.next())
        return found

    def next(self) -> T:
        """The oldest item of the context whose turn it is, in the tenant whose turn it is. There must be one."""
        tenant, contexts = next(iter(self._tenants.items()))
        context, items = next(iter(contexts.items()))
        item = items.popleft()
        if items:
            contexts.move_to_end(context)
        else:
            del contexts[context]
        if contexts:
            self._tenants.move_to_end(tenant)
        else:
            del self._tenants[tenant]
        return item
