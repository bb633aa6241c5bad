"""The gatekeeper's live state, compared with what the ledger says at the very same position.

It goes on serving, so its answer is of a later position than the last: the walk follows it there, only then is it compared.
A context is ahead of READS while an answer is on its way: only one that remembers *less* than READS says is a finding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from gate.state.contexts import Context
from gate.state.tenant import Tenant
from gate.verifying.answers import MOVING, PAGE, STAMPED, case_facts, context_facts, digests, edges_of, live_rows, tenant_facts
from gate.verifying.expected import Expected
from gate.verifying.stores import SHOWN_PARTS, SHOWN_ROWS, Ask, Found
from gate.verifying.vectors import PART_ROWS

TRIES: Final = 3
AGAIN_S: Final = 0.2
SAID: Final = ("memories", "bytes", "edges", "agents", "projects", "idempotency_keys", "suspended", "ends", "promoted", "turns")


class Live:
    """`follow(ledger_seq, reads_seq)` brings `expected` there."""

    def __init__(self, ask: Ask, expected: Expected, follow: Callable[[int, int], Awaitable[None]], found: Found) -> None:
        self._ask, self._expected, self._follow, self._found = ask, expected, follow, found

    async def compare(self, account: str) -> None:
        findings: list[str] = []
        for attempt in range(TRIES):  # what differs only while something is on its way differs once
            if attempt:
                await asyncio.sleep(AGAIN_S)
            findings = await self._compared(account)
            if not findings:
                return
        for finding in findings:
            self._found(f"live state of tenant {account}: {finding}")

    async def _compared(self, account: str) -> list[str]:
        there = await self._ask(what="state", account=account)
        await self._follow(there["ledger_seq"], there["reads_seq"])
        t = self._expected.tenants[account]
        if account in self._expected.torn:
            return []
        if there["position"] != t.position:
            return [f"it is at event {there['position']}, the ledger at {t.position}"]
        right = tenant_facts(t)
        findings = [f"{name} differ: {there[name]}, the ledger has {right[name]}" for name in SAID if there[name] != right[name]]
        n = t.columns.n
        moving = {name: getattr(t.columns, name)[:n] for name in MOVING}
        mine = digests({name: getattr(t.columns, name)[:n] for name in STAMPED}, moving, edges_of(t))
        for group, parts in mine.items():
            if group != "facts" or not there["pending"]:
                findings += await self._parts(account, t, group, parts, there[group])
        findings += await self._cases(account, t)
        findings += await self._contexts(account, t)
        return findings + await self._vectors(account, t)

    async def _parts(self, account: str, t: Tenant, group: str, mine: list[str], theirs: list[str]) -> list[str]:
        wrong = [i for i in range(max(len(mine), len(theirs))) if mine[i : i + 1] != theirs[i : i + 1]]
        findings: list[str] = []
        for part in wrong[:SHOWN_PARTS]:
            first = part * PART_ROWS
            theirs_rows = await self._ask(what="rows", account=account, first=first)
            mine_rows = live_rows(t, first, first + PART_ROWS)
            kind = "edges" if group == "edge_parts" else "columns"
            findings += _different(theirs_rows[kind], mine_rows[kind], first, "edge" if kind == "edges" else "memory")
        if len(wrong) > SHOWN_PARTS:
            findings.append(f"{len(wrong) - SHOWN_PARTS} more parts of its {group} differ")
        return findings

    async def _pages(self, what: str, account: str) -> dict[str, dict[str, Any]]:
        items: dict[str, dict[str, Any]] = {}
        first, of = 0, 1
        while first < of:
            answer = await self._ask(what=what, account=account, first=first)
            items |= answer["items"]
            first, of = first + PAGE, answer["of"]
        return items

    async def _cases(self, account: str, t: Tenant) -> list[str]:
        there = await self._pages("cases", account)
        findings = []
        for key, case in t.cases.items():
            found, right = there.get(key.hex()), case_facts(case)
            if found != right:
                shown = "is missing" if found is None else f"is {found['state']} with {found['members']} members"
                findings.append(f"{case.text} {shown}; in the ledger it is {right['state']} with {right['members']}")
        return findings

    async def _contexts(self, account: str, t: Tenant) -> list[str]:
        there = await self._pages("contexts", account)
        return [
            f"the context of {t.agents.by_id[key].name} {weaker}"
            for key, ctx in t.contexts.items()
            if (ctx.epoch or ctx.recalls) and (weaker := _weaker(there.get(key.hex()), ctx))
        ]

    async def _vectors(self, account: str, t: Tenant) -> list[str]:
        findings, made = [], self._expected.vectors[account]
        for project in t.projects.values():
            right = made.parts(project.number)
            there = await self._ask(what="vectors", account=account, part=project.number)
            if there["rows"] < project.rows:
                findings.append(f"the index of project {project.name} has {there['rows']} memories, the ledger {project.rows}")
            c = t.columns
            gone = c.row[: c.n][(c.erased[: c.n] > 0) & (c.project[: c.n] == project.number) & (c.kind[: c.n] >= 0)]
            forgotten = {int(row) // PART_ROWS for row in gone}
            for i, digest in enumerate(right):
                if i in forgotten:
                    continue
                same_rows = (i + 1) * PART_ROWS <= project.rows or there["rows"] == project.rows  # else it has more by now
                if digest is not None and same_rows and there["parts"][i : i + 1] != [digest]:
                    rows = f"{i * PART_ROWS} to {min((i + 1) * PART_ROWS, project.rows) - 1}"
                    findings.append(f"the index of project {project.name}: vectors of its rows {rows} differ from the ledger")
        return findings


def _different(theirs: dict[str, list[Any]], mine: dict[str, list[Any]], first: int, what: str) -> list[str]:
    found = []
    for name, right in mine.items():
        for i, (a, b) in enumerate(zip(theirs[name], right, strict=False)):
            if a != b:
                found.append(f"{name} of {what} {first + i} is {a}, the ledger says {b}")
    return found[:SHOWN_ROWS]


def _weaker(there: dict[str, Any] | None, ctx: Context) -> str:
    """What a context has forgotten of what READS says that it was served; empty if nothing."""
    if there is None:
        return "is missing"
    right = context_facts(ctx)
    if (there["epoch"], there["recalls"]) < (right["epoch"], right["recalls"]):
        return f"is at recall {there['recalls']} of epoch {there['epoch']}, READS at {right['recalls']} of {right['epoch']}"
    if there["epoch"] > right["epoch"]:
        return ""
    floor, origin, cls, sens, opt_out, comp = there["labels"]
    least = right["labels"]
    if floor > least[0] or origin > least[1] or cls < least[2] or sens < least[3] or opt_out < least[4]:
        return "has better labels than what it was served"
    if not set(least[5]) <= set(comp) and "many" not in comp:
        return "has lost compartments of what it was served"
    return "" if set(right["exposed"]) <= set(there["exposed"]) else "has forgotten a case that it is exposed to"
