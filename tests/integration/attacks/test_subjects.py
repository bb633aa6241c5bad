"""Publishing and subscribing where one has no business: the broker refuses, and what it lets through reaches nobody."""

from __future__ import annotations

from typing import Final

import pytest

from broker_config.roles import ROLES
from bus.subjects import MEMORY_VERBS, OPS_VERBS

from .arena import KEEP, OURS, SIEGE, Arena

# M mallory's key, V the victim's, A the tenant's account, B the other tenant's.
PUBLISH: Final = (
    "mem.acme.keep.write.M", "mem.acme.keep.query.M", "mem.acme-corp.siege.write.M", "mem.acme-corp.siege.query.M",
    "mem.acm.siege.query.M", "ops.acme.hold.M", "ops.acme-corp.stats.M", "in.0.A.siege.write.M", "in.0.B.siege.write.M",
    "op.0.A.hold.M", "feed.acme.siege.internal.memory", "feed.acme.keep.internal.memory", "feed.A.siege.internal.memory",
    "feed.acme-corp.siege.internal.held", "notice.acme.V", "notice.acme.M", "notice.A.V", "_INBOX.V.x", "_INBOX.M.x",
    "_INBOX.x", "_R_.x.y", "_GR_.x.y.z", "ledger.0.block", "reads.0.block", "erased.0.1", "iss.0.sign", "adm.0.status.M",
    "adm.0.agent.M", "$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.LEDGER_0", "$JS.API.STREAM.CREATE.MINE",
    "$JS.API.STREAM.PURGE.LEDGER_0", "$JS.API.STREAM.DELETE.LEDGER_0", "$JS.API.STREAM.MSG.GET.LEDGER_0",
    "$JS.API.DIRECT.GET.LEDGER_0", "$JS.API.CONSUMER.CREATE.LEDGER_0", "$JS.ACK.LEDGER_0.c.1.1.1.1.1", "$JS.FC.LEDGER_0.c.x",
    "$KV.bucket.key", "$O.bucket.C.x", "$SRV.PING", "$SRV.INFO", "$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.LIST",
    "$SYS.REQ.SERVER.PING", "$SYS.REQ.USER.INFO", "$SYS.REQ.ACCOUNT.A.CLAIMS.UPDATE", "$SYS.ACCOUNT.A.CONNECT", "$NRG.V.x",
    "$LDS.x", "$GNR.x", ">", "*", "mem.>",
)  # fmt: skip
SUBSCRIBE: Final = (
    ">", "*", "*.*", "*.*.*.*.*", "mem.>", "mem.acme.siege.write.V", "mem.acme.siege.*.M", "ops.>", "in.>", "in.0.A.>",
    "op.>", "adm.>", "iss.>", "_INBOX.>", "_INBOX.*", "_INBOX.V.>", "_INBOX.*.*", "_INBOX.*.>", "_R_.>", "_GR_.>", "feed.>",
    "feed.acme.>", "feed.acme.keep.>", "feed.acme.keep.internal.>", "feed.acme.siege.restricted.>", "feed.acme.siege.>",
    "feed.acme.siege.*.>", "feed.acme.siege.*.memory", "feed.acme.*.internal.memory", "feed.*.siege.internal.>",
    "feed.acme-corp.siege.internal.>", "feed.A.>", "notice.>", "notice.acme.>", "notice.acme.*", "notice.acme.V",
    "notice.acme-corp.M", "notice.A.V", "ledger.>", "ledger.0.block", "reads.0.block", "erased.>", "$JS.>", "$JS.API.>",
    "$JS.EVENT.ADVISORY.>", "$JS.ACK.>", "$SYS.>", "$SYS.ACCOUNT.*.CONNECT", "$SRV.>", "$KV.>", "$O.>", "$NRG.>",
)  # fmt: skip


def named(arena: Arena, subject: str) -> str:
    names = {"M": arena["mallory"].key, "V": arena["victim"].key, "A": arena.account[OURS], "B": arena.account["acme-corp"]}
    return ".".join(names.get(part, part) for part in subject.split("."))


@pytest.mark.parametrize("subject", PUBLISH)
def test_an_agent_publishes_nowhere_but_on_its_own_subjects(arena: Arena, subject: str) -> None:
    async def attack() -> None:
        mallory = arena["mallory"]
        assert not await mallory.may_publish(named(arena, subject))
        assert await mallory.may_publish(f"mem.{OURS}.{SIEGE}.sync.{mallory.key}")

    arena.run(attack())


GROUPS: Final = (
    ">",
    "_INBOX.>",
    "_INBOX.V.>",
    "feed.acme.keep.internal.>",
    "notice.acme.V",
    "in.0.A.>",
    "ledger.0.block",
    "_R_.>",
)


@pytest.mark.parametrize(
    ("subject", "queue"), [*((s, "") for s in SUBSCRIBE), *((s, "gatekeepers") for s in GROUPS)], ids=lambda x: x or "alone"
)
def test_an_agent_hears_nothing_but_its_inbox_feeds_and_notices(arena: Arena, subject: str, queue: str) -> None:
    async def attack() -> None:
        mallory = arena["mallory"]
        assert not await mallory.may_subscribe(named(arena, subject), queue)
        own = subject.split(".")[0]
        allowed = {"_INBOX": f"_INBOX.{mallory.key}.>", "notice": f"notice.{OURS}.{mallory.key}"}
        assert await mallory.may_subscribe(allowed.get(own, f"feed.{OURS}.{SIEGE}.internal.>"), queue)

    arena.run(attack())


# --- each role and each verb that it has not ------------------------------------------------------------
HOLDERS: Final = {
    "agent": "mallory", "ingest": "ingest", "user_gateway": "gateway", "user_session": "session-ann", "supervisor": "supervisor",
    "operator": "operator", "auditor": "auditor",
}  # fmt: skip
DENIED: Final = [
    (role.name, tree, verb)
    for role in ROLES.values()
    for tree, all_, granted in (("mem", MEMORY_VERBS, role.memory), ("ops", OPS_VERBS, role.ops))
    for verb in all_
    if granted is not None and verb not in granted
]


@pytest.mark.parametrize(("role", "tree", "verb"), DENIED)
def test_a_role_has_no_verb_beyond_its_own(arena: Arena, role: str, tree: str, verb: str) -> None:
    async def attack() -> None:
        peer = arena[HOLDERS[role]]
        project = f"{SIEGE}." if tree == "mem" else ""
        assert not await peer.may_publish(f"{tree}.{OURS}.{project}{verb}.{peer.key}")
        own, where = ROLES[role], f"mem.{OURS}.{SIEGE}"
        verbs = own.memory or MEMORY_VERBS
        subject = f"{where}.{verbs[0]}.{peer.key}" if own.memory != () else f"ops.{OURS}.{(own.ops or OPS_VERBS)[0]}.{peer.key}"
        assert (await peer.request(subject, b"{}"))["reason"]  # the gatekeeper answers: the broker let it pass

    arena.run(attack())


LATER: Final = [
    *(("mem", verb) for verb in ("bind", "report", "feedback", "correct", "forget", "delegate")),
    *(("ops", verb) for verb in ("root", "exposure", "freeze", "thaw", "audit", "verify", "scan", "erase")),
]


@pytest.mark.parametrize(("tree", "verb"), LATER)
def test_a_verb_that_is_not_served_yet_says_so_and_does_nothing(arena: Arena, tree: str, verb: str) -> None:
    frame = {
        "type": verb,
        "name": "child",
        "projects": [SIEGE, KEEP],
        "id": arena.note,
        "ids": [arena.note],
        "tool": "t",
        "verdict": "x",
    }

    async def attack() -> None:
        before = (await arena["mallory"].ask("sync", {}))["position"]
        ask = arena["mallory"].ask if tree == "mem" else arena["operator"].operate
        answer = await ask(verb, frame)
        assert (answer["type"], answer["reason"], answer["error"]) == ("refusal", "verb_not_available", "rejected")
        assert (await arena["mallory"].ask("sync", {}))["position"] == before
        served = await arena["operator"].operate("stats", {"type": "stats_query"})
        assert served["type"] == "stats"

    arena.run(attack())
