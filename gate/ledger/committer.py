"""The one writer of a stream: one outstanding append, fenced by the stream sequence it expects.

Invariant: `append` returns only when exactly these bytes are at exactly the next sequence, and raises only what is certain. An
unknown outcome (time-out, lost connection, full buffer, a broker without responders) is asked again with the same bytes and the
same expectation: the fence makes a second copy impossible, and what stands at the sequence tells whose it is.
An append that is cancelled leaves its outcome unknown: this committer can't be used afterwards, make a new one from a replay.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from nats.aio.client import Client

from .errors import LedgerFull, LedgerRefused, LedgerWentBack, SteppedDown, TooLarge
from .jetstream import ApiError, Unanswered, request, stored, stream_state

BACK_OFF_FIRST_S: Final = 0.05
BACK_OFF_MOST_S: Final = 1.0
# A server that is cut off from the others takes itself for the stream's leader, and tells what it knows, for 10 s at most.
DEPOSED_S: Final = 15.0
REFUSALS_MAX: Final = 5  # an error that isn't about space may pass (a leader election, a configuration being changed)
FUTILE_MAX: Final = 2  # once may be an answer that came too late
HEADER_BYTES: Final = 256  # nats-py's own size check forgets the headers; the broker counts them and drops the connection
# Another append is there, or this very one is under way: a leader that lost the others refuses what it has proposed itself.
_WRONG_LAST: Final = 10071
_STORE_FAILED: Final = 10077  # carries the store's own words
_NO_SPACE: Final = frozenset({10023, 10028, 10047})  # insufficient resources, memory and storage resources exceeded
_TOO_LARGE: Final = 10054  # over the stream's max_msg_size
_NO_SPACE_WORDS: Final = ("maximum bytes", "maximum messages", "no space left")


class _Ack(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    error: ApiError | None = None


class Committer:
    """`last_seq` is the last sequence known to be in the stream. `retries` counts attempts beyond the first."""

    def __init__(
        self,
        nc: Client,
        stream: str,
        subject: str,
        last_seq: int,
        *,
        ack_timeout_s: float = 3.0,
        lease_s: float = 5.0,
        replicas: int = 1,
        identity: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stream = stream
        self.last_seq = last_seq
        self.retries = 0
        self._futile = 0  # attempts of the append under way that left nothing, without a word of why
        self._nc, self._identity = nc, identity
        self._subject = subject
        self._ack_timeout_s = ack_timeout_s
        self._lease_s = lease_s
        self._clock = clock
        self._outstanding = asyncio.Lock()
        self._unanswered_since: float | None = None
        self._doubt_s = DEPOSED_S if replicas > 1 else 0.0
        self._behind_since: float | None = None

    @property
    def healthy(self) -> bool:
        """False while the broker owes an answer (to an append or a `confirm`) for longer than the lease."""
        return self._unanswered_since is None or self._clock() - self._unanswered_since < self._lease_s

    @property
    def stuck(self) -> bool:
        """The broker answers questions about the stream and stores nothing, as after its disk was full, until a restart."""
        return self._futile >= FUTILE_MAX

    async def append(self, data: bytes) -> int:
        """Store `data` as the next message; its sequence. Waits as long as the outcome is unknown.

        `LedgerFull`, `TooLarge`, `LedgerRefused`: nothing of it is stored. `SteppedDown`, `LedgerWentBack`: stop serving.
        `Closed`: unknown.
        """
        room = self._nc.max_payload - HEADER_BYTES
        if len(data) > room:
            raise TooLarge(self.stream, f"a block of {len(data)} bytes, {room} are allowed")
        async with self._outstanding:
            self._asked()
            seq = await self._append(data)
            self._answered()
            self.last_seq, self._futile = seq, 0
            return seq

    async def confirm(self) -> None:
        """Ask whether the stream is still the same and ends where this writer left it: an idle one is then `healthy` too."""
        if self._outstanding.locked():
            return  # the append under way is the question
        async with self._outstanding:
            self._asked()
            try:
                state = await stream_state(self._nc, self.stream)
                last = state.last
                if self._identity and state.identity != self._identity:
                    raise LedgerWentBack(f"{self.stream} isn't the stream any more that was read at the start.")
                self._check_reaches(last)
            except Unanswered:
                return
            self._answered()
        if last > self.last_seq:
            raise SteppedDown(self.stream, self.last_seq + 1)

    async def _append(self, data: bytes) -> int:
        digest, refusals = hashlib.sha256(data).digest(), 0
        for pause_s in _back_off():
            ack = await self._publish(data)
            if ack is not None and ack.error is None:
                return self._acknowledged(ack)
            if ack is not None or not self.healthy:
                found = await self._is_stored(digest)
                if found:
                    return self.last_seq + 1
                refused = None if ack is None or ack.error is None or ack.error.err_code == _WRONG_LAST else ack.error
                self._futile += found is False and refused is None
                if found is False and refused is not None:
                    refusals += 1
                    self._give_up(refused, refusals)
            self.retries += 1
            await asyncio.sleep(pause_s)
        raise AssertionError("the back-off never ends")

    async def _publish(self, data: bytes) -> _Ack | None:
        """The broker's answer to one attempt; None if none came, or one that says that it can't tell yet."""
        headers = {"Nats-Expected-Last-Sequence": str(self.last_seq)}
        try:
            raw = await request(self._nc, self._subject, data, timeout_s=self._ack_timeout_s, headers=headers)
            ack = msgspec.json.decode(raw, type=_Ack)
        except (Unanswered, msgspec.MsgspecError):
            return None
        return None if ack.error is not None and _is_passing(ack.error) else ack

    def _acknowledged(self, ack: _Ack) -> int:
        if ack.stream != self.stream:
            raise LedgerRefused(self.stream, f"subject {self._subject} is stored by stream {ack.stream}")
        if ack.seq != self.last_seq + 1:
            raise self._went_back(ack.seq - 1)
        return ack.seq

    async def _is_stored(self, digest: bytes) -> bool | None:
        """Whether our bytes are at the expected sequence; None if nobody can tell. Another's bytes there are `SteppedDown`."""
        expected = self.last_seq + 1
        try:
            last = (await stream_state(self._nc, self.stream)).last
            self._check_reaches(last)
            if last < expected:
                return False
            there = await stored(self._nc, self.stream, expected)
        except Unanswered:
            return None
        if there is None:  # counted and not kept: a broker whose disk was full does so until it is started again
            self._futile += 1
            return None
        if hashlib.sha256(there).digest() != digest:
            raise SteppedDown(self.stream, expected)
        return True

    def _give_up(self, error: ApiError, refusals: int) -> None:
        """Nothing is stored and the broker said why: raise if the same bytes can't succeed."""
        if _is_no_space(error):
            self._answered()
            raise LedgerFull(self.stream, str(error))
        if error.err_code == _TOO_LARGE:
            self._answered()
            raise TooLarge(self.stream, str(error))
        if refusals >= REFUSALS_MAX:
            self._answered()
            raise LedgerRefused(self.stream, str(error))

    def _check_reaches(self, last: int) -> None:
        """`LedgerWentBack` if the stream ends before what was acknowledged; `Unanswered` while a deposed leader may say so."""
        if last >= self.last_seq:
            self._behind_since = None
            return
        if self._behind_since is None:
            self._behind_since = self._clock()
        if self._clock() - self._behind_since >= self._doubt_s:
            raise self._went_back(last)
        raise Unanswered(f"{self.stream} is said to end at {last}")

    def _went_back(self, last: int) -> LedgerWentBack:
        return LedgerWentBack(f"{self.stream} ends at sequence {last}; {self.last_seq} was acknowledged before.")

    def _asked(self) -> None:
        if self._unanswered_since is None:
            self._unanswered_since = self._clock()

    def _answered(self) -> None:
        self._unanswered_since = None


def _back_off() -> Iterator[float]:
    pause_s = BACK_OFF_FIRST_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, BACK_OFF_MOST_S)


def _is_no_space(error: ApiError) -> bool:
    words = error.description.lower()
    return error.err_code in _NO_SPACE or (error.err_code == _STORE_FAILED and any(w in words for w in _NO_SPACE_WORDS))


def _is_passing(error: ApiError) -> bool:
    """503 says "not now", except where the store itself failed."""
    return error.code == 503 and error.err_code != _STORE_FAILED and error.err_code not in _NO_SPACE
