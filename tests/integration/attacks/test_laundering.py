"""Reading something weak and writing it as something strong: whatever is claimed, changed or put between, the labels stay.

What kills and restarts do to it is in tests/integration/test_laundering.py.
"""

from __future__ import annotations

import base64
import itertools
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from broker_config.control import Control
from bus.identity import Credential, Keypair, creds_text, encode_jwt, parse_creds

from ..scenes import EXTERNAL, OWN
from .arena import KEEP, OURS, SIEGE, Arena, ids

_fresh = itertools.count()
PLACES: Final = (
    "cistern", "buttery", "gatehouse", "undercroft", "scullery", "solar", "garderobe", "belvedere", "brattice", "turret",
)  # fmt: skip
BIRDS: Final = ("lapwing", "avocet", "plover", "kestrel", "osprey", "nightjar", "bittern", "whimbrel", "dunlin", "fieldfare")


async def planted(arena: Arena) -> tuple[str, str]:
    """A document from outside with words of its own: (id, text)."""
    n = next(_fresh)
    warden = BIRDS[n // 10 % 10] + BIRDS[n % 10]
    text = f"The {PLACES[n % 10]} ledger number {900 + n} is kept by warden {warden} behind the copper stairs"
    receipt = await arena["ingest"].write(text, evidence=[f"https://wiki.example/{n}"])
    assert (receipt["trust"], receipt["origin"]) == (EXTERNAL, "external")
    return receipt["id"], text


def is_tainted(receipt: dict[str, Any], source: str) -> bool:
    """It names its source, and carries no more trust, floor or origin than that."""
    weak = receipt["trust"] <= EXTERNAL and receipt["trust_floor"] <= EXTERNAL
    return weak and source in receipt["parents"] and receipt["origin"] == "external"


# --- claims ---------------------------------------------------------------------------------------------
CLAIMS: Final[dict[str, dict[str, Any]]] = {
    "a higher origin": {"origin": "agent_inferred"},
    "the highest origin": {"origin": "system"},
    "a user's word": {"origin": "user_stated", "method": "stated"},
    "a review": {"origin": "human_reviewed", "review": "accepted", "trust": 1.0},
    "a tool": {"origin": "tool_result", "tool": "scanner"},
    "full confidence": {"claimed_confidence": 1.0},
    "a better source": {"evidence": ["https://bank.example/statement", "https://court.example/ruling"]},
    "other parents": {"derived_from": ["NOTE"]},
    "a rule": {"kind": "rule"},
    "another run and session": {"run": "clean", "session": "clean", "task": "clean", "trace_id": "clean"},
    "another scope": {"scope": "task", "task": "clean"},
    "operational": {"scope": "operational"},
    "a public class": {"classification": "public", "sensitivity": "low"},
    "a late validity": {"valid_from": "2030-01-01T00:00:00Z"},
    "an idempotency key": {"idempotency_key": "clean"},
    "being a correction": {"supersedes": "SOURCE"},
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_copy_with_better_claims_keeps_its_sources_labels(arena: Arena, claim: str) -> None:
    async def attack() -> None:
        source, text = await planted(arena)
        names: dict[Any, Any] = {"NOTE": arena.note, "SOURCE": source}
        given: dict[str, Any] = {
            k: [names[x] for x in v] if k == "derived_from" else names.get(v, v) if isinstance(v, str) else v
            for k, v in CLAIMS[claim].items()
        }
        async with (
            arena.minted(f"project:{SIEGE}", "see:internal") as peer,
            arena.minted(f"project:{SIEGE}", "see:internal") as other,
        ):
            assert source in ids(await peer.query(text))
            assert is_tainted(await peer.write(f"Remember: {text.lower()}", **given), source)
            own = await other.write("An unrelated remark about the weather")
            assert (own["trust"], own["trust_floor"], own["parents"]) == (OWN, OWN, [])

    arena.run(attack())


# --- ways of reading ----------------------------------------------------------------------------------
READS: Final = (
    "query",
    "get",
    "get by the end of its id",
    "with a task",
    "of the past",
    "without history",
    "for an action",
    "filtered",
)


@pytest.mark.parametrize("how", READS)
def test_however_it_was_read_it_was_read(arena: Arena, how: str) -> None:
    async def attack() -> None:
        source, text = await planted(arena)
        async with (
            arena.minted(f"project:{SIEGE}", "see:internal") as peer,
            arena.minted(f"project:{SIEGE}", "see:internal") as other,
        ):
            now = (await other.get(source))["admitted"][0]["memory"]["written_at"]
            ways: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
                "query": lambda: peer.query(text),
                "get": lambda: peer.get(source),
                "get by the end of its id": lambda: peer.get(source[-8:]),
                "with a task": lambda: peer.query(text, task="t", run="r"),
                "of the past": lambda: peer.query(text, as_of=now),
                "without history": lambda: peer.query(text, history_off=True),
                "for an action": lambda: peer.query(text, intent="plan", tool_risk="read_only"),
                "filtered": lambda: peer.query(text, filters={"agent": ["ingest"], "origin": ["external"]}),
            }
            assert source in ids(await ways[how]())
            assert is_tainted(await peer.write(text), source)

    arena.run(attack())


# --- ways of writing it otherwise ---------------------------------------------------------------------
# A copy that keeps the words is a child; whatever else it is, its floor never rises above what its writer had read.
CHANGES: Final[dict[str, Callable[[str], str]]] = {
    "capitals": lambda t: t.upper(),
    "full width": lambda t: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in t),
    "dashes between words": lambda t: t.replace(" ", " - "),
    "another frame": lambda t: f"As everybody knows since long ago, {t[0].lower()}{t[1:]}, and that is settled.",
    "half of it": lambda t: " ".join(t.split()[: len(t.split()) * 2 // 3]),
    "a list": lambda t: "\n".join(f"* {w}" for w in t.split()),
    "the words turned round": lambda t: " ".join(reversed(t.split())),
    "zero-width characters": lambda t: "\u200b".join(t),
    "other letters of the same look": lambda t: t.replace("e", "\u0435").replace("o", "\u043e"),
    "base64": lambda t: base64.b64encode(t.encode()).decode(),
    "a paraphrase": lambda _: "Somebody trustworthy looks after the records downstairs",
    "nothing of it": lambda _: "Lunch is at noon",
}
KEEPS_WORDS: Final = ("capitals", "full width", "dashes between words", "another frame", "half of it")


@pytest.mark.parametrize("change", CHANGES)
def test_however_it_is_written_the_floor_stays(arena: Arena, change: str) -> None:
    async def attack() -> None:
        source, text = await planted(arena)
        async with (
            arena.minted(f"project:{SIEGE}", "see:internal") as peer,
            arena.minted(f"project:{SIEGE}", "see:internal") as other,
        ):
            assert source in ids(await peer.query(text))
            written: str = CHANGES[change](text)
            copy = await peer.write(written)
            assert copy["trust_floor"] <= EXTERNAL
            assert change not in KEEPS_WORDS or is_tainted(copy, source)
            assert (await other.write("Supper is at seven"))["trust_floor"] == OWN

    arena.run(attack())


# --- around the context -------------------------------------------------------------------------------
def test_a_new_connection_is_the_same_head(arena: Arena) -> None:
    async def attack() -> None:
        source, text = await planted(arena)
        async with arena.minted(f"project:{SIEGE}", "see:internal") as peer:
            assert source in ids(await peer.query(text))
            again = await arena.reconnect(peer)
            assert is_tainted(await again.write(text, run="another"), source)
            assert (await again.write("The kettle is on"))["trust_floor"] <= EXTERNAL
            await again.nc.close()

    arena.run(attack())


def test_a_second_credential_of_the_same_key_is_the_same_head(arena: Arena) -> None:
    """Narrowed or issued anew: the key is the agent's, and so is what it was served."""

    async def attack() -> None:
        source, text = await planted(arena)
        async with arena.minted(f"project:{SIEGE}", "see:internal") as peer:
            assert source in ids(await peer.query(text))
            claims = {
                "type": "user",
                "version": 2,
                "issuer_account": arena.account[OURS],
                "tags": [f"project:{SIEGE}", "verb:write"],
            }
            jwt = encode_jwt({"sub": peer.key, "name": "anew", "nats": claims}, arena.role_key("agent"), 1_800_000_000)
            seed = peer.credential.seed
            again = await arena._open(
                creds_text(jwt, Keypair(seed)), Credential(jwt, seed, peer.key, OURS, "anew", (), (), (), None), OURS
            )
            assert is_tainted(await again.write(text), source)
            assert (await again.ask("query", {"type": "query", "text": "x"}))["reason"] == "verb_denied"
            await again.nc.close()

    arena.run(attack())


def test_a_rotated_key_is_the_same_head(arena: Arena) -> None:
    async def attack() -> None:
        source, text = await planted(arena)
        peer = await arena.join(await arena.world.add("rotator", SIEGE))
        assert source in ids(await peer.query(text))
        async with Control(arena.world.home) as control:
            await control.agent_rotate(OURS, "rotator")
        await peer.nc.close()
        again = await arena.join(parse_creds(Path(arena.world.creds("rotator")).read_text()))
        assert again.key != peer.key
        copy = await again.write(text, run="another")
        assert (copy["actor"]["name"], is_tainted(copy, source)) == ("rotator", True)
        await again.nc.close()

    arena.run(attack())


@pytest.mark.parametrize("way", ["its own context", "as if an operator"])
def test_an_agent_can_not_empty_its_own_head(arena: Arena, way: str) -> None:
    async def attack() -> None:
        source, text = await planted(arena)
        async with arena.minted(f"project:{SIEGE}", "see:internal") as peer:
            assert source in ids(await peer.query(text))
            key = peer.key if way == "its own context" else arena["operator"].key
            close = b'{"type":"context","agent":"mallory","action":"close","message":"clean"}'
            assert await peer.gets_no_answer(f"ops.{OURS}.context.{key}", close)
            assert is_tainted(await peer.write(text), source)
        shown = await arena["operator"].operate("context", {"type": "context", "agent": "mallory"})
        assert shown["epoch"] == 0

    arena.run(attack())


def test_a_sibling_that_reads_the_copy_carries_it_on(arena: Arena) -> None:
    """From hand to hand: each link is a child of the one before, and none is better than the first."""

    async def attack() -> None:
        source, text = await planted(arena)
        last, closure = source, [source]
        for i in range(4):
            async with arena.minted(f"project:{SIEGE}", "see:internal") as peer:
                assert ids(await peer.get(last)) == [last]
                copy = await peer.write(f"{text}, as told {i}")
                assert is_tainted(copy, last)
                last = copy["id"]
                closure.append(last)
        plan = await arena["operator"].operate("hold", {"type": "hold", "selector": [source], "dry_run": True})
        assert set(closure) <= {m["id"] for m in plan["members"]}

    arena.run(attack())


def test_a_user_session_gives_a_documents_words_no_users_authority(arena: Arena) -> None:
    async def attack() -> None:
        source, text = await planted(arena)
        async with arena.minted(f"project:{SIEGE}", "see:internal", "user:eve", role="user_session") as eve:
            own = await eve.write("I prefer the east tower", scope="user", scope_id="eve")
            assert own["origin"] == "user_stated"
            assert source in ids(await eve.query(text))
            assert is_tainted(await eve.write(text, origin="user_stated", kind="rule"), source)

    arena.run(attack())


def test_a_copy_into_another_project_is_held_and_tainted(arena: Arena) -> None:
    async def attack() -> None:
        source, text = await planted(arena)
        both = arena["both"]
        assert source in ids(await both.query(text))
        copy = await both.write(text, KEEP)
        assert (copy["state"], copy["reasons"]) == ("held", [f"flow_down:project:{SIEGE}"])
        assert is_tainted(copy, source)
        assert ids(await arena["keeper"].get(copy["id"], project=KEEP)) == []

    arena.run(attack())


def test_a_retry_with_the_same_key_does_not_wash_the_first(arena: Arena) -> None:
    async def attack() -> None:
        source, text = await planted(arena)
        async with arena.minted(f"project:{SIEGE}", "see:internal") as peer:
            clean = await peer.write(text, idempotency_key="early")  # before it read: its own sentence
            assert source in ids(await peer.query(text))
            again = await peer.write(text, idempotency_key="early", run="later")
            assert (again["id"], again["duplicate"]) == (clean["id"], True)
            assert is_tainted(await peer.write(text, idempotency_key="late"), source)

    arena.run(attack())


def test_a_second_gatekeeper_of_the_same_shard_does_not_start(arena: Arena) -> None:
    home = arena.world.home
    command = [sys.executable, "-m", "gate", "--home", str(home.path), "--shard", "0"]
    second = subprocess.run(
        command, env={**os.environ, "CORDON_URL": home.url}, capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode not in (0, None)

    async def attack() -> None:
        source, text = await planted(arena)
        async with arena.minted(f"project:{SIEGE}", "see:internal") as peer:
            assert source in ids(await peer.query(text))
            assert is_tainted(await peer.write(text), source)

    arena.run(attack())
