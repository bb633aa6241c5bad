"""Lies about who writes: in the frame, in headers, in the subject, and by sending an old request again."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from .arena import MISSING, OURS, SIEGE, THEIRS, Arena, Peer

DRAFT: Final = {"type": "draft", "content": "Whoever I am, the drawbridge is up"}
OWN_TRUST: Final = 0.4


def is_mallorys(receipt: dict[str, Any], mallory: Peer) -> bool:
    """The receipt of an ordinary agent's own sentence, with its own name on it."""
    stamped = (receipt["actor"]["key"], receipt["actor"]["name"], receipt["actor"]["type"], receipt["agent"])
    return stamped == (mallory.key, "mallory", "agent", mallory.key) and (
        receipt["origin"], receipt["trust"], receipt["state"], receipt["actor"]["chain"],
    ) == ("agent_inferred", OWN_TRUST, "active", [])  # fmt: skip


# --- in the frame -------------------------------------------------------------------------------------
VICTIM: Final = "VICTIM"  # stands for the victim's key
BODIES: Final[dict[str, dict[str, Any]]] = {
    "agent": {"agent": VICTIM},
    "actor": {"actor": {"id": "root", "key": VICTIM, "name": "victim", "type": "operator"}},
    "actor and agent of another tenant": {"actor": {"name": "twin"}, "tenant": THEIRS, "account": THEIRS},
    "role": {"role": "operator", "issuer_key": VICTIM},
    "chain": {"chain": ["root", "operator"], "via": "operator"},
    "trust": {"trust": 1.0, "trust_floor": 1.0, "trust_effective": 1.0},
    "origin system": {"origin": "system"},
    "origin human_reviewed": {"origin": "human_reviewed", "review": "accepted", "verified_at": "2026-01-01T00:00:00Z"},
    "origin user_stated": {"origin": "user_stated", "user": "ann"},
    "origin tool_result with a tool that nobody gave": {"origin": "tool_result", "tool": "scanner"},
    "state": {"state": "active", "holds": [], "position": 1},
    "id": {"id": MISSING, "recall_id": "rec_00000000000000000000000000"},
    "project": {"project": "keep", "projects": ["keep"]},
    "time": {"written_at": "1970-01-01T00:00:00Z", "ms": 0},
    "tags": {"tags": ["role:operator", "ceiling:system"], "see": ["restricted"]},
    "identity header in the body": {"Nats-Request-Info": {"user": VICTIM}},
    "confidence and method": {"claimed_confidence": 1.0, "method": "stated"},
    "context of another": {"context": "ctx_1", "ctx": 1, "epoch": 99},
}


@pytest.mark.parametrize("lie", BODIES)
def test_nothing_that_a_frame_says_of_its_author_counts(arena: Arena, lie: str) -> None:
    async def attack() -> None:
        mallory = arena["mallory"]
        body = json.loads(json.dumps(DRAFT | BODIES[lie]).replace(VICTIM, arena["victim"].key))
        receipt = await mallory.ask("write", body)
        assert is_mallorys(receipt, mallory), receipt
        assert is_mallorys(await mallory.ask("write", DRAFT), mallory)

    arena.run(attack())


NO_DRAFTS: Final = ("receipt", "recall", "feed", "notice", "refusal", "hold", "adm_agent", "done", "memory")


@pytest.mark.parametrize("tag", NO_DRAFTS)
def test_a_frame_of_another_kind_is_no_draft(arena: Arena, tag: str) -> None:
    async def attack() -> None:
        answer = await arena["mallory"].ask("write", DRAFT | {"type": tag})
        assert (answer["reason"], answer["field"]) == ("bad_field", "type")
        assert (await arena["mallory"].ask("write", DRAFT))["type"] == "receipt"

    arena.run(attack())


# --- in the headers -----------------------------------------------------------------------------------
HEADERS: Final = {
    "exact": b"Nats-Request-Info: %s\r\n",
    "doubled": b"Nats-Request-Info: %s\r\nNats-Request-Info: %s\r\n",
    "lower case": b"nats-request-info: %s\r\n",
    "upper case": b"NATS-REQUEST-INFO: %s\r\n",
    "lower case and exact": b"nats-request-info: %s\r\nNats-Request-Info: %s\r\n",
    "space behind": b"Nats-Request-Info : %s\r\n",
    "space before": b" Nats-Request-Info: %s\r\n",
    "tab behind": b"Nats-Request-Info\t: %s\r\n",
    "no space after the colon": b"Nats-Request-Info:%s\r\n",
    "folded": b"X: y\r\n Nats-Request-Info: %s\r\n",
    "after a line feed": b"X: a\nNats-Request-Info: %s\r\n",
    "after a carriage return": b"X: a\rNats-Request-Info: %s\r\n",
    "after a vertical tab": b"X: a\x0bNats-Request-Info: %s\r\n",
    "after a form feed": b"X: a\x0cNats-Request-Info: %s\r\n",
    "after a next line": b"X: a\xc2\x85Nats-Request-Info: %s\r\n",
    "after a line separator": b"X: a\xe2\x80\xa8Nats-Request-Info: %s\r\n",
    "after a byte order mark": b"\xef\xbb\xbfNats-Request-Info: %s\r\n",
    "after an early end": b"\r\nNats-Request-Info: %s\r\n",
    "with a NUL": b"Nats-Request-Info\x00: %s\r\n",
    "with a long s": "Nat\u017f-Reque\u017ft-Info: %s\r\n".encode(),
    "with a dotless i": "Nats-Request-\u0131nfo: %s\r\n".encode(),
    "with another hyphen": "Nats\u2010Request\u2010Info: %s\r\n".encode(),
    "bytes that are no text": b"X: \xff\xfe\r\n",
    "no colon": b"Nats-Request-Info\r\n",
    "no name": b": %s\r\n",
    "another status": b"Status: 503\r\nDescription: gone\r\n",
    "many": b"".join(b"X%d: y\r\n" % i for i in range(2_000)),
    "other stamps": b"Cordon-Actor: root\r\nNats-Msg-Id: 1\r\nactor: \xe5\xb0\x8f\xe6\x98\x8e\r\n",
    "stream stamps": b"Nats-Expected-Last-Sequence: 0\r\nNats-Rollup: all\r\n",
}


@pytest.mark.parametrize("forgery", HEADERS)
def test_no_header_makes_an_agent_another_or_more(arena: Arena, forgery: str) -> None:
    async def attack() -> None:
        mallory, victim = arena["mallory"], arena["victim"]
        issuer = arena.role_key("operator").public
        for user, tags in ((victim.key, [f"project:{SIEGE}"]), (mallory.key, [f"project:{SIEGE}", "see:restricted"])):
            said = {
                "acc": arena.account[OURS],
                "user": user,
                "kind": "Client",
                "issuer_key": issuer,
                "name_tag": "victim",
                "tags": tags,
            }
            lie = HEADERS[forgery].replace(b"%s", json.dumps(said).encode())
            receipt = await _with_headers(mallory, lie, DRAFT | {"origin": "human_reviewed"})
            assert is_mallorys(receipt, mallory), receipt
            assert receipt["classification"] == "internal"
            assert "origin_capped" in receipt["reasons"]

    arena.run(attack())


async def _with_headers(peer: Peer, headers: bytes, frame: dict[str, Any]) -> dict[str, Any]:
    """One write with these very header bytes."""
    payload, head = json.dumps(frame).encode(), b"NATS/1.0\r\n" + headers + b"\r\n"
    inbox = f"_INBOX.{peer.key}.raw"
    answers = await peer.nc.subscribe(inbox)
    subject = f"mem.{OURS}.{SIEGE}.write.{peer.key}"
    await peer.raw(f"HPUB {subject} {inbox} {len(head)} {len(head) + len(payload)}\r\n".encode(), head + payload)
    answer: dict[str, Any] = json.loads((await answers.next_msg(timeout=5)).data)
    await answers.unsubscribe()
    return answer


# --- in the subject -----------------------------------------------------------------------------------
# M mallory's key, V the victim's; what stands before and after them is the attack.
SUBJECTS: Final = {
    "another's key": "mem.acme.siege.write.V",
    "its key in small letters": "mem.acme.siege.write.m",
    "another's key behind its own": "mem.acme.siege.write.M.V",
    "its own key behind another's": "mem.acme.siege.write.V.M",
    "another's key as the project": "mem.acme.V.write.M",
    "a wildcard for the key": "mem.acme.siege.write.*",
    "everything": "mem.acme.siege.write.>",
    "a wildcard for the verb": "mem.acme.siege.*.M",
    "a wildcard for the project": "mem.acme.*.write.M",
    "no key": "mem.acme.siege.write",
    "an empty key": "mem.acme.siege.write.",
    "an empty project": "mem.acme..write.M",
    "a key with a NUL": "mem.acme.siege.write.M\x00V",
    "a full stop of another script": "mem.acme.siege.write\uff0eV",
    "another's key as an operator": "ops.acme.hold.V",
    "its own key as an operator": "ops.acme.hold.M",
    "what it becomes inside": "in.0.A.siege.write.V",
    "the control plane": "adm.0.agent.M",
}


@pytest.mark.parametrize("lie", SUBJECTS)
def test_no_subject_makes_an_agent_another(arena: Arena, lie: str) -> None:
    async def attack() -> None:
        mallory, victim = arena["mallory"], arena["victim"]
        before = (await mallory.ask("sync", {}))["position"]
        names = {"M": mallory.key, "m": mallory.key.lower(), "V": victim.key, "A": arena.account[OURS]}
        head, *rest = SUBJECTS[lie].split(".")
        subject = ".".join([head, *("\x00".join(names.get(x, x) for x in part.split("\x00")) for part in rest)])
        inbox = f"_INBOX.{mallory.key}.lie"
        answers = await mallory.nc.subscribe(inbox)
        payload = json.dumps(DRAFT).encode()
        await mallory.raw(f"PUB {subject} {inbox} {len(payload)}\r\n".encode(), payload)
        await mallory.settle()
        assert is_mallorys(await mallory.ask("write", DRAFT), mallory)  # comes back behind whatever the lie would bring
        assert not answers._pending_queue.qsize() or "refusal" in (await answers.next_msg(timeout=1)).data.decode()
        await answers.unsubscribe()
        assert (await mallory.ask("sync", {}))["position"] == before + 1, "the lie stored nothing"

    arena.run(attack())


# --- an old request again -----------------------------------------------------------------------------
REPLAYS: Final[dict[str, dict[str, Any]]] = {
    "without a key": {},
    "with its idempotency key": {"idempotency_key": "moat"},
    "with its request id": {"request_id": "moat"},
    "with its run and session": {"run": "r", "session": "s", "trace_id": "t"},
}


@pytest.mark.parametrize("how", REPLAYS)
def test_a_request_of_another_sent_again_is_the_senders_own(arena: Arena, how: str) -> None:
    async def attack() -> None:
        mallory, victim = arena["mallory"], arena["victim"]
        frame: dict[str, Any] = {"type": "draft", "content": f"The moat is dry, {how}", **REPLAYS[how]}
        first = await victim.ask("write", frame)
        again = await mallory.ask("write", frame)
        assert (again["actor"]["key"], again["duplicate"]) == (mallory.key, False)
        assert again["id"] != first["id"]
        if "idempotency_key" in frame:
            retry = await victim.ask("write", frame)
            assert (retry["id"], retry["duplicate"]) == (first["id"], True)

    arena.run(attack())
