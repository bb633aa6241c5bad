"""Reaching a project by a tag, a sharing, a setting or a membership that doesn't give it, and after it has ended."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from nats.errors import Error as NatsError

import bus
from broker_config.control import Control
from bus import subjects
from bus.errors import CordonError
from bus.frames import AdmProject, encode
from bus.identity import parse_creds

from ..rooms import ALL
from ..scenes import add_project
from .arena import ANSWER_S, KEEP, MISSING, OURS, SIEGE, Arena, Peer, fact, ids

_fresh = itertools.count()
QUESTION: Final = "which colour has the ferry of the lake?"


async def change(arena: Arena, name: str, action: str, **fields: Any) -> dict[str, Any]:
    """One request of the home's control plane on a project of ours."""
    frame = AdmProject(action=action, account=arena.account[OURS], name=name, message="tried", **fields)  # type: ignore[arg-type]
    answer = await arena.admin.request(subjects.admin(0, "project", arena.admin_key), encode(frame), timeout=ANSWER_S)
    decoded: dict[str, Any] = json.loads(answer.data)
    return decoded


async def done(arena: Arena, name: str, action: str, **fields: Any) -> dict[str, Any]:
    answer = await change(arena, name, action, **fields)
    assert answer["type"] == "done", answer
    result: dict[str, Any] = answer["result"]
    return result


class Pair:
    """A project that lends, one that borrows, and who is in them. Its parts have fresh names in each test."""

    lender: str
    borrower: str

    def __init__(self, arena: Arena, people: dict[str, Peer]) -> None:
        self.arena, self.people = arena, people

    def __getitem__(self, name: str) -> Peer:
        return self.people[name]


@asynccontextmanager
async def pair(arena: Arena, shared: bool = True, **settings: Any) -> AsyncIterator[Pair]:
    """`owner` and `clerk` (an operator) of the lender, `reader` and `desk` (an operator) of the borrower, `both` of the two."""
    n = next(_fresh)
    lender, borrower = f"lender{n}", f"borrower{n}"
    for name in (lender, borrower):
        await add_project(arena.world, name, **settings)
    people: dict[str, Peer] = {}
    for name, projects, more in (
        ("owner", (lender,), {"see": ALL}), ("clerk", (lender,), {"role": "operator", "see": ALL}),
        ("reader", (borrower,), {"see": ALL}), ("desk", (borrower,), {"role": "operator", "see": ALL}),
        ("both", (lender, borrower), {"see": ALL}),
    ):  # fmt: skip
        people[name] = await arena.join(await arena.world.add(f"{name}-{n}", *projects, **more))
    made = Pair(arena, people)
    made.lender, made.borrower = lender, borrower
    if shared:
        await done(arena, lender, "share", others=[borrower])
    try:
        yield made
    finally:
        for peer in people.values():
            await peer.nc.close()


# --- a tag outside of membership ------------------------------------------------------------------------
@pytest.mark.parametrize("verb", ["write", "query", "get", "sync", "ack"])
def test_a_tag_grants_nothing_outside_of_membership(arena: Arena, verb: str) -> None:
    """Whoever holds a role's key can sign `project:keep` for an agent that the ledger has in siege alone."""
    frames: dict[str, dict[str, Any]] = {
        "write": {"type": "draft", "content": "mine now"}, "query": {"type": "query", "text": "portcullis"},
        "get": {"type": "get", "ids": [arena.hidden["another project"]]}, "sync": {}, "ack": {"notices": ["case_x.recall"]},
    }  # fmt: skip

    async def attack() -> None:
        async with arena.minted(f"tenant:{OURS}", f"project:{SIEGE}", f"project:{KEEP}", "see:internal") as peer:
            answer = await peer.ask(verb, frames[verb], project=KEEP)
            assert (answer["type"], answer.get("reason")) == ("refusal", "project_unknown")
            assert answer["detail"] == {"nearest": SIEGE}
            assert arena.note in ids(await peer.query("when is the portcullis greased?"))

    arena.run(attack())


@pytest.mark.parametrize("verb", ["why", "trace", "hold"])
def test_an_operator_s_tag_grants_nothing_outside_of_membership(arena: Arena, verb: str) -> None:
    async def attack() -> None:
        async with arena.minted(f"project:{SIEGE}", f"project:{KEEP}", "see:internal", role="operator") as peer:

            async def said(wanted: str) -> str:
                named = {"selector": [wanted], "dry_run": True} if verb == "hold" else {"id": wanted}
                return fact(await peer.operate(verb, {"type": verb, **named}))

            assert await said(arena.hidden["another project"]) == await said(MISSING)
            assert arena.note in await said(arena.note)

    arena.run(attack())


def test_who_leaves_a_project_reads_and_writes_nothing_more_there_and_keeps_its_labels(arena: Arena) -> None:
    async def attack() -> None:
        async with pair(arena, shared=False) as p:
            both, owner = p["both"], p["owner"]
            secret = await owner.write("The ferry of the lake is painted cornflower blue", p.lender)
            mine = await both.write("The ferryman of the lake is called Osric", p.lender)
            assert secret["id"] in ids(await both.query(QUESTION, p.lender))
            await done(arena, p.lender, "leave", agent=both.credential.name)  # its credential still has it
            for verb, frame in (("query", {"text": "ferry"}), ("get", {"ids": [mine["id"]]}), ("write", {"content": "x"})):
                kind = "draft" if verb == "write" else verb
                answer = await both.ask(verb, {"type": kind, **frame}, p.lender)
                assert (answer["type"], answer.get("reason")) == ("refusal", "project_unknown")
            told = await both.write("The ferry of the lake is painted cornflower blue", p.borrower)
            assert told["state"] == "held"
            assert f"flow_down:project:{p.lender}" in told["reasons"]
            assert ids(await owner.get(mine["id"], project=p.lender)) == [mine["id"]], "what it wrote stays the project's"

    arena.run(attack())


def test_a_member_that_is_removed_is_cut_and_its_new_credential_lacks_the_project(arena: Arena) -> None:
    async def attack() -> None:
        async with pair(arena, shared=False) as p:
            both = p["both"]
            async with Control(arena.world.home) as control:
                out = await control.projects.member_remove(OURS, p.lender, both.credential.name, message="left the team")
                assert p.lender not in (await control.agent_show(OURS, both.credential.name))["projects"]
            assert both.credential.name not in out["members"]
            with pytest.raises(NatsError):
                await arena.reconnect(both)
            async with arena.world.agent(both.credential.name, p.borrower) as memory:
                assert (await memory.write("Still here")).state == "active"
                with pytest.raises(CordonError):
                    await memory.query("ferry", project=p.lender)
            follower = await arena.join(parse_creds(Path(arena.world.creds(both.credential.name)).read_text()))
            assert not await follower.may_subscribe(f"feed.{OURS}.{p.lender}.internal.>")
            assert await follower.may_subscribe(f"feed.{OURS}.{p.borrower}.internal.>")
            await follower.nc.close()

    arena.run(attack())


@pytest.mark.parametrize("who", ["a child", "an agent whose credential file is elsewhere"])
def test_a_member_that_is_removed_and_cannot_be_given_a_new_credential_is_cut_with_its_children(arena: Arena, who: str) -> None:
    async def attack() -> None:
        async with pair(arena, shared=False) as p:
            both = p["both"].credential.name
            creds = Path(arena.world.creds(both))
            async with arena.world.agent(both, p.lender) as memory:
                child = await memory.delegate("kid", verbs=["query", "delegate"])
            async with bus.connect(arena.world.home.url, child.creds, project=p.lender) as memory:
                last = await memory.delegate("kid", verbs=["query"])
            peers = [await arena.join(parse_creds(x.creds)) for x in (child, last)]
            assert all([await peer.may_subscribe(f"feed.{OURS}.{p.lender}.internal.>") for peer in peers])
            if who != "a child":
                creds.rename(creds.with_suffix(".elsewhere"))
            name = child.name if who == "a child" else both
            async with Control(arena.world.home) as control:
                out = await control.projects.member_remove(OURS, p.lender, name, message="left the team")
            assert (out["creds"], name in out["members"]) == ("", False)
            for peer in peers:
                with pytest.raises(NatsError):
                    await arena.reconnect(peer)

    arena.run(attack())


# --- what a sharing lends -------------------------------------------------------------------------------
KEPT_BACK: Final[dict[str, dict[str, Any]]] = {
    "restricted": {"classification": "restricted"},
    "of a user": {"scope": "user", "scope_id": "ann"},
    "of a task": {"scope": "task", "task": "t"},
    "operational": {"scope": "operational"},
    "for readers": {"readers": [["role:agent"]]},
    "opted out": {"opt_out": True},
}
LOOSENED: Final[dict[str, dict[str, Any]]] = {
    "as it comes": {},
    "shadow, no gate, every flow": {"mode": "shadow", "gate": "off", "classification_max": "restricted", "context_idle_hours": 0},
}


@pytest.mark.parametrize("settings", LOOSENED)
def test_a_shared_project_lends_nothing_but_plain_memories(arena: Arena, settings: str) -> None:
    async def attack() -> None:
        async with pair(arena, **LOOSENED[settings]) as p:
            for name, other in ((p.lender, p.borrower), (p.borrower, p.lender)):
                await done(arena, name, "set", settings={"flow_from": [other], "flow_to": [other]})
            owner, reader = p["owner"], p["reader"]
            plain = await owner.write("The ferry of the lake is green", p.lender)
            asked: tuple[dict[str, Any], ...] = (
                {}, {"filters": {"agent": [owner.credential.name]}},
                {"user": "ann", "task": "t", "filters": {"scope": ["project", "user", "task", "operational"]}},
            )  # fmt: skip
            for kind, fields in KEPT_BACK.items():
                kept = await owner.write(f"The ferry of the lake is secretly {kind}", p.lender, **fields)
                for question in asked:
                    recall = await reader.query(QUESTION, p.borrower, **question)
                    assert (ids(recall), recall["withheld"]) == ([plain["id"]], {}), kind
                    assert recall["admitted"][0]["memory"]["project"] == p.lender
                for wanted in (kept["id"], kept["id"][-8:]):
                    answer = await reader.get(wanted, plain["id"], project=p.borrower)
                    assert (ids(answer), answer["withheld"]) == ([plain["id"]], {}), kind
                for field in ("derived_from", "supersedes"):
                    named: list[Any] = [x if field == "supersedes" else [x] for x in (kept["id"], MISSING)]
                    said = [
                        fact(await reader.ask("write", {"type": "draft", "content": "c", field: x}, p.borrower)) for x in named
                    ]
                    assert said[0] == said[1], kind

    arena.run(attack())


def test_a_shared_project_lends_nothing_of_a_third_one(arena: Arena) -> None:
    async def attack() -> None:
        async with pair(arena) as p, pair(arena) as q:
            plain = await p["owner"].write("Grebes nest in the reeds", p.lender)
            await done(arena, q.lender, "set", settings={"flow_to": [p.lender]})
            await done(arena, p.lender, "set", settings={"flow_from": [q.lender]})
            await done(arena, p.lender, "join", agent=q["owner"].credential.name)
            async with Control(arena.world.home) as control:
                await control.agent_rotate(OURS, q["owner"].credential.name)
            async with arena.world.agent(q["owner"].credential.name, q.lender) as memory:
                source = await memory.write("The ferry of the lake is amber on feast days")
                assert source.id in (await memory.query(QUESTION)).ids
                copy = await memory.write("The ferry of the lake is amber on feast days", project=p.lender)
            assert (copy.state, copy.parents) == ("active", [source.id]), "the flow is allowed, into the lender"
            assert copy.id in ids(await p["owner"].query(QUESTION, p.lender))
            assert copy.id not in ids(await p["reader"].query(QUESTION, p.borrower))
            assert ids(await p["reader"].get(copy.id, source.id, plain["id"], project=p.borrower)) == [plain["id"]]

    arena.run(attack())


def test_a_sharing_goes_one_way_and_one_step(arena: Arena) -> None:
    async def attack() -> None:
        async with pair(arena) as p, pair(arena, shared=False) as q:
            await done(arena, p.borrower, "share", others=[q.borrower])
            lent = await p["owner"].write("The ferry of the lake is white", p.lender)
            own = await p["reader"].write("The ferry of the lake is moored in the north", p.borrower)
            assert set(ids(await p["reader"].query(QUESTION, p.borrower))) == {lent["id"], own["id"]}
            assert ids(await p["owner"].query(QUESTION, p.lender)) == [lent["id"]]
            assert ids(await q["reader"].query(QUESTION, q.borrower)) == [own["id"]]
            assert ids(await q["reader"].get(lent["id"], project=q.borrower)) == []

    arena.run(attack())


def test_what_was_lent_carries_its_project_into_what_is_written_from_it(arena: Arena) -> None:
    async def attack() -> None:
        async with pair(arena) as p:
            reader = p["reader"]
            lent = await p["owner"].write("The ferry of the lake has the number 4471-9983", p.lender)
            assert ids(await reader.query("which number has the ferry of the lake?", p.borrower)) == [lent["id"]]
            copy = await reader.write("The ferry of the lake has the number 4471-9983", p.borrower)
            assert (copy["state"], copy["parents"]) == ("held", [lent["id"]])
            assert f"flow_down:project:{p.lender}" in copy["reasons"]
            await done(arena, p.lender, "set", settings={"flow_to": [p.borrower]})
            await done(arena, p.borrower, "set", settings={"flow_from": [p.lender]})
            again = await reader.write("The ferry of the lake bears the number 4471-9983", p.borrower)
            assert (again["state"], again["parents"][:1]) == ("active", [lent["id"]])

    arena.run(attack())


@pytest.mark.parametrize("end", ["unshare", "delete"])
def test_a_sharing_that_ends_lends_nothing_from_then_on(arena: Arena, end: str) -> None:
    async def attack() -> None:
        async with pair(arena) as p:
            reader = p["reader"]
            lent = await p["owner"].write("The ferry of the lake is black", p.lender)
            assert ids(await reader.query(QUESTION, p.borrower)) == [lent["id"]]
            await done(arena, p.lender, end, **({"others": [p.borrower]} if end == "unshare" else {}))
            assert ids(await reader.query(QUESTION, p.borrower)) == []
            assert (await reader.get(lent["id"], project=p.borrower))["withheld"] == {}
            copy = await reader.write("The ferry of the lake is black", p.borrower)
            assert copy["state"] == "held", "its context still has the label"

    arena.run(attack())


def test_no_answer_is_under_way_past_the_end_of_a_sharing(arena: Arena) -> None:
    async def attack() -> None:
        async with pair(arena) as p:
            reader = p["reader"]
            lent = await p["owner"].write("The ferry of the lake is violet", p.lender)
            asked = [asyncio.create_task(reader.query(QUESTION, p.borrower)) for _ in range(32)]
            ended = asyncio.create_task(done(arena, p.lender, "unshare", others=[p.borrower]))
            recalls = await asyncio.gather(*asked)  # each is a recall: none is an alarm
            await ended
            assert all(ids(recall) in ([], [lent["id"]]) for recall in recalls)
            assert ids(await reader.query(QUESTION, p.borrower)) == []

    arena.run(attack())


def test_a_sharing_gives_no_feed_and_no_operator_s_rights(arena: Arena) -> None:
    async def attack() -> None:
        async with pair(arena) as p:
            reader, desk, clerk = p["reader"], p["desk"], p["clerk"]
            lent = await p["owner"].write("The ferry of the lake is grey", p.lender)
            assert not await reader.may_subscribe(f"feed.{OURS}.{p.lender}.internal.>")
            assert await reader.may_subscribe(f"feed.{OURS}.{p.borrower}.internal.>")
            for frame in ({"type": "why", "id": lent["id"]}, {"type": "trace", "id": lent["id"]}):
                answer = await desk.operate(frame["type"], frame)
                assert (answer["type"], answer.get("reason")) == ("refusal", "memory_unknown")
                assert (await clerk.operate(frame["type"], frame))["type"] == f"{frame['type']}_answer"

    arena.run(attack())


def test_a_lender_s_operator_is_told_that_it_was_read_elsewhere_and_not_by_whom(arena: Arena) -> None:
    async def attack() -> None:
        async with pair(arena) as p:
            lent = await p["owner"].write("The ferry of the lake is silver", p.lender)
            own = await p["reader"].write("The ferry of the lake is slow", p.borrower)
            recall = await p["reader"].query(QUESTION, p.borrower)
            assert set(ids(recall)) == {lent["id"], own["id"]}
            why = await p["clerk"].operate("why", {"type": "why", "id": lent["id"]})
            assert [(r["elsewhere"], r["agent"], r["project"], r["recall"]) for r in why["reads"]] == [(True, "", "", "")]
            explained = await p["clerk"].operate("why", {"type": "why", "id": recall["recall_id"]})
            assert [r["memory"] for r in explained["reads"]] == [lent["id"]]
            assert explained["facts"] == {"decided": 1, "served": 1, "elsewhere": 0}
            theirs = await p["desk"].operate("why", {"type": "why", "id": recall["recall_id"]})
            assert ([r["memory"] for r in theirs["reads"]], theirs["facts"]["elsewhere"]) == ([own["id"]], 1)

    arena.run(attack())


def test_a_recall_of_another_project_is_unknown_to_an_operator(arena: Arena) -> None:
    async def attack() -> None:
        recall = await arena["keeper"].query("when is keep's portcullis greased?", KEEP)
        named = (recall["recall_id"], "rec_" + "0" * 26)
        said = [fact(await arena["operator"].operate("why", {"type": "why", "id": x})) for x in named]
        assert said[0] == said[1]
        assert json.loads(said[0])["reason"] == "recall_unknown"
        known = await arena["operator-keep"].operate("why", {"type": "why", "id": recall["recall_id"]})
        assert known["facts"]["served"] == len(recall["admitted"])

    arena.run(attack())


def test_an_operator_is_not_told_the_name_of_a_project_that_a_text_came_from(arena: Arena) -> None:
    async def attack() -> None:
        async with pair(arena, shared=False) as p:
            both = p["both"]
            secret = await p["owner"].write("The ferry of the lake has the number 7719-2206", p.lender)
            assert ids(await both.query("which number has the ferry of the lake?", p.lender)) == [secret["id"]]
            copy = await both.write("The ferry of the lake has the number 7719-2206", p.borrower)
            assert f"flow_down:project:{p.lender}" in copy["reasons"]
            why = await p["desk"].operate("why", {"type": "why", "id": copy["id"]})
            assert p.lender not in json.dumps(why)
            assert "flow_down:elsewhere" in why["facts"]["holds"]
            assert why["facts"]["compartments"] == [f"project:{p.borrower}"]
            assert (why["facts"]["compartments_elsewhere"], why["parents"]) == (1, [])

    arena.run(attack())


# --- archived, deleted, for some roles alone --------------------------------------------------------------
def test_an_archived_project_is_read_and_held_and_not_written(arena: Arena) -> None:
    async def attack() -> None:
        async with pair(arena) as p:
            owner, clerk = p["owner"], p["clerk"]
            note = await owner.write("The ferry of the lake is brown", p.lender)
            await done(arena, p.lender, "archive")
            answer = await owner.ask("write", {"type": "draft", "content": "one more"}, p.lender)
            assert (answer["type"], answer.get("reason"), answer.get("error")) == ("refusal", "project_archived", "denied")
            assert ids(await owner.query(QUESTION, p.lender)) == [note["id"]]
            assert ids(await p["reader"].query(QUESTION, p.borrower)) == [note["id"]], "and what it lends"
            case = await clerk.operate("hold", {"type": "hold", "selector": [note["id"]], "now": True, "message": "check"})
            assert (await owner.query(QUESTION, p.lender))["withheld"] == {"held": 1}
            assert (await clerk.operate("release", {"type": "release", "case": case["case"], "message": "ok"}))["type"] == "case"
            await done(arena, p.lender, "restore")
            assert (await owner.write("One more", p.lender))["state"] == "active"

    arena.run(attack())


def test_a_deleted_project_is_read_by_no_agent_on_any_path_and_still_traced_and_held(arena: Arena) -> None:
    async def attack() -> None:
        async with pair(arena) as p:
            owner, clerk, both = p["owner"], p["clerk"], p["both"]
            note = await owner.write("The ferry of the lake is pink and numbered 5512-8890", p.lender)
            child = await owner.write("Pink is the ferry", p.lender, derived_from=[note["id"]])
            assert note["id"] in ids(await both.query(QUESTION, p.lender))
            await done(arena, p.lender, "delete")
            frames: tuple[tuple[str, dict[str, Any]], ...] = (
                ("query", {"type": "query", "text": "ferry"}), ("get", {"type": "get", "ids": [note["id"]]}),
                ("write", {"type": "draft", "content": "x"}), ("sync", {}), ("ack", {"notices": ["case_x.recall"]}),
            )  # fmt: skip
            for verb, frame in frames:
                for peer in (owner, clerk) if verb == "get" else (owner,):
                    answer = await peer.ask(verb, frame, p.lender)
                    assert (answer["type"], answer.get("reason")) == ("refusal", "project_deleted"), verb
            assert ids(await both.get(note["id"], project=p.borrower)) == []
            copy = await both.write("The ferry of the lake is pink and numbered 5512-8890", p.borrower)
            assert (copy["state"], copy["parents"][0]) == ("held", note["id"])
            trace = await clerk.operate("trace", {"type": "trace", "id": note["id"]})
            assert trace["count"] == 3
            case = await clerk.operate("hold", {"type": "hold", "selector": [note["id"]], "now": True, "message": "check"})
            assert (case["count"], case["elsewhere"]) == (3, 1)
            assert child["id"] in [m["id"] for m in case["members"]]
            again = await change(arena, p.lender, "add")
            assert (again["type"], again.get("reason")) == ("refusal", "name_taken")
            for action in ("archive", "restore", "share", "set", "join"):
                answer = await change(arena, p.lender, action, others=[p.borrower], agent="keeper")
                assert (answer["type"], answer.get("reason")) == ("refusal", "project_deleted"), action
            assert (await both.write("The borrower goes on", p.borrower))["type"] == "receipt"

    arena.run(attack())


def test_a_project_with_an_audience_is_read_by_its_roles_alone(arena: Arena) -> None:
    async def attack() -> None:
        async with pair(arena) as p:
            owner, clerk, reader = p["owner"], p["clerk"], p["reader"]
            note = await owner.write("The ferry of the lake is turquoise", p.lender)
            assert ids(await clerk.get(note["id"], project=p.lender)) == [note["id"]]
            await done(arena, p.lender, "set", settings={"audience": ["user_session"]})
            for peer, verb, frame in (
                (owner, "query", {"type": "query", "text": "ferry"}), (owner, "get", {"type": "get", "ids": [note["id"]]}),
                (clerk, "get", {"type": "get", "ids": [note["id"]]}),
            ):  # fmt: skip
                answer = await peer.ask(verb, frame, p.lender)
                assert (answer["type"], answer.get("reason")) == ("refusal", "not_in_audience")
            assert ids(await reader.query(QUESTION, p.borrower)) == []
            assert ids(await reader.get(note["id"], project=p.borrower)) == []
            assert (await owner.write("Grebes nest in the reeds", p.lender))["state"] == "active"
            await done(arena, p.lender, "set", settings={"audience": ["agent"]})
            assert note["id"] in ids(await reader.query(QUESTION, p.borrower))
            assert (await clerk.ask("get", {"type": "get", "ids": [note["id"]]}, p.lender))["reason"] == "not_in_audience"

    arena.run(attack())


WRONG: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "no reason": ("archive", {"message": " "}, "message_missing"),
    "an unknown state": ("set", {"settings": {"state": "deleted"}}, "bad_field"),
    "an unknown role": ("set", {"settings": {"audience": ["admin"]}}, "bad_field"),
    "itself": ("share", {"others": ["SELF"]}, "bad_field"),
    "nobody": ("share", {"others": []}, "bad_field"),
    "an unknown project": ("share", {"others": ["sieg"]}, "project_unknown"),
    "everybody": ("share", {"others": ["*"]}, "project_unknown"),
    "an unknown agent": ("join", {"agent": "nobody"}, "agent_unknown"),
    "an agent of another tenant": ("join", {"agent": "twin"}, "agent_unknown"),
    "a name for itself": ("set", {"by": "Root <x>"}, "bad_field"),
    "a display name that turns the line": ("set", {"display": "a\u202eb"}, "bidi_control"),
    "a long display name": ("set", {"display": "x" * 129}, "too_long"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_change_of_a_project_that_is_wrong_changes_nothing(arena: Arena, what: str) -> None:
    async def attack() -> None:
        action, fields, reason = WRONG[what]
        before = await done(arena, SIEGE, "show")
        given = json.loads(json.dumps(fields).replace("SELF", SIEGE))
        frame = {
            "type": "adm_project",
            "action": action,
            "account": arena.account[OURS],
            "name": SIEGE,
            "message": "why",
            **given,
        }
        subject = subjects.admin(0, "project", arena.admin_key)
        answer = json.loads((await arena.admin.request(subject, json.dumps(frame).encode(), timeout=ANSWER_S)).data)
        assert (answer["type"], answer.get("reason")) == ("refusal", reason), answer
        if reason == "project_unknown" and fields["others"] == ["sieg"]:
            assert answer["detail"] == {"nearest": SIEGE}
        assert await done(arena, SIEGE, "show") == before

    arena.run(attack())


def test_a_project_is_shared_with_a_bounded_number_of_others(arena: Arena) -> None:
    async def attack() -> None:
        async with pair(arena, shared=False) as p:
            others = [f"many{next(_fresh)}" for _ in range(17)]
            for name in others:
                await add_project(arena.world, name)
            answer = await change(arena, p.lender, "share", others=others)
            assert (answer["type"], answer.get("reason"), answer.get("limit")) == ("refusal", "project_shared", 16)
            assert len((await done(arena, p.lender, "share", others=others[:16]))["shared_with"]) == 16

    arena.run(attack())


def test_an_end_user_who_calls_himself_like_another_s_token_is_another_user(arena: Arena) -> None:
    async def attack() -> None:
        async with Control(arena.world.home) as control:
            token, n, wanted = control.trust.user_token(OURS, "ann"), next(_fresh), arena.hidden["another user's"]
        for name, user, sees in ((f"posing{n}", token, []), (f"real{n}", "ann", [wanted])):
            peer = await arena.join(await arena.world.add(name, SIEGE, role="user_session", user=user, ttl=3_600))
            assert ids(await peer.get(wanted)) == sees
            assert [x for x in ids(await peer.query("Ann's portcullis", user=user)) if x == wanted] == sees
            await peer.nc.close()

    arena.run(attack())
