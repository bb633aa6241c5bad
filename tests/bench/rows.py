"""Rows of the table: a figure, the raw thing measured beside it in the same run, their ratio, the budget. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec

Sense = Literal["<=", ">="]
_MEETS: Final[dict[Sense, Callable[[float, float], bool]]] = {"<=": operator.le, ">=": operator.ge}


class Budget(msgspec.Struct, frozen=True):
    """What must hold of the ratio (`of` = ratio) or of the figure itself."""

    sense: Sense
    limit: float
    of: Literal["value", "ratio"] = "value"

    def __str__(self) -> str:
        return f"{self.sense} {self.limit:g}" + (" ×" if self.of == "ratio" else "")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line. `raw` is the plain thing in the same unit, `ratio` = value / raw. `note`: how it was measured, what bounds it."""

    bench: str
    name: str
    value: float
    unit: str
    raw_name: str = ""
    raw: float | None = None
    budget: Budget | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.value / self.raw if self.raw else None

    @property
    def met(self) -> bool | None:
        """None without a budget."""
        if self.budget is None:
            return None
        seen = self.ratio if self.budget.of == "ratio" else self.value
        return seen is not None and _MEETS[self.budget.sense](seen, self.budget.limit)


def as_json(rows: Iterable[Row]) -> bytes:
    out = [{**msgspec.to_builtins(r), "ratio": r.ratio, "met": r.met} for r in rows]
    return msgspec.json.format(msgspec.json.encode(out), indent=1)


def _number(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.4g}"


def as_table(rows: Iterable[Row]) -> str:
    """Markdown."""
    lines = ["| bench | what | measured | beside it | ratio | budget | met | note |", "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        raw = f"{r.raw_name} {_number(r.raw)} {r.unit}" if r.raw is not None else ""
        ratio = f"{r.ratio:.3f}" if r.ratio is not None else ""
        met = {None: "", True: "yes", False: "**no**"}[r.met]
        cells = (r.bench, r.name, f"{_number(r.value)} {r.unit}", raw, ratio, str(r.budget or ""), met, r.note)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
