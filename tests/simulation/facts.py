"""What a gatekeeper knows, as plain values that can be compared: live state, catalogs, lineage store. Decides nothing."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from gate.shard import Shard
from gate.state.columns import Columns
from gate.state.tenant import Tenant

from .process import Lineage

# Not facts: caches, counters of the moment, and what only the living need.
LEFT_OUT: Final = frozenset(
    {
        "quotas",
        "in_flight",
        "writes",
        "reads",
        "cited",
        "facts",
        "authority",
        "reader_masks",
        "fresh",
        "at",
        "_actors",
        "_buckets",
    }
)
HEARD: Final = frozenset({"contexts", "served_to"})


def facts(shard: Shard) -> dict[str, Any]:
    """By tenant name. What was registered and not recorded makes `contexts` stricter than a replay: see `compared`."""
    lineage: Any = shard.lineage
    assert isinstance(lineage, Lineage)
    found: dict[str, Any] = {"lineage": lineage.tables()}
    for account, t in shard.tenants.items():
        found[t.name] = {"state": _tenant(t), "catalog": _catalog(shard, account), "chain": shard.heads.head(account)}
    return found


def _tenant(t: Tenant) -> dict[str, Any]:
    found = {name: plain(value) for name, value in vars(t).items() if name not in LEFT_OUT}
    for erasure in found["erasures"].values():  # how far this process has got
        for progress in ("purged", "blocks", "trouble"):
            erasure.pop(progress)
    found["contexts"] = {id_: ctx for id_, ctx in found["contexts"].items() if ctx["recalls"] or ctx["served"] or ctx["epoch"]}
    return found


def _catalog(shard: Shard, account: str) -> list[Any]:
    return [plain(row) for batch in shard.indexes[account].catalog.iterate() for row in batch]


def plain(value: Any, path: tuple[int, ...] = ()) -> Any:
    if value is None or isinstance(value, str | int | float | bytes | bool):
        return value
    if id(value) in path:
        return "again"
    path = (*path, id(value))
    if isinstance(value, Columns):
        return {name: getattr(value, name)[: value.n].tolist() for name in Columns._TYPES}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, OrderedDict):
        return [(plain(k, path), plain(v, path)) for k, v in value.items()]
    if isinstance(value, Mapping):
        return {plain(k, path): plain(v, path) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return frozenset(_hashable(plain(v, path)) for v in value)
    if isinstance(value, msgspec.Struct):
        return {f: plain(getattr(value, f), path) for f in value.__struct_fields__}
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(plain(v, path) for v in value)
    if isinstance(value, list | tuple | deque):
        return [plain(v, path) for v in value]
    names = (
        [*vars(value)] if hasattr(value, "__dict__") else [s for c in type(value).__mro__ for s in getattr(c, "__slots__", ())]
    )
    return {n: plain(getattr(value, n), path) for n in names if n not in LEFT_OUT and not callable(getattr(value, n))}


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bytes | tuple | frozenset) else repr(value)


def differing(one: Any, other: Any, path: str = "") -> list[str]:
    """Where they differ, at most a few places."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = [f"{path}.{k}: only in one" for k in one.keys() ^ other.keys()]
        for key in [k for k in one if k in other]:
            found += differing(one[key], other[key], f"{path}.{key if isinstance(key, str | int) else repr(key)[:40]}")
        return found[:5]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        return [x for i, (a, b) in enumerate(zip(one, other, strict=True)) for x in differing(a, b, f"{path}[{i}]")][:5]
    return [] if one == other else [f"{path}: {repr(one)[:120]} and {repr(other)[:120]}"]
