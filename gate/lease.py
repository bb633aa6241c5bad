"""Who serves a shard when several gatekeepers could: a lease in the stream OWNER_<shard>, renewed by its owner.

    owner.<shard>.lease   JSON: who, the how-manieth owner of the shard (epoch), held or released

Invariants: a lease changes hands only by a compare-and-swap on its subject's last sequence, through a majority of the servers;
`held` is true for LEASE_S after a confirmed renewal was *sent*, and false at once after a longer pause: the clock runs on while a
process is stopped. Another takes over when no renewal has come for TAKE_OVER_S: then the old owner has been silent for longer
than any client waits for one answer, so that one that was on its way when it froze finds nobody waiting.
What the old owner had on its way to the ledger is kept out by the fence (gate.shard), not by time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Final, Literal

import msgspec
from nats.aio.client import Client

from bus.errors import ConfigError
from bus.limits import REQUEST_TIMEOUT_S
from gate.clock import running_clock
from gate.ledger.errors import SteppedDown
from gate.ledger.jetstream import ApiError, StreamMissing, Unanswered, last_of, request

log = logging.getLogger(__name__)
LEASE_S: Final = 5.0
TAKE_OVER_S: Final = LEASE_S + REQUEST_TIMEOUT_S
RENEW_S: Final = 1.0
RENEW_TIMEOUT_S: Final = 2.0
POLL_S: Final = 0.25  # of a standby
assert RENEW_S + RENEW_TIMEOUT_S < LEASE_S  # one lost renewal costs nothing


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """`owner`: random, of one process. `epoch`: counts the owners of the shard. `host`, `pid`: for people."""

    owner: str
    epoch: int
    state: Literal["held", "released"]
    host: str = ""
    pid: int = 0


class _Ack(msgspec.Struct):
    seq: int = 0
    error: ApiError | None = None


class Lease:
    """One gatekeeper's hold on a shard. `acquire`, then `keep` beside the service, then `release`."""

    def __init__(
        self,
        nc: Client,
        shard: int,
        *,
        lease_s: float = LEASE_S,
        take_over_s: float = TAKE_OVER_S,
        clock: Callable[[], float] = running_clock,
    ) -> None:
        self.stream, self._subject = f"OWNER_{shard}", f"owner.{shard}.lease"
        self.owner, self.epoch = os.urandom(16).hex(), 0
        self._nc, self._lease_s, self._take_over_s, self._clock = nc, lease_s, take_over_s, clock
        self._seq = 0  # of our last record that we know of
        self._sent_at = float("-inf")  # of the last renewal that was confirmed

    @property
    def held(self) -> bool:
        """Whether this gatekeeper may answer."""
        return self._clock() < self._sent_at + self._lease_s

    @property
    def unclaimed(self) -> bool:
        """Whether the shard can't be another's yet: the owner may say that it can't serve, and nothing was done elsewhere."""
        return self._clock() < self._sent_at + self._take_over_s

    # --- standing by ------------------------------------------------------------------------------
    async def acquire(self) -> None:
        """Wait until the lease is free, and take it. `ConfigError` (owner_stream_missing) where the stream was never made."""
        seen, seen_at, told = -1, 0.0, ""
        while True:
            asked_at = self._clock()  # before the question: a pause while the answer lies here must not count as silence
            try:
                seq, record = await self._latest()
            except Unanswered:  # a silent broker says nothing about the owner: its time starts again
                seen = -1
            else:
                if seq != seen:
                    seen, seen_at = seq, self._clock()
                lapsed = asked_at - seen_at >= self._take_over_s
                if record is None or record.state == "released" or record.owner == self.owner or lapsed:
                    if await self._claim(seq, record):
                        return
                elif told != record.owner:
                    told = record.owner
                    log.info("standing by: pid %d on %s serves the shard (epoch %d)", record.pid, record.host, record.epoch)
            await asyncio.sleep(POLL_S)

    async def _claim(self, seq: int, before: Record | None) -> bool:
        self.epoch = before.epoch + 1 if before else 1
        sent_at = self._clock()
        try:
            ack = await self._publish("held", seq)
        except Unanswered:
            return False  # if it was stored after all, the next look finds it to be ours
        if ack.error is not None:
            return False
        self._confirmed(ack.seq, sent_at)
        log.info("the shard is ours (epoch %d)", self.epoch)
        return True

    # --- owning -----------------------------------------------------------------------------------
    async def keep(self) -> None:
        """Renew, until the lease is another's: `SteppedDown`."""
        while True:
            await self._renew()
            await asyncio.sleep(RENEW_S)

    async def _renew(self) -> None:
        sent_at = self._clock()
        try:
            ack = await self._publish("held", self._seq)
            if ack.error is None:
                self._confirmed(ack.seq, sent_at)
                return
            # Refused: an earlier renewal of ours whose answer was lost, or another owner.
            seq, record = await self._latest()
        except Unanswered:
            return
        if record is None or record.owner != self.owner:
            self._sent_at = float("-inf")
            raise SteppedDown(self.stream, seq)
        self._seq = seq

    async def release(self) -> None:
        """Nothing is answered any more: another may take over at once. If this is lost, it waits for TAKE_OVER_S."""
        held, self._sent_at = self.held, float("-inf")
        if held:
            try:
                await self._publish("released", self._seq)
            except Unanswered as e:
                log.info("the lease was not released: %s", e)

    def _confirmed(self, seq: int, sent_at: float) -> None:
        self._seq, self._sent_at = seq, sent_at

    # --- the stream -------------------------------------------------------------------------------
    async def _publish(self, state: Literal["held", "released"], expected: int) -> _Ack:
        record = Record(owner=self.owner, epoch=self.epoch, state=state, host=socket.gethostname(), pid=os.getpid())
        headers = {"Nats-Expected-Last-Subject-Sequence": str(expected)}
        data = msgspec.json.encode(record)
        try:
            raw = await request(self._nc, self._subject, data, timeout_s=RENEW_TIMEOUT_S, headers=headers)
            ack = msgspec.json.decode(raw, type=_Ack)
        except msgspec.MsgspecError as e:
            raise Unanswered(f"{self._subject}: a foreign answer ({e})") from e
        if ack.error is not None and ack.error.code == 503:  # "not now"
            raise Unanswered(str(ack.error))
        return ack

    async def _latest(self) -> tuple[int, Record | None]:
        """The sequence of the last record, and the record; (0, None) before the first."""
        try:
            last = await last_of(self._nc, self.stream, self._subject)
        except StreamMissing:
            raise ConfigError(
                f"The server has no stream {self.stream}.",
                reason="owner_stream_missing",
                advice="Make the shard's streams once, as the home's owner: `cordon broker init`.",
            ) from None
        return (last[0], msgspec.json.decode(last[1], type=Record)) if last else (0, None)
