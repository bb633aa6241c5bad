"""Plans and cases for people. Who, why and any revealed text come from others: all through render_untrusted."""

from __future__ import annotations

import csv as csv_format
import sys
from typing import TYPE_CHECKING, Final

from .output import STATE_STYLES, facts, first_of, short, show, styled, table
from .render import render_untrusted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bus import Case, Member, Plan

MEMBERS_SHOWN: Final = 50


def show_plan(plan: Plan, *, with_suspects: bool, chosen: str) -> None:
    """A plan, and the command that applies it. with_suspects: it holds them too. chosen: the options that say who acts."""
    show(
        facts(
            {
                "plan": plan.plan,
                **({"back to before": plan.rollback} if plan.rollback else {}),
                "good until": plan.expires_at,
                "would hold": _count(plan.count, plan.elsewhere),
                "by agent": _counts(plan.by_agent, plan.count - plan.elsewhere),
                "by project": _counts(plan.by_project, plan.count - plan.elsewhere),
                "by kind": _counts(plan.by_kind),
                "by depth": _counts(
                    dict(sorted(plan.by_depth.items(), key=lambda hops: int(hops[0]))), plan.count - plan.elsewhere
                ),
                "mixed lineage": str(plan.mixed),
                "held already": str(plan.already_held),
                "contexts exposed": str(plan.contexts_exposed),
                "to be told": _names(plan.agents_to_tell, plan.told_elsewhere),
                "served so far": f"{plan.reads_lost:,} time{'' if plan.reads_lost == 1 else 's'}",
            }
        )
    )
    show_members(plan.members)
    if plan.again:
        show(f"current again, because what supersedes them is held: {plan.again_count:,}")
        show_members(plan.again, with_hops=False)
    if plan.suspects:
        show(f"suspects, {'held too, in a case that ends by itself' if with_suspects else 'held only with --suspects'}:")
        show_members(plan.suspects)
    verb = "rollback" if plan.rollback else "hold"
    show(f"apply it: cordon {verb} --plan {plan.plan} -m REASON{chosen}")


def show_case(case: Case, *, csv: bool = False) -> None:
    """A case with its members; csv: the members alone, for a spreadsheet."""
    if csv:
        _members_csv(case.members)
        return
    told = f"{case.acked_count} of {case.told_count} have acknowledged" if case.told_count else "nobody"
    if case.told_elsewhere:
        told += f", and {case.told_elsewhere} in other projects"
    pairs = {
        "case": case.case,
        "state": styled(case.state, STATE_STYLES),
        "by": render_untrusted(case.by + (f" for {case.person}" if case.person else "")),
        "why": render_untrusted(case.why),
        "roots": first_of([short(r) for r in case.roots], case.roots_count),
        "members": _count(case.count, case.elsewhere) + (f", {case.joined} joined later" if case.joined else ""),
        "told": told,
        "opened": case.opened_at,
    }
    if case.added:
        pairs["added since the plan"] = first_of([short(a) for a in case.added], case.added_count)
    if case.released_at:
        pairs["released"] = f"{case.released_at} by {render_untrusted(case.released_by)}"
    show(facts(pairs))
    if case.state == "pending":
        show("in force, but the ledger has no room or no answer: it is written as soon as there is; a restart before may lose it")
    show_members(case.members, with_hops=False)


def show_cases(cases: Sequence[Case]) -> None:
    if not cases:
        show("no cases")
        return
    rows = [
        (
            short(c.case), styled(c.state, STATE_STYLES), str(c.count), c.opened_at, render_untrusted(c.by),
            render_untrusted(c.why, 120),
        )
        for c in cases
    ]  # fmt: skip
    show(table(("case", "state", "members", "opened", "by", "why"), rows))


def show_members(members: Sequence[Member], *, with_hops: bool = True) -> None:
    """The first of them; --json has all. Columns in which nothing stands are left out. with_hops: a case doesn't know them."""
    if not members:
        return
    rows = [
        (
            str(m.hops) if with_hops else "", short(m.id), render_untrusted(m.agent), render_untrusted(m.project), m.kind,
            m.state, "mixed" if m.mixed else "",
            "" if m.confidence is None else f"{m.confidence:.2f}",
            render_untrusted(m.content or "", 200),
        )
        for m in members[:MEMBERS_SHOWN]
    ]  # fmt: skip
    names = ("hops", "id", "agent", "project", "kind", "state", "lineage", "confidence", "text")
    filled = [i for i in range(len(names)) if any(row[i] for row in rows)]
    state = names.index("state")
    shown = [[styled(row[i], STATE_STYLES) if i == state else row[i] for i in filled] for row in rows]
    show(table([names[i] for i in filled], shown))
    if len(members) > MEMBERS_SHOWN:
        show(f"… and {len(members) - MEMBERS_SHOWN:,} more: --json has all")


def _members_csv(members: Sequence[Member]) -> None:
    out = csv_format.writer(sys.stdout)
    out.writerow(("hops", "id", "agent", "project", "kind", "state", "mixed", "text"))
    for m in members:
        agent, project = render_untrusted(m.agent, form="cell"), render_untrusted(m.project, form="cell")
        text = render_untrusted(m.content or "", 1 << 17, form="cell")
        out.writerow((m.hops, m.id, agent, project, m.kind, m.state, m.mixed, text))


def _count(count: int, elsewhere: int) -> str:
    return f"{count:,}" + (f", {elsewhere:,} of them in projects you may not see" if elsewhere else "")


def _names(names: Sequence[str], elsewhere: int) -> str:
    here = first_of([render_untrusted(name) for name in names], len(names), ", ")
    return ", ".join(x for x in (here, f"{elsewhere} in other projects" if elsewhere else "") if x) or "nobody"


def _counts(counts: Mapping[str, int], total: int = 0) -> str:
    """The greatest, as they came, and what is left of a total."""
    rest = total - sum(counts.values())
    shown = [f"{render_untrusted(name)}: {n:,}" for name, n in counts.items()] + ([f"others: {rest:,}"] if rest > 0 else [])
    return ", ".join(shown) or "none"
