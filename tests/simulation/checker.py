"""The judge: DESIGN §10's invariants over what clients saw and what the streams hold. A small model of its own, none of the
gatekeeper's code.

What it knows: the streams' bytes (`streams`), and the history of the clients. An order in time is taken from where clients
could have known it: a question that was answered on the wire after the receipt of a hold.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .cast import Account, Member
from .history import Asked, History, Wrote
from .streams import Broken, Event, Read, members, read, text_id

STRONG: Final = frozenset({0, 1})  # declared, copied
JOINED: Final = frozenset({0, 1, 2})
_ID: Final = re.compile(rb'"(mem_[0-9a-z]{26})"')
_WORD: Final = re.compile(rb"note \d+ of ([a-z]+):")


def strays(subject: str, data: bytes, accounts: Mapping[str, Account], members: Iterable[Member]) -> list[str]:
    """What a gatekeeper sends must not carry another tenant's text."""
    of = next((name for name, a in accounts.items() if a.key in subject), "")
    if not of:
        of = next((m.tenant for m in members if f".{m.key}." in f".{subject}."), "")
    return [f"text of tenant {x.decode()} went to {subject}" for x in set(_WORD.findall(data)) if of and x.decode() != of]


@dataclass
class Kept:
    """A memory as the model keeps it."""

    event: Event
    id: str
    held_at_write: bool
    review: str = ""  # accept, reject; empty: none so far

    @property
    def meta(self) -> dict[str, Any]:
        return self.event.meta

    @property
    def strong(self) -> list[int]:
        return [parent for kind, parent, _ in self.meta.get("edges", []) if kind in STRONG]

    def says(self, text: str) -> bool:
        """An erased one contradicts nobody."""
        return not self.event.body or self.event.body["content"] == text

    @property
    def in_review(self) -> bool:
        return self.review == "reject" or (self.held_at_write and not self.review)


@dataclass
class Opened:
    """A case. `at`: the event of its first part, so that members are from before it."""

    roots: list[int]
    members: set[int]
    joined: set[int] = field(default_factory=set)
    released: bool = False

    def __contains__(self, seq: int) -> bool:
        return seq in self.members or seq in self.joined


@dataclass
class Model:
    """One tenant, by tenant_seq."""

    memories: dict[int, Kept] = field(default_factory=dict)
    cases: dict[bytes, Opened] = field(default_factory=dict)
    parts: dict[bytes, dict[int, Event]] = field(default_factory=lambda: defaultdict(dict))
    keys: dict[bytes, int] = field(default_factory=dict)
    superseded: dict[int, int] = field(default_factory=dict)
    erased: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def held(self, seq: int) -> bool:
        return seq not in self.erased and self.kept_back(seq)

    def kept_back(self, seq: int) -> bool:
        return self.memories[seq].in_review or any(seq in c and not c.released for c in self.cases.values())

    # --- events -----------------------------------------------------------------------------------
    def take(self, e: Event) -> None:
        match e.meta["e"]:
            case "memory_written":
                self._memory(e)
            case "memory_reviewed":
                self.memories[e.meta["memory"]].review = e.meta["verdict"]
            case "case_part":
                self.parts[e.meta["case"]].setdefault(e.meta["part"], e)
            case "case_opened":
                self._opened(e)
            case "memory_erased":
                self.erased |= set(members([e.meta["deltas"]]))
            case "case_released":
                self.cases[e.meta["case"]].released = True

    def _memory(self, e: Event) -> None:
        m = e.meta
        kept = Kept(e, text_id("mem_", m["id"]), bool(m.get("holds")))
        key = m.get("idem", b"")
        if key in self.keys and key:
            self.wrong.append(f"memories {self.keys[key]} and {e.seq} have one idempotency key: a write was doubled")
        self.keys[key] = e.seq
        for kind, parent, _ in m.get("edges", []):
            if parent not in self.memories or parent >= e.seq:
                self.wrong.append(f"memory {e.seq} has a parent {parent} that isn't there")
            elif kind in JOINED:
                self._joined(e.seq, m, parent)
        strong = [p for p in kept.strong if p in self.memories]
        due = {id_ for id_, c in self.cases.items() if not c.released and any(p in c for p in strong)}
        may = {id_ for id_, c in self.cases.items() if not c.released and any(p in c for _, p, _ in m.get("edges", []))}
        named = set(m.get("cases", []))
        if due - named:
            self.wrong.append(f"memory {e.seq} derives from a held one and didn't join its case")
        if named - may:  # a copy that another accounts for has a served edge, and joins all the same
            self.wrong.append(f"memory {e.seq} joined a case that holds no parent of it")
        if any(self.memories[p].in_review for p in strong) and "parent_held" not in m.get("holds", []):
            self.wrong.append(f"memory {e.seq} derives from one in review and isn't held")
        for id_ in named & self.cases.keys():
            self.cases[id_].joined.add(e.seq)
        if m.get("supersedes"):
            self.superseded[m["supersedes"]] = e.seq
        self.memories[e.seq] = kept

    def _joined(self, seq: int, m: dict[str, Any], parent: int) -> None:
        """The labels of a child are never better than those of its parent."""
        p = self.memories[parent].meta
        worse = [f for f in ("trust", "floor", "origin") if m[f] > p[f]]
        worse += [f for f in ("class", "sens", "opt_out") if m.get(f, f == "class") < p.get(f, f == "class")]
        clauses, its = ({frozenset(c) for c in x.get("readers") or []} for x in (m, p))
        worse += ["readers"] if not its <= clauses and frozenset() not in clauses else []
        worse += ["comp"] if not set(p.get("comp", [])) <= set(m.get("comp", [])) else []
        if worse:
            self.wrong.append(f"memory {seq} is better than its parent {parent} in {', '.join(worse)}: laundered")

    def _opened(self, e: Event) -> None:
        parts = self.parts.pop(e.meta["case"], {})
        if e.meta["case"] in self.cases:
            return
        whole = members([parts[i].meta["deltas"] for i in sorted(parts)])
        if len(parts) != e.meta["parts"] or len(whole) != e.meta["count"]:
            self.wrong.append(f"the case that was sealed at event {e.seq} isn't whole")
            return
        case = self.cases[e.meta["case"]] = Opened(e.meta["roots"], set(whole))
        before = min((p.seq for p in parts.values()), default=e.seq)
        reached = self._closure(case.roots, before)
        if set(whole) - reached:
            self.wrong.append(f"the case at event {e.seq} has members that derive from no root: {sorted(set(whole) - reached)}")
        left = [s for s in reached - set(whole) if "parent_held" not in self.memories[s].meta.get("holds", [])]
        if left and not self._below_review(left):
            self.wrong.append(f"the case at event {e.seq} leaves out what derives from its roots: {sorted(left)}")

    def _below_review(self, left: list[int]) -> bool:
        """Written while the ledger had no room for the case: held for a review, or below such a one."""
        return all(self.memories[s].held_at_write for s in left)

    def _closure(self, roots: list[int], before: int) -> set[int]:
        found = set(roots)
        for seq, kept in self.memories.items():  # parents come first
            if seq < before and any(p in found for p in kept.strong):
                found.add(seq)
        return found


@dataclass
class Seen:
    """What there is to judge. `accounts`: account key → tenant. `members`: by each key that one had."""

    history: History
    streams: dict[str, dict[int, bytes]]
    accounts: dict[str, str]
    members: dict[str, Member]
    stripped: dict[int, bytes] = field(default_factory=dict)  # what stands for blocks of the ledger that lost a text
    models: dict[str, Model] = field(default_factory=lambda: defaultdict(Model))

    def counts(self) -> dict[str, int]:
        h = self.history
        return {
            "writes acknowledged": sum(w.receipt is not None for w in h.wrote),
            "writes sent": len(h.wrote),
            "recalls": len(h.asked),
            "holds": len(h.holds),
            "blocks": len(self.streams["LEDGER_0"]),
            "erasures": sum(e.wire is not None for e in h.erased),
            "copies": sum(bool(w.copied and w.receipt) for w in h.wrote),
        }


def check(seen: Seen) -> list[str]:
    """What is wrong; empty if nothing is."""
    try:
        found = read({**seen.stripped, **seen.streams["LEDGER_0"]}, seen.streams["READS_0"])
    except Broken as e:
        return [f"the streams: {e}"]
    for event in found.events:
        seen.models[seen.accounts[event.tenant]].take(event)
    wrong = [f"tenant {name}: {x}" for name, model in seen.models.items() for x in model.wrong]
    wrong += [f"the gatekeeper failed at a {x}" for x in seen.history.internal]
    wrong += _stored(seen)
    wrong += _recorded(seen, found)
    wrong += _held_is_withheld(seen)
    wrong += _laundered(seen)
    wrong += _erased(seen)
    return wrong


def _stored(seen: Seen) -> list[str]:
    """Acknowledged set = stored set, none doubled, each as it was asked for."""
    wrong = []
    asked: dict[tuple[str, str, str, str], Wrote] = {}
    for w in seen.history.wrote:
        asked[*w.by.who, w.project, w.draft.content] = w
    times = Counter[tuple[str, str, str, str]]()
    ids: dict[tuple[str, str], Kept] = {}
    told = {(w.by.tenant, w.receipt.id): w.draft.content for w in seen.history.wrote if w.receipt}
    for tenant, model in seen.models.items():
        for kept in model.memories.values():
            ids[tenant, kept.id] = kept
            if not kept.event.body and kept.event.seq not in model.erased:
                wrong.append(f"{kept.id} of {tenant} has lost its text, and nobody erased it")
            text = kept.event.body["content"] if kept.event.body else told[tenant, kept.id]
            what = (*seen.members[kept.meta["key"]].who, kept.meta["project"], text)
            times[what] += 1
            if what not in asked:
                wrong.append(f"{kept.id} of {tenant} was never asked for like that")
            elif asked[what].receipt is None:
                wrong.append(f"{kept.id} of {tenant} is stored, and its writer was told {asked[what].refused or 'nothing'}")
    wrong += [f"stored {n} times: {what[3][:40]} of {what[0]}" for what, n in times.items() if n > 1]
    for w in seen.history.wrote:
        if w.receipt is None:
            continue
        there = ids.get((w.by.tenant, w.receipt.id))
        if there is None:
            wrong.append(f"acknowledged and lost: {w.receipt.id} of {w.by.tenant}")
        elif (seen.members[there.meta["key"]].who, there.meta["project"]) != (w.by.who, w.project) or not there.says(
            w.draft.content
        ):
            wrong.append(f"{w.receipt.id} isn't what {w.by.name} of {w.by.tenant} wrote")
        elif there.event.seq != w.receipt.position or there.meta["trust"] != round(w.receipt.trust * 1000):
            wrong.append(f"the receipt of {w.receipt.id} doesn't say what is stored")
        for again in w.again:
            if again.id != w.receipt.id or not again.duplicate:
                wrong.append(f"a retry of {w.receipt.id} was answered with {again.id}")
    return wrong


def _recorded(seen: Seen, found: Read) -> list[str]:
    """Whatever a recall brought, READS has it, of that agent; and nothing is of another tenant or project."""
    wrong = []
    records = {text_id("rec_", r["recall"]): (account, r) for account, r in found.records if r["r"] == "served"}
    for a in seen.history.asked:
        if a.recall.recall_id not in records:
            wrong.append(f"recall {a.recall.recall_id} was answered and isn't in READS")
            continue
        account, record = records[a.recall.recall_id]
        model = seen.models[a.by.tenant]
        listed = {model.memories[s].id for s, _, _ in record.get("items", []) if s in model.memories}
        if account != a.by.account or record["project"] != a.project:
            wrong.append(f"recall {a.recall.recall_id} is recorded for another")
        if not set(a.recall.ids) <= listed:
            wrong.append(f"recall {a.recall.recall_id} brought what READS doesn't list")
    return wrong


def _held_is_withheld(seen: Seen) -> list[str]:
    """Nothing that is held is admitted, from the receipt of its hold on until somebody asked for its release."""
    wrong = []
    by_id = {(t, k.id): s for t, m in seen.models.items() for s, k in m.memories.items()}
    holds: dict[str, list[tuple[int, str, Opened]]] = defaultdict(list)
    for h in seen.history.holds:
        model = seen.models[h.by.tenant]
        opened = next((c for raw, c in model.cases.items() if text_id("case_", raw) == h.case.case), None)
        if opened is None:
            if h.case.state == "pending":  # in force until the gatekeeper ended, and it said that it wasn't written
                continue
            wrong.append(f"{h.case.case} of {h.by.tenant} was acknowledged ({h.case.state}) and isn't in the ledger")
            continue
        if by_id.get((h.by.tenant, h.root)) not in opened.roots:
            wrong.append(f"{h.case.case} doesn't hold what was asked for")
        holds[h.by.tenant].append((h.wire, h.case.case, opened))
    let_go = {(x.by.tenant, x.case or x.memory): x for x in reversed(seen.history.let_go) if x.case or x.accepted}
    for a in seen.history.asked:
        tenant, model = a.by.tenant, seen.models[a.by.tenant]
        for id_ in a.recall.ids:
            seq = by_id.get((tenant, id_))
            if seq is None:
                wrong.append(f"recall {a.recall.recall_id} of {tenant} brought {id_}, which isn't stored there")
                continue
            for wire, case, opened in holds[tenant]:
                freed = let_go.get((tenant, case))
                if wire < a.wire and seq in opened and not (freed and freed.sent_wire < a.wire):
                    wrong.append(f"{id_} of {tenant} was admitted {a.wire - wire} messages after the receipt of {case}")
            freed = let_go.get((tenant, id_))
            if model.memories[seq].held_at_write and not (freed and freed.sent_wire < a.wire):
                wrong.append(f"{id_} of {tenant} was admitted, although it was held at its write and nobody accepted it")
    return wrong + _at_the_end(seen, by_id)


def _at_the_end(seen: Seen, by_id: dict[tuple[str, str], int]) -> list[str]:
    """When all is calm, what is held is what cases and reviews say: a release removed its own holds, and no others."""
    wrong = []
    for a in seen.history.asked:
        if a.probe is None:
            continue
        model = seen.models[a.by.tenant]
        held = [id_ for id_ in a.probe if model.held(by_id[a.by.tenant, id_])]
        if a.recall.withheld.get("held", 0) != len(held):
            wrong.append(f"{a.by.name} of {a.by.tenant} is told of {a.recall.withheld.get('held', 0)} held, {len(held)} are")
        if set(held) & set(a.recall.ids):
            wrong.append(f"{a.by.name} of {a.by.tenant} is served what is held")
    return wrong


def _laundered(seen: Seen) -> list[str]:
    """Who wrote after a recall has no better floor than what it was served, and who repeats a text no more trust than it had."""
    wrong = []
    heard: dict[tuple[str, str], list[Asked]] = defaultdict(list)
    for a in seen.history.asked:
        heard[a.by.who].append(a)
    for w in seen.history.wrote:
        if w.receipt is None:
            continue
        model = seen.models[w.by.tenant]
        ids = {k.id: k for k in model.memories.values()}
        mine = ids.get(w.receipt.id)
        if mine is None:
            continue
        for a in heard[w.by.who]:
            if a.told_s > w.sent_s or _shed_between(seen.history, w.by, a.sent_s, w.told_s):
                continue
            for item in a.recall.admitted:
                its = ids[item.memory.id].meta
                if mine.meta["floor"] > min(its["trust"], its["floor"]):
                    wrong.append(f"{mine.id} has the floor {mine.meta['floor']}, after a recall of {item.memory.id}: laundered")
                gone = any(e.memory == w.copied and e.sent_s < w.told_s for e in seen.history.erased)  # and unknown since
                if w.copied == item.memory.id and mine.meta["trust"] > its["trust"] and not gone:
                    wrong.append(f"{mine.id} repeats {w.copied} and has more trust: laundered")
    return list(dict.fromkeys(wrong))


def _erased(seen: Seen) -> list[str]:
    """What is erased was to be; from its receipt on nobody is served it, its text is in no stream, and who asks is told."""
    wrong = []
    wanted = {(e.by.tenant, e.memory) for e in seen.history.erased}
    done = {(e.by.tenant, e.memory): e.wire for e in seen.history.erased if e.wire is not None}
    gone = {(name, model.memories[seq].id) for name, model in seen.models.items() for seq in model.erased}
    wrong += [f"{id_} of {tenant} was erased, and nobody asked for it" for tenant, id_ in gone - wanted]
    wrong += [f"the erasure of {id_} of {tenant} was acknowledged and isn't in the ledger" for tenant, id_ in done.keys() - gone]
    for a in seen.history.asked:
        for id_ in a.recall.ids:
            if done.get((a.by.tenant, id_), a.wire) < a.wire:
                wrong.append(f"{id_} of {a.by.tenant} was admitted after the receipt of its erasure")
        if a.probe is not None:
            known = [id_ for id_ in a.probe if (a.by.tenant, id_) in gone]
            if a.recall.withheld.get("erased", 0) != len(known):
                wrong.append(f"{a.by.name} is told of {a.recall.withheld.get('erased', 0)} erased, {len(known)} are")
    return wrong + texts_left(seen.history, {n: b"".join(s.values()) for n, s in seen.streams.items()})


def texts_left(history: History, places: dict[str, bytes]) -> list[str]:
    """Where erased texts still are. One that somebody repeats in a memory of his own isn't looked for: that one stays."""
    erased = {(e.by.tenant, e.memory) for e in history.erased if e.wire is not None}
    texts = [w.draft.content for w in history.wrote if w.receipt and (w.by.tenant, w.receipt.id) in erased]
    others = [w.draft.content for w in history.wrote]
    alone = [text.encode() for text in texts if sum(text in other for other in others) == 1]
    return [f"an erased text is left in {name}: {text[:40]!r}" for text in alone for name, data in places.items() if text in data]


def _shed_between(history: History, by: Member, from_s: float, to_s: float) -> bool:
    return any((s.by is None or s.by.who == by.who) and s.from_s <= to_s and s.to_s >= from_s for s in history.shed)
