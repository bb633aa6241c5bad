"""What lies in a tenant's table of plans for an hour: plans of holds, of rollbacks and of prunings, and requests to erase.

Invariant: nothing of one kind is ever taken for another. Who gives a plan to another command than it is for is told which one
that is, if they could have made the plan; to others it is unknown.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from bus.frames import PlanKind
from gate.identify import Principal
from gate.refusals import Refused
from gate.rights import decide_all

APPLIED_WITH: Final = {
    "hold": "cordon hold --plan ID",
    "rollback": "cordon rollback --plan ID",
    "prune": "cordon prune --plan ID",
    "erase": "cordon erase --agree ID",
}
_TAGGED: Final = ("prune", "erase")  # a record begins with its kind; those of holds and rollbacks have `roots` there
_decode: Final = msgspec.msgpack.Decoder(list[Any]).decode


def check_kind(kind: PlanKind, wanted: PlanKind) -> None:
    """Refuses a plan of a hold where one of a rollback is meant, and the other way round."""
    if kind != wanted:
        raise _other(kind)


def refuse_other(p: Principal, record: bytes, field: str = "plan") -> None:
    """A record that isn't of the caller's kind: refused with what it is. Returns if `p` couldn't have made it."""
    first, second, *rest = _decode(record)
    kind = first if first in _TAGGED else "rollback" if rest[-1] else "hold"
    if decide_all(p, second if kind in _TAGGED else first):
        raise _other(kind, field)


def _other(kind: str, field: str = "plan") -> Refused:
    return Refused("plan_of_other_kind", field=field, detail={"kind": kind, "apply_with": APPLIED_WITH[kind]})
