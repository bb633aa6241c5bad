"""An answer aimed at somebody else: the gatekeeper answers where it is told to, inside its tenant, and nobody takes it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, Final

import pytest
from nats.aio.msg import Msg

import bus
from bus.errors import MalformedFrame
from bus.frames import Refusal, decode_push, decode_reply

from ..world import verified
from .arena import OURS, SIEGE, THEIRS, Arena, Peer

MARK: Final = "zq7marker"
# M mallory's key, V the victim's, K the keeper's (of another project), O the operator's, A the tenant's account
AIMS: Final = (
    "_INBOX.V.stolen", "_INBOX.K.stolen", "_INBOX.O.stolen", "feed.acme.siege.internal.memory",
    "feed.acme.siege.internal.held", "feed.acme.siege.restricted.memory", "feed.acme.keep.internal.memory",
    "feed.acme.keep.internal.released", "feed.A.siege.internal.memory", "feed.acme-corp.siege.internal.memory",
    "notice.acme.V", "notice.acme.K", "notice.acme.M", "notice.A.V", "mem.acme.siege.write.V", "mem.acme.keep.write.K",
    "mem.acme.siege.query.M", "mem.acme-corp.siege.write.M", "ops.acme.hold.O", "in.0.A.siege.write.V", "ledger.0.block",
    "reads.0.block", "$JS.API.STREAM.PURGE.LEDGER_0", "$JS.API.STREAM.INFO.LEDGER_0", "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.CLAIMS.UPDATE", "adm.0.status.V", "iss.0.sign", "_INBOX.M", "a..b", ".x", "x" * 2_000, "答え",
)  # fmt: skip
OPS_AIMS: Final = (
    "_INBOX.V.stolen",
    "feed.acme.siege.internal.held",
    "notice.acme.V",
    "mem.acme.siege.write.V",
    "ops.acme.release.O",
    "ledger.0.block",
)


def named(arena: Arena, subject: str) -> str:
    names = {"M": "mallory", "V": "victim", "K": "keeper", "O": "operator"}
    parts = [arena[names[x]].key if x in names else arena.account[OURS] if x == "A" else x for x in subject.split(".")]
    return ".".join(parts)


class Ears:
    """All that the victim and the keeper may hear, as raw messages."""

    def __init__(self) -> None:
        self.heard: list[Msg] = []
        self._subs: list[Any] = []

    async def hear(self, msg: Msg) -> None:
        self.heard.append(msg)

    async def listen(self, peer: Peer, *subjects: str) -> None:
        for subject in subjects:
            self._subs.append(await peer.nc.subscribe(subject, cb=self.hear))
        await peer.settle()

    async def stop(self) -> None:
        for sub in self._subs:
            await sub.unsubscribe()


@pytest.mark.parametrize("aim", AIMS)
def test_an_answer_aimed_elsewhere_is_a_valid_frame_for_nobody(arena: Arena, aim: str) -> None:
    async def attack() -> None:
        mallory, victim, keeper = arena["mallory"], arena["victim"], arena["keeper"]
        ears, reply = Ears(), named(arena, aim)
        await ears.listen(
            victim, f"_INBOX.{victim.key}.stolen", f"feed.{OURS}.{SIEGE}.internal.>", f"feed.{OURS}.{SIEGE}.restricted.>",
            f"notice.{OURS}.{victim.key}",
        )  # fmt: skip
        await ears.listen(keeper, f"_INBOX.{keeper.key}.stolen", f"feed.{OURS}.keep.internal.>", f"notice.{OURS}.{keeper.key}")
        await ears.listen(arena["twin"], f"feed.{THEIRS}.{SIEGE}.internal.>", f"notice.{THEIRS}.{arena['twin'].key}")
        before = (await victim.ask("sync", {}))["position"]
        requests = {
            "write": {"type": "draft", "content": f"aimed {MARK}"},
            "query": {"type": "query", "text": MARK},
            "sync": {"type": "sync"},
        }
        for verb, frame in requests.items():
            await mallory.nc.publish(f"mem.{OURS}.{SIEGE}.{verb}.{mallory.key}", json.dumps(frame).encode(), reply=reply)
        await mallory.nc.publish(f"mem.{OURS}.{SIEGE}.write.{mallory.key}", f"{MARK} is no frame".encode(), reply=reply)
        control = await mallory.write("Behind the arrows")  # answered in its own inbox, after the others
        for peer in (victim, keeper, arena["twin"]):
            await peer.settle()
        assert control["position"] == before + 2, "the write was stored once, and nothing that came back became a request"
        for msg in ears.heard:
            if _is_push(msg):  # the real feed, of the two writes
                assert (msg.subject, MARK in msg.data.decode()) == (f"feed.{OURS}.{SIEGE}.internal.memory", False)
                continue
            assert msg.subject == reply
            answer = decode_reply(msg.data)
            assert answer.agent == mallory.key, "it names whom it is for"
            assert not isinstance(answer, Refusal) or MARK not in msg.data.decode()
        await ears.stop()

    arena.run(attack())


@pytest.mark.parametrize("aim", OPS_AIMS)
def test_an_operators_answer_aimed_elsewhere_is_nobodys_either(arena: Arena, aim: str) -> None:
    async def attack() -> None:
        operator, victim = arena["operator"], arena["victim"]
        ears, reply = Ears(), named(arena, aim)
        await ears.listen(victim, f"_INBOX.{victim.key}.stolen", f"feed.{OURS}.{SIEGE}.internal.>", f"notice.{OURS}.{victim.key}")
        before = (await victim.ask("sync", {}))["position"]
        for verb, frame in (("why", {"type": "why", "id": arena.note, "reveal": True}), ("stats", {"type": "stats_query"})):
            await operator.nc.publish(f"ops.{OURS}.{verb}.{operator.key}", json.dumps(frame).encode(), reply=reply)
        control = await operator.operate("why", {"type": "why", "id": arena.note})
        assert (control["type"], control["position"]) == ("why_answer", before)
        await victim.settle()
        assert all(m.subject == reply and decode_reply(m.data).agent == operator.key for m in ears.heard)
        await ears.stop()

    arena.run(attack())


@pytest.mark.parametrize("aim", ["feed.acme.siege.internal.memory", "feed.acme.siege.internal.held", "notice.acme.V"])
def test_the_client_hears_its_feed_and_notices_and_nothing_that_was_aimed_at_them(arena: Arena, aim: str) -> None:
    async def attack() -> None:
        mallory, reply = arena["mallory"], named(arena, aim)
        async with arena.world.agent("victim", SIEGE) as client, client.feed() as feed, client.notices() as notices:
            for _ in range(3):
                await mallory.nc.publish(f"mem.{OURS}.{SIEGE}.sync.{mallory.key}", b"{}", reply=reply)
                await mallory.nc.publish(f"mem.{OURS}.{SIEGE}.write.{mallory.key}", b'{"content":"aimed"}', reply=reply)
            last = await mallory.write("The last of the quiver")
            async for heard in feed:
                assert isinstance(heard, bus.Feed)
                if last["id"] in heard.ids:
                    break
            real = {notice.notice for notice in (await client.sync()).notices}
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    async for notice in notices:
                        assert notice.notice in real

    arena.run(attack())


WILDCARDS: Final = (">", "_INBOX.>", "_INBOX.*.*.*", "*")


@pytest.mark.parametrize("reply", WILDCARDS)
def test_a_wildcard_for_a_reply_breaks_no_answer_of_another_tenant(arena: Arena, reply: str) -> None:
    """The server forgets every pending answer of the *account* that such a subject matches: docs/wire.md names that limit."""

    async def attack() -> None:
        mallory, twin = arena["mallory"], arena["twin"]
        for _ in range(10):
            await mallory.nc.publish(f"mem.{OURS}.{SIEGE}.sync.{mallory.key}", b'{"type":"sync"}', reply=reply)
            assert (await twin.query("ice"))["type"] == "recall"
        await mallory.settle()
        assert (await mallory.ask("sync", {}))["type"] == "synced"  # nor is anything broken for good

    arena.run(attack())


def test_after_all_the_arrows_the_ledger_is_whole(arena: Arena) -> None:
    async def attack() -> None:
        verdict = await verified(arena.world.home)
        assert (verdict["ok"], verdict["findings"]) == (True, [])

    arena.run(attack())


def _is_push(m: Msg) -> bool:
    try:
        decode_push(m.data)
    except MalformedFrame:
        return False
    return True
