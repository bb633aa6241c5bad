"""Reaching what is not one's own: by filters, claims, lists, names and question text, across projects, users and tenants."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from .arena import KEEP, OURS, SIEGE, THEIRS, Arena, Peer, ids

ALL_HIDDEN: Final = (
    "another tenant", "another project", "restricted", "for other readers", "for another role", "opted out", "another user's",
)  # fmt: skip
QUESTION: Final = "when is the portcullis greased, and what of its chain, rope and diary?"


async def sees_nothing_hidden(arena: Arena, peer: Peer, recall: dict[str, Any]) -> None:
    """No hidden memory is in a recall, nor counted; and the asker does see what it may."""
    assert not set(ids(recall)) & set(arena.hidden.values())
    assert recall["withheld"].keys() <= {"not_yet_valid"}  # of the past: what it may see, and was not written yet
    assert arena.note in ids(await peer.query(QUESTION))


# --- what a question may claim --------------------------------------------------------------------------
CLAIMS: Final[dict[str, dict[str, Any]]] = {
    "another project": {"project": KEEP},
    "a fan of projects of which one isn't allowed": {"projects": [SIEGE, KEEP]},
    "a project and a tenant": {"tenant": THEIRS, "account": THEIRS, "project": SIEGE},
    "every project": {"project": "*", "projects": ["*"]},
    "a filter for a project": {"filters": {"kind": ["fact"]}, "project_filter": KEEP},
    "all scopes": {"filters": {"scope": ["project", "user", "task", "operational"]}, "user": "ann", "task": "t"},
    "another user": {"user": "ann"},
    "another user's name as a reader": {"user": "ann", "readers": [["user:ann"]], "scope_id": "ann"},
    "a wildcard for a user": {"user": "*"},
    "a clearance": {"see": ["restricted"], "clearance": 2, "classification": "restricted"},
    "a filter for what is restricted": {"filters": {"classification": ["restricted"]}},
    "a filter for its author": {"filters": {"agent": ["victim"], "classification": ["restricted", "internal", "public"]}},
    "a filter for authors elsewhere": {"filters": {"agent": ["keeper", "twin", "session-ann"]}},
    "a role": {"role": "operator", "agent": "operator-all"},
    "a past": {"as_of": "PAST"},
    "no history": {"history_off": True, "history": False},
    "a mild intent": {"intent": "answer", "tool_risk": "none", "override": True},
    "every origin": {"required_origin": ["external", "agent_inferred", "tool_result", "user_stated", "human_reviewed", "system"]},
    "a run and a session of its author": {"run": "victims", "task": "victims", "session": "victims"},
    "a great k": {"k": 64, "limit": 10_000, "offset": 0},
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_in_a_question_opens_nothing(arena: Arena, claim: str) -> None:
    async def attack() -> None:
        mallory, fields = arena["mallory"], dict(CLAIMS[claim])
        if fields.get("as_of") == "PAST":
            fields["as_of"] = (await mallory.get(arena.note))["admitted"][0]["memory"]["written_at"]
        recall = await mallory.ask("query", {"type": "query", "text": QUESTION, "k": 64, **fields})
        assert recall["type"] == "recall", recall
        await sees_nothing_hidden(arena, mallory, recall)

    arena.run(attack())


# --- filters and lists that could empty to "all" ------------------------------------------------------
EMPTY: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "a filter without values": ("query", {"text": "portcullis", "filters": {"classification": []}}, "filter_invalid"),
    "an agent filter without values": ("query", {"text": "portcullis", "filters": {"agent": []}}, "filter_invalid"),
    "an unknown filter": ("query", {"text": "portcullis", "filters": {"project": ["keep"]}}, "filter_invalid"),
    "a filter with a wildcard": ("query", {"text": "portcullis", "filters": {"classification": ["*"]}}, "filter_invalid"),
    "a filter of nothing": ("query", {"text": "portcullis", "filters": {"scope": [""]}}, "filter_invalid"),
    "filters that are null": ("query", {"text": "portcullis", "filters": None}, "bad_field"),
    "a filter that is null": ("query", {"text": "portcullis", "filters": {"kind": None}}, "bad_field"),
    "no origin required": ("query", {"text": "portcullis", "required_origin": []}, "filter_invalid"),
    "no text": ("query", {"text": ""}, "too_short"),
    "no ids": ("get", {"ids": []}, "too_short"),
    "no readers": ("write", {"content": "x", "readers": []}, "readers_invalid"),
    "a clause without readers": ("write", {"content": "x", "readers": [[]]}, "readers_invalid"),
    "a clause of everybody": ("write", {"content": "x", "readers": [["*:*"]]}, "readers_invalid"),
    "a reader of every name": ("write", {"content": "x", "readers": [["agent:*"]]}, "readers_invalid"),
    "a user's note of nobody": ("write", {"content": "x", "scope": "user"}, "scope_id_missing"),
    "no notices": ("ack", {"notices": []}, "too_short"),
}


@pytest.mark.parametrize("what", EMPTY)
def test_an_empty_list_is_refused_and_never_everything(arena: Arena, what: str) -> None:
    async def attack() -> None:
        verb, fields, reason = EMPTY[what]
        answer = await arena["mallory"].ask(verb, fields)
        assert (answer["type"], answer.get("reason")) == ("refusal", reason)
        await sees_nothing_hidden(arena, arena["mallory"], await arena["mallory"].query(QUESTION, filters={"kind": ["fact"]}))

    arena.run(attack())


NOBODYS: Final[dict[str, dict[str, Any]]] = {
    "an agent that is not there": {"filters": {"agent": ["nobody"]}},
    "a pattern for agents": {"filters": {"agent": ["%", "_", "*", "vict%"]}},
    "a statement for an agent": {"filters": {"agent": ["' OR 1=1 --", 'victim" OR ""="']}},
    "its own name in another tenant": {"filters": {"agent": ["twin"]}},
    "a kind and an author that don't go together": {"filters": {"agent": ["mallory"], "kind": ["constraint"]}},
}


@pytest.mark.parametrize("what", NOBODYS)
def test_a_filter_that_nothing_matches_brings_nothing(arena: Arena, what: str) -> None:
    async def attack() -> None:
        recall = await arena["mallory"].query(QUESTION, **NOBODYS[what])
        assert (ids(recall), recall["withheld"]) == ([], {})
        assert arena.note in ids(await arena["mallory"].query(QUESTION, filters={"agent": ["victim"]}))

    arena.run(attack())


TEXTS: Final = (
    'portcullis" OR project:"keep', "portcullis* NEAR/9 chain", "content:portcullis", "{content} : portcullis",
    "portcullis' UNION SELECT * FROM memories --", "portcullis ^weak AND restricted", "-nothing +portcullis",
    "(portcullis OR chain) AND NOT x", "portcullis\u200bchain", "ＰＯＲＴＣＵＬＬＩＳ ｃｈａｉｎ",
    "mem_", "%", "*", "portcullis " * 500,
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=lambda t: t[:24])
def test_the_text_of_a_question_is_words_and_no_query_language(arena: Arena, text: str) -> None:
    async def attack() -> None:
        await sees_nothing_hidden(arena, arena["mallory"], await arena["mallory"].query(text))

    arena.run(attack())


# --- credentials that carry less ------------------------------------------------------------------------
@pytest.mark.parametrize("hidden", ALL_HIDDEN)
def test_what_is_hidden_from_it_is_in_no_get_and_no_query(arena: Arena, hidden: str) -> None:
    async def attack() -> None:
        mallory, wanted = arena["mallory"], arena.hidden[hidden]
        for asked in (wanted, wanted[-8:], wanted.upper(), wanted.replace("mem_", "")):
            answer = await mallory.get(asked)
            assert (ids(answer), answer["withheld"]) == ([], {})
        await sees_nothing_hidden(arena, mallory, await mallory.query(QUESTION))
        allowed = {
            "another tenant": ("twin", SIEGE), "another project": ("both", KEEP), "another user's": ("session-ann", SIEGE),
        }.get(hidden, ("victim", SIEGE))  # fmt: skip
        if hidden not in ("for other readers", "for another role"):
            assert ids(await arena[allowed[0]].get(wanted, project=allowed[1])) == [wanted]

    arena.run(attack())


@pytest.mark.parametrize("tags", [(), ("see:public",)], ids=["no see: tag", "see:public"])
def test_an_empty_clearance_is_public_alone(arena: Arena, tags: tuple[str, ...]) -> None:
    async def attack() -> None:
        public = await arena["victim"].write("The portcullis is open to visitors", classification="public")
        async with arena.minted(f"project:{SIEGE}", *tags) as peer:
            recall = await peer.query(QUESTION + " is it open to visitors?")
            assert {x["memory"]["classification"] for x in recall["admitted"]} == {"public"}
            assert public["id"] in ids(recall)
            assert recall["withheld"] == {}
            assert ids(await peer.get(arena.note)) == []

    arena.run(attack())


def test_no_project_is_no_project_and_not_every_one(arena: Arena) -> None:
    async def attack() -> None:
        async with arena.minted(f"tenant:{OURS}") as peer:
            for project in (SIEGE, KEEP, "p1", ""):
                assert await peer.gets_no_answer(f"mem.{OURS}.{project}.query.{peer.key}", b'{"type":"query","text":"x"}')
        async with arena.minted(f"project:{SIEGE}") as peer:
            await peer.query("x")

    arena.run(attack())


@pytest.mark.parametrize("name", ["acme-cor", "acme-corp", "acme-", "acme_corp", "acm", "ACME", "acme.siege", "acme corp"])
def test_a_tenant_is_asked_for_by_its_whole_name(arena: Arena, name: str) -> None:
    async def attack() -> None:
        mallory = arena["mallory"]
        subject = f"mem.{name}.{SIEGE}.query.{mallory.key}"
        if " " in name:
            await _raw_silence(mallory, subject)
        else:
            assert await mallory.gets_no_answer(subject, b'{"type":"query","text":"portcullis"}')
        assert arena.note in ids(await mallory.query(QUESTION))

    arena.run(attack())


async def _raw_silence(peer: Peer, subject: str) -> None:
    """A subject with a space is another command: the part behind it would be the reply subject."""
    before = len(peer.violations)
    await peer.raw(f"PUB {subject} 2\r\n".encode(), b"{}")
    await peer.settle()
    assert len(peer.violations) == before + 1


@pytest.mark.parametrize("project", ["keep", "kee", "siege-2", "sieg", "SIEGE", "siege/keep", "siege%", "p1"])
def test_a_project_is_asked_for_by_its_whole_name(arena: Arena, project: str) -> None:
    async def attack() -> None:
        mallory = arena["mallory"]
        assert await mallory.gets_no_answer(f"mem.{OURS}.{project}.query.{mallory.key}", b'{"type":"query","text":"portcullis"}')
        assert arena.note in ids(await mallory.query(QUESTION))

    arena.run(attack())


def test_two_tenants_with_equal_names_share_nothing(arena: Arena) -> None:
    async def attack() -> None:
        mallory, twin = arena["mallory"], arena["twin"]  # both are agent `mallory` of project `siege`
        text = "The same words in both castles about the same armoury"
        ours, theirs = await mallory.write(text, idempotency_key="k"), await twin.write(text, idempotency_key="k")
        assert (ours["actor"]["name"], theirs["actor"]["name"]) == ("mallory", "mallory")
        assert ours["actor"]["id"] != theirs["actor"]["id"]
        assert (ours["duplicate"], theirs["duplicate"]) == (False, False)
        question: dict[str, Any] = {"filters": {"agent": ["mallory"]}}
        assert theirs["id"] not in ids(await mallory.query(text, **question))
        assert ours["id"] not in ids(await twin.query(text, **question))
        for peer, other in ((mallory, theirs), (twin, ours)):
            for field in ("derived_from", "supersedes"):
                value = [other["id"]] if field == "derived_from" else other["id"]
                answer = await peer.ask("write", {"type": "draft", "content": "x", field: value})
                assert answer["reason"] in ("parent_unknown", "supersede_unknown")
        assert ids(await mallory.get(ours["id"])) == [ours["id"]]

    arena.run(attack())


# --- writing where others read ------------------------------------------------------------------------
WRITES: Final[dict[str, dict[str, Any]]] = {
    "into another project": {"project": KEEP},
    "as a user's note of somebody else's session": {"scope": "user", "scope_id": "ann"},
    "in the place of another's memory": {"supersedes": "NOTE"},
    "as a child of a restricted one": {"derived_from": ["RESTRICTED"]},
}


@pytest.mark.parametrize("how", WRITES)
def test_a_write_changes_nothing_of_others(arena: Arena, how: str) -> None:
    async def attack() -> None:
        bob, victim = arena["session-bob"], arena["victim"]
        note = await victim.write("The chapel bell has a crack")
        names = {"NOTE": note["id"], "RESTRICTED": arena.hidden["restricted"]}
        given = {k: names.get(v, v) if isinstance(v, str) else [names[x] for x in v] for k, v in WRITES[how].items()}
        writer = arena["mallory"] if how != "as a user's note of somebody else's session" else bob
        answer = await writer.ask(
            "write", {"type": "draft", "content": f"The chapel bell is whole ({how})", "origin": "external", **given}
        )
        if how == "into another project":
            assert answer["type"] == "receipt"
            assert ids(await arena["both"].get(answer["id"], project=KEEP)) == []
        elif how == "in the place of another's memory":
            assert (answer["state"], "contradicts_stronger" in answer["reasons"]) == ("held", True)
        else:
            assert answer["reason"] in ("verb_denied", "parent_unknown")
        assert ids(await victim.get(note["id"])) == [note["id"]]

    arena.run(attack())


def test_a_flood_of_one_agent_refuses_that_agent(arena: Arena) -> None:
    async def attack() -> None:
        mallory, victim = arena["mallory"], arena["victim"]
        flood = [asyncio.ensure_future(mallory.ask("query", {"type": "query", "text": f"flood {i}"})) for i in range(300)]
        other = await victim.write("A quiet note during the flood")
        assert other["state"] == "active"
        answers = await asyncio.gather(*flood)
        refused = [a for a in answers if a["type"] == "refusal"]
        assert {(a["reason"], a["field"]) for a in refused} == {("over_quota", "in_flight")}
        assert (await mallory.query("flood"))["type"] == "recall"

    arena.run(attack())
