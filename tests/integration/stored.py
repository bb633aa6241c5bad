"""What the streams of a home hold, read beside the gatekeeper: the judge of what was acknowledged."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from nats.aio.client import Client

from broker_config import claims
from broker_config.claims import Permissions, Subjects
from broker_config.connection import connected
from broker_config.home import Home
from bus.identity import Keypair, creds_text, keypair
from gate.ledger import erased
from gate.ledger import events as E
from gate.ledger.block import decode, decode_reads
from gate.ledger.chain import Heads, ReadsHead
from gate.ledger.replay import read_blocks, stream_state


@dataclass
class Streams:
    """Events in order: (account, tenant_seq, event, content of a memory), and the records of READS as (account, record)."""

    events: list[tuple[str, int, E.AnyEvent, str]] = field(default_factory=list)
    records: list[tuple[str, E.AnyRecord]] = field(default_factory=list)
    blocks: int = 0
    epochs: list[int] = field(default_factory=list)  # of the owners that wrote the ledger's blocks, in order

    @property
    def memories(self) -> list[tuple[str, E.MemoryWritten, str]]:
        return [(account, e, text) for account, _, e, text in self.events if isinstance(e, E.MemoryWritten)]

    @property
    def recalls(self) -> list[E.Served]:
        return [r for _, r in self.records if isinstance(r, E.Served)]


@asynccontextmanager
async def core_client(home: Home, user: str = "gatekeeper") -> AsyncIterator[Client]:
    """A connection with the credential of one of the home's own processes."""
    async with connected(home.url, home.core_creds(user), home.ca_file) as nc:
        yield nc


@asynccontextmanager
async def any_right(home: Home) -> AsyncIterator[Client]:
    """Who holds CORE's signing key: may do anything to the streams, as a thief of the trust folder could."""
    core, signing = (Keypair((home.core_trust / f"{name}.nk").read_text().strip()) for name in ("account", "signing"))
    user, everything = keypair("user"), Permissions(pub=Subjects([">"]), sub=Subjects([">"]))
    jwt = claims.user_jwt(user.public, "thief", signing, core.public, int(time.time()), permissions=everything)
    path = home.path.parent / "thief.creds"
    path.write_text(creds_text(jwt, user))
    async with connected(home.url, path, home.ca_file) as nc:
        yield nc


async def streams(home: Home) -> Streams:
    """Both streams from the first block that is there to the last; their chains are checked on the way."""
    found = Streams()
    heads, reads_head = Heads(), ReadsHead()
    async with core_client(home) as nc:
        async with aclosing(read_blocks(nc, "LEDGER_0", missing=erased.instead(nc, 0))) as blocks:
            async for no, data in blocks:
                block = decode(data, no)
                heads.commit(block)
                found.blocks += 1
                found.epochs.append(block.header.epoch)
                for section in block.sections:
                    for seq, (meta, body) in enumerate(section.events, section.seq):
                        event = E.decode_event(meta)
                        is_memory = isinstance(event, E.MemoryWritten) and body is not None
                        text = E.decode_memory_body(body[E.SALT_BYTES :]).content if is_memory and body else ""
                        found.events.append((section.tenant, seq, event, text))
        begins = (await stream_state(nc, "READS_0")).first  # it is pruned by age, or lost its beginning
        async with aclosing(read_blocks(nc, "READS_0", max(1, begins))) as blocks:
            async for no, data in blocks:
                reads_block = decode_reads(data, no)
                reads_head.commit(reads_block)
                found.records += [(r.tenant, E.decode_record(r.data)) for r in reads_block.records]
    return found
