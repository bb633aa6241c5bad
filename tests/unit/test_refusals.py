"""Refusals are typed, worded, raised somewhere, tried by some test and documented; so are frames, limits, subjects and keys."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from broker_config.roles import ROLES
from bus import errors, frames, limits, subjects
from bus.frames import Draft, Query, Refusal, decode_reply, encode, raise_refusal
from gate import rights
from gate.refusals import TABLE, Refused

ROOT = Path(__file__).parents[2]
WIRE = (ROOT / "docs/wire.md").read_text()

# Codes whose situation no test in this process or at the rim can make without reaching into the gatekeeper, and why.
NOT_TRIED = {
    "internal": "a bug; the rim tests assert that it never comes",
    "integrity_alarm": "a bug; the rim tests assert that it never comes",
    "store_behind": "the lineage store 5 s behind",
    "stopping": "a request in the moment of a stop",
    "starting": "a request in the moment of a start",
    "ledger_unreachable": "a broker that lives and whose ledger confirms nothing for the lease's 5 s",
    "ledger_full": "a ledger of 9 GiB; the committer's own tests fill a small one",
    "reads_full": "10 GiB of reads; the committer's own tests fill a small one",
    "id_ambiguous": "two ids with 40 equal random bits",
    "nothing_to_review": "covered by its neighbour in test_containment, which names the sentence",
    "case_pending": "a release while the hold's outcome is unknown",
}


def strings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def raised() -> set[str]:
    """Every code that stands in the first argument of a `Refused(…)`."""
    found: set[str] = set()
    for path in (ROOT / "gate").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Refused":
                codes = {x.value for x in ast.walk(node.args[0]) if isinstance(x, ast.Constant) and isinstance(x.value, str)}
                assert codes & TABLE.keys(), f"{path.name}:{node.lineno} names no code"
                found |= codes & TABLE.keys()
    return found


def test_every_code_is_raised_somewhere_and_every_raised_one_is_in_the_table() -> None:
    assert raised() == set(TABLE)


def test_every_code_is_tried_by_a_test_or_listed_with_the_reason_why_not() -> None:
    named = {s for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__) for s in strings(path)}
    assert {code for code in TABLE if code not in named} <= NOT_TRIED.keys()
    assert NOT_TRIED.keys() <= TABLE.keys()


@pytest.mark.parametrize("code", TABLE)
def test_a_refusal_says_what_happened_and_what_to_do_and_becomes_its_error(code: str) -> None:
    wording = TABLE[code]
    refusal = decode_reply(encode(Refused(code, field="f", limit=3, detail={"a": 1}).frame("r", "key", "p")))
    assert isinstance(refusal, Refusal)
    assert (refusal.request_id, refusal.agent, refusal.project) == ("r", "key", "p")
    assert (refusal.error, refusal.reason, refusal.reasons, refusal.field, refusal.limit) == (wording.error, code, [code], "f", 3)
    for text in (refusal.message, refusal.advice):
        assert text.endswith(".")
        assert text[0].isupper() or text[0] in "`v"
        assert "{" not in text
    assert (wording.retry_after_s is not None) == (wording.error in ("unavailable", "internal")), "only what passes is retried"
    error = raise_refusal(refusal, Draft)
    kind = {
        "rejected": errors.WriteRejected, "conflict": errors.Conflict, "denied": errors.Denied,
        "malformed": errors.MalformedFrame, "unavailable": errors.Unavailable, "internal": errors.Unavailable,
    }[wording.error]  # fmt: skip
    assert type(error) is kind
    assert error.reason == code
    assert type(raise_refusal(refusal, Query)) in (kind, errors.Rejected)


# --- the wire contract ------------------------------------------------------------------------------------
def rows(heading: str) -> list[list[str]]:
    """The cells of the tables under a heading of docs/wire.md, without their head lines."""
    part = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", WIRE, re.MULTILINE | re.DOTALL)
    assert part is not None, heading
    lines = [line for line in part[1].splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def code(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def test_the_contract_lists_every_refusal_with_its_class_and_words() -> None:
    listed = {cells[0].strip("`"): cells[1:] for cells in rows("Refusals")}
    assert listed == {name: [w.error, w.message, w.advice] for name, w in TABLE.items()}


def test_the_contract_lists_every_field_of_every_frame() -> None:
    listed = {cells[0].strip("`"): code(" ".join(cells[1:])) for cells in rows("Frames")}
    known: list[type[msgspec.Struct]] = [
        *(x for x in vars(frames).values() if isinstance(x, type) and issubclass(x, frames.Frame)),
        frames.Actor, frames.Redaction, frames.Lineage, frames.Memory, frames.Item, frames.Member, frames.Edge,
        frames.Store,
    ]  # fmt: skip
    for struct in known:
        if struct in (frames.Frame, frames.Answer) or struct.__name__.startswith("Adm"):
            continue
        name = struct.__struct_config__.tag or struct.__name__.lower()
        common = {"v", "request_id"} | ({"agent", "project"} if issubclass(struct, frames.Answer) else set())
        fields = {f.encode_name for f in msgspec.structs.fields(struct)}
        missing = (fields - common if issubclass(struct, frames.Frame) else fields) - listed.get(str(name), set())
        assert not missing, f"docs/wire.md says nothing of {name}.{sorted(missing)}"


def test_the_contract_lists_every_value_of_every_enumeration() -> None:
    listed = {cells[0].strip("`"): code(cells[1]) for cells in rows("Values")}
    assert listed == {
        "kind": set(frames.KINDS), "scope": set(frames.SCOPES), "origin": set(frames.ORIGINS), "method": set(frames.METHODS),
        "sensitivity": set(frames.SENSITIVITIES), "classification": set(frames.CLASSIFICATIONS),
        "task_state": set(frames.TASK_STATES), "intent": set(frames.INTENTS), "tool_risk": set(frames.RISKS),
        "decision": set(frames.DECISIONS), "surface": {"natural", "tentative", "background", "suppressed"},
        "state": {"active", "held", "retracted", "expired", "superseded", "erased"},
    }  # fmt: skip


def test_the_contract_names_every_limit_with_its_number() -> None:
    listed = {cells[0].strip("`"): cells[1].replace(",", "") for cells in rows("Limits")}
    wire = {
        n: v for n, v in vars(limits).items() if n.endswith("_MAX") and n not in ("PENDING_BYTES_MAX", "EDGES_PER_MEMORY_MAX")
    }
    assert listed == {name: str(value) for name, value in wire.items()}


def test_the_contract_names_every_verb_and_says_which_are_served() -> None:
    said = {cells[0].strip("`"): cells for cells in rows("Verbs")}
    served = rights.served("mem") | rights.served("ops")
    assert said.keys() == {*subjects.MEMORY_VERBS, *subjects.OPS_VERBS}
    for verb, cells in said.items():
        assert (cells[2] == "yes") == (verb in served), verb
        if verb in served:
            requests = [f for f, v in frames.VERB_OF.items() if v == verb and not f.__name__.startswith("Adm")]
            assert code(cells[3]) == {str(request.__struct_config__.tag) for request in requests}


def test_the_contract_names_every_role_with_what_its_key_grants() -> None:
    listed = {cells[0].strip("`"): cells for cells in rows("Keys")}
    assert listed.keys() == ROLES.keys()
    for name, role in ROLES.items():
        _, origin, highest, memory, ops, feed, notice = listed[name]
        assert origin.strip("`") == (role.origin or "none")
        assert highest.strip("`") == role.classification
        assert (code(memory) or {memory}) == ({"all"} if role.memory is None else set(role.memory) or {"none"})
        assert (code(ops) or {ops}) == ({"all"} if role.ops is None else set(role.ops) or {"none"})
        assert (feed, notice) == tuple("yes" if x else "no" for x in (role.feed, role.notice))
