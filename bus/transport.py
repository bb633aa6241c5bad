"""The one file that talks to nats: requests with matched answers, bounded subscriptions, reconnecting with jitter.

Invariants: a reply that the caller's `accept` does not recognise never resolves a request; nothing waits without a bound; a lost
frame is always reported (`Gap`); a permission violation fails what it belongs to at once, not by a time-out.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from random import Random
from typing import Any, Final, Protocol, TypeVar

import anyio
import nats
import nats.errors
from nats.aio.client import Server
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from . import limits
from .errors import Closed, CordonError, Denied, FrameTooLarge, Unavailable
from .identity import Credential
from .queue import FrameQueue, Gap
from .servers import Servers, servers
from .subjects import inbox

R = TypeVar("R")
Accept = Callable[[bytes], R | None]

# Reasons of the Unavailable that `Transport.request` raises: the first prove that nobody got the request.
NOT_DELIVERED: Final = frozenset({"no_responders", "not_connected"})
OUTCOME_UNKNOWN: Final = frozenset({"timeout", "connection_lost"})
_NO_RESPONDERS: Final = "503"
_PING_S: Final = 20  # twice unanswered = reconnect: a silent peer is noticed within a minute, not nats-py's six
_FLUSH_S: Final = 4 * _PING_S  # longer than a silent peer is listened to: a flush ends by an answer or with its connection
_AUTH_REFUSALS_MAX: Final = 2  # one may be a server that still loads its accounts
_VIOLATION = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"')
_AUTH = re.compile(r"authorization violation|authentication (?:revoked|expired|timeout)|account authentication expired")


@dataclass(frozen=True)
class Timing:
    """Time-outs in seconds, and the chance behind jitter."""

    connect_s: float = limits.CONNECT_TIMEOUT_S
    request_s: float = limits.REQUEST_TIMEOUT_S
    deadline_s: float = limits.CLIENT_DEADLINE_S
    close_s: float = limits.CONNECT_TIMEOUT_S
    random: Random = field(default_factory=Random)


class Subscription(Protocol):
    async def receive(self) -> bytes | Gap:
        """The next payload in order. Raises Denied (not allowed to listen here) or Closed."""

    async def aclose(self) -> None: ...


class Transport(Protocol):
    """What the client needs of a broker. Another implementation must keep the invariants of this module's docstring."""

    async def request(self, subject: str, payload: bytes, accept: Accept[R], timeout_s: float) -> R:
        """The first reply for which `accept` gives something else than None.

        Raises Unavailable with reason `no_responders`, `not_connected` (both: not delivered), `connection_lost` or `timeout`
        (both: outcome unknown); Denied; FrameTooLarge; Closed.
        """

    async def subscribe(self, subjects: Sequence[str], capacity: int) -> Subscription:
        """One queue of at most `capacity` frames for all `subjects`; listening has begun when this returns."""

    async def aclose(self) -> None: ...


class _Pending:
    """A request that waits for its answer. The first of `resolve` and `fail` counts."""

    def __init__(self, subject: str, accept: Accept[Any]) -> None:
        self.subject = subject
        self.accept = accept
        self.done = anyio.Event()
        self.answer: Any = None
        self.error: CordonError | None = None

    def resolve(self, answer: Any) -> None:
        if not self.done.is_set():
            self.answer = answer
            self.done.set()

    def fail(self, error: CordonError) -> None:
        if not self.done.is_set():
            self.error = error
            self.done.set()


class _Listener:
    """One queue fed by one or more subscriptions of nats-py."""

    def __init__(self, capacity: int, forget: Callable[[_Listener], None]) -> None:
        self.queue = FrameQueue(capacity, limits.PENDING_BYTES_MAX)
        self.subscriptions: list[NatsSubscription] = []
        self._forget = forget

    @property
    def subjects(self) -> list[str]:
        return [s.subject for s in self.subscriptions]

    async def put(self, msg: Msg) -> None:
        self.queue.put(msg.data)

    async def receive(self) -> bytes | Gap:
        return await self.queue.get()

    async def aclose(self) -> None:
        self._forget(self)
        self.queue.fail(Closed("This subscription is closed.", reason="closed"))
        for subscription in self.subscriptions:
            with suppress(nats.errors.Error):  # closed or closing: the broker has forgotten it already
                await subscription.unsubscribe()


class NatsTransport:
    """A connection to a nats-server with one credential. Open it with `open_nats`."""

    def __init__(self, where: Servers, credential: Credential, name: str, timing: Timing) -> None:
        self._servers, self._credential, self._name, self._timing = where, credential, name, timing
        self._nc = where.client()
        self._up = anyio.Event()
        self._closed = anyio.Event()
        self._opened = False
        self._end: CordonError | None = None  # why nothing more can be sent
        self._inbox = f"{inbox(credential.key)}.{secrets.token_hex(8)}"
        self._pending: dict[str, _Pending] = {}
        self._listeners: set[_Listener] = set()
        self._flushing: set[asyncio.Task[None]] = set()
        self._auth_refusals = 0
        self._last_error = "no answer"

    # --- opening and closing ----------------------------------------------------------------------
    async def open(self) -> None:
        """Connect, or raise Unavailable (nobody there), Denied (credential refused) or ConfigError."""
        try:
            with anyio.move_on_after(self._timing.connect_s), suppress(nats.errors.Error, OSError):
                await self._connect()
                self._nc.options["allow_reconnect"] = True
                await self._nc.subscribe(f"{self._inbox}.*", cb=self._on_reply)
                await self._settle()
                self._opened = True
        finally:
            if not self._opened:
                self._finish(self._unreachable())
                await self._disconnect()
        if self._end:
            raise self._end
        self._up.set()

    async def _connect(self) -> None:
        await self._nc.connect(
            **self._servers.options(self._credential),
            name=self._name,
            inbox_prefix=inbox(self._credential.key),
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
            # A server that is silent leaves time for the next.
            connect_timeout=ceil(self._timing.connect_s / len(self._servers.urls)),
            reconnect_time_wait=1,  # between tries of the first connect; later `_next_server` decides
            max_reconnect_attempts=-1,
            reconnect_to_server_handler=self._next_server,
            ping_interval=_PING_S,
            # Only once connected: else nats-py tries a refused credential again and again, and a cancelled try is never closed.
            allow_reconnect=False,
        )

    def _next_server(self, servers: list[Server], _info: dict[str, Any]) -> tuple[Server, float]:
        """The least tried server, after 0.25 s to a span that doubles to 5 s: a herd of clients comes back spread out."""
        server = min(servers, key=lambda s: s.reconnects)
        span = limits.RECONNECT_FIRST_S * 2 ** min(server.reconnects + 1, 16)
        return server, self._timing.random.uniform(limits.RECONNECT_FIRST_S, min(limits.RECONNECT_MOST_S, span))

    async def aclose(self) -> None:
        """Fail what waits, flush, disconnect: shielded from cancellation and bounded, so no connection is left open."""
        self._finish(Closed("The bus is closed.", reason="closed", advice="Use it inside its `async with`."))
        await self._disconnect()

    async def _disconnect(self) -> None:
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + self._timing.close_s):
            await self._nc.close()
            await self._closed.wait()  # nats-py may be closing already, in a task that nobody else waits for
        for flushing in list(self._flushing):  # no PONG comes any more
            flushing.cancel()

    def _finish(self, error: CordonError) -> None:
        self._end = self._end or error
        self._fail_pending(self._end)
        for listener in self._listeners:
            listener.queue.fail(self._end)
        self._up.set()  # who waits for the connection learns its end

    def _unreachable(self) -> Unavailable:
        return unavailable(
            "not_connected", f"No connection to {self._servers} within {self._timing.connect_s:g} s: {self._last_error}."
        )

    # --- requests ---------------------------------------------------------------------------------
    async def request(self, subject: str, payload: bytes, accept: Accept[R], timeout_s: float) -> R:
        pending = _Pending(subject, accept)
        token = secrets.token_hex(8)
        self._pending[token] = pending
        sent = False
        try:
            with anyio.move_on_after(timeout_s):
                await self._wait_up()
                check_size(payload, self._nc.max_payload)
                sent = True
                await self._nc.publish(subject, payload, reply=f"{self._inbox}.{token}")
                await pending.done.wait()
        except nats.errors.Error as e:  # closed or its buffer full between the check and the call
            raise self._end or unavailable("not_connected", f"The request was not sent: {e}.") from None
        finally:
            del self._pending[token]
        if pending.error:
            raise pending.error
        if pending.done.is_set():
            answer: R = pending.answer
            return answer
        reason, what = ("timeout", "No answer") if sent else ("not_connected", "No connection")
        raise unavailable(reason, f"{what} within {timeout_s:.3g} s.")

    async def _wait_up(self) -> None:
        # Never publish while disconnected: nats-py would buffer it and deliver it long after the caller gave up.
        while not self._end and not self._nc.is_connected:
            self._mark_down()  # nats-py knows before its callback tells
            await self._up.wait()
        if self._end:
            raise self._end

    def _mark_down(self) -> None:
        if self._up.is_set():
            self._up = anyio.Event()

    async def _on_reply(self, msg: Msg) -> None:
        pending = self._pending.get(msg.subject.rpartition(".")[2])
        if pending is None:
            return
        if not msg.data and msg.headers and msg.headers.get("Status") == _NO_RESPONDERS:
            pending.fail(unavailable("no_responders", "The gatekeeper is not there."))
            return
        answer = pending.accept(msg.data)
        if answer is not None:
            pending.resolve(answer)

    # --- subscriptions ----------------------------------------------------------------------------
    async def subscribe(self, subjects: Sequence[str], capacity: int) -> _Listener:
        listener = _Listener(capacity, self._listeners.discard)
        with anyio.move_on_after(self._timing.request_s) as scope:
            await self._wait_up()
            self._listeners.add(listener)
            await self._listen(subjects, listener)
        if scope.cancelled_caught:
            with anyio.CancelScope(shield=True):
                await listener.aclose()
            raise unavailable("not_connected", "The broker did not confirm the subscription.")
        return listener

    async def _listen(self, subjects: Sequence[str], listener: _Listener) -> None:
        try:
            for subject in subjects:
                made = await self._nc.subscribe(
                    subject,
                    cb=listener.put,
                    pending_msgs_limit=listener.queue.capacity,
                    pending_bytes_limit=listener.queue.bytes_max,
                )
                listener.subscriptions.append(made)
            await self._settle()
        except nats.errors.Error as e:
            await listener.aclose()
            raise self._end or unavailable("not_connected", f"The subscription was not made: {e}.") from None

    async def _settle(self) -> None:
        """Return when the broker has read all that was sent so far."""
        await self._flush()  # nats-py sends this PING ahead of what is still in its buffer, and then the buffer
        await self._flush()

    async def _flush(self) -> None:
        # Who waits may be cancelled; the PING may not: nats-py's reader ends, for good, at a PONG for a cancelled one.
        flushing, done = asyncio.create_task(self._nc.flush(_FLUSH_S)), anyio.Event()
        self._flushing.add(flushing)
        flushing.add_done_callback(self._flushing.discard)
        flushing.add_done_callback(lambda _: done.set())
        flushing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # perhaps nobody waits for it any more
        await done.wait()
        if flushing.cancelled():
            raise nats.errors.ConnectionClosedError
        flushing.result()

    # --- what nats-py reports ---------------------------------------------------------------------
    async def _on_error(self, error: Exception) -> None:
        self._last_error = str(error) or type(error).__name__
        if isinstance(error, nats.errors.SlowConsumerError):
            for listener in self._listeners:
                if error.sub in listener.subscriptions:
                    listener.queue.lose("overflow", 1)
            return
        text = self._last_error.lower()
        if violation := _VIOLATION.search(text):
            self._on_violation(violation[1], violation[2])
        elif _AUTH.search(text):
            await self._on_auth_refused()

    def _on_violation(self, what: str, subject: str) -> None:
        # nats-py tells the subject in lower case; the error names it as it was written.
        for pending in list(self._pending.values()) if what == "publish" else ():
            if pending.subject.lower() == subject:
                pending.fail(violation(what, pending.subject))
        for listener in list(self._listeners) if what == "subscription" else ():
            for written in (s for s in listener.subjects if s.lower() == subject):
                listener.queue.fail(violation(what, written))

    async def _on_auth_refused(self) -> None:
        self._auth_refusals += 1
        if not self._opened or self._auth_refusals >= _AUTH_REFUSALS_MAX:
            self._finish(self._refused())

    def _refused(self) -> Denied:
        return Denied(
            f"The broker refused the credential of {self._credential.name or self._credential.key}: {self._last_error}.",
            reason="credential_refused",
            advice="It is expired, revoked, of a suspended tenant or of another home: ask the operator.",
        )

    async def _on_disconnected(self) -> None:
        self._mark_down()
        self._fail_pending(unavailable("connection_lost", "The connection broke while the answer was awaited."))

    async def _on_reconnected(self) -> None:
        self._auth_refusals = 0
        for listener in self._listeners:
            listener.queue.lose("reconnected")
        self._up.set()

    async def _on_closed(self) -> None:
        # nats-py ends by itself when the broker cuts a live connection (revoked or expired), and tells it nowhere else.
        self._last_error = str(self._nc.last_error or self._last_error)
        refused = _AUTH.search(self._last_error.lower())
        ended = unavailable("not_connected", f"The broker ended the connection: {self._last_error}.")
        self._finish(self._refused() if refused else ended)
        self._closed.set()

    def _fail_pending(self, error: CordonError) -> None:
        for pending in list(self._pending.values()):
            pending.fail(error)


# --- what every transport raises ----------------------------------------------------------------------
def check_size(payload: bytes, limit: int) -> None:
    """FrameTooLarge if the broker would cut the connection for it. `limit`: the broker's max_payload, bytes."""
    # Requests carry no headers; those would count too, though nats-py forgets them.
    if len(payload) > limit:
        raise FrameTooLarge(
            f"A frame of {len(payload):,} bytes is over the broker's limit of {limit:,}.",
            size=len(payload),
            limit=limit,
            advice="Send less text in one call.",
        )


def violation(what: str, subject: str) -> Denied:
    """The broker forbids a `publish` to, or a `subscription` of, this subject."""
    verb = "send to" if what == "publish" else "listen to"
    return Denied(
        f"The broker does not let this credential {verb} {subject}.",
        reason="permission_violation",
        advice="Use a credential whose role has this verb, or ask the operator for the right.",
    )


def unavailable(reason: str, message: str) -> Unavailable:
    """`reason`: one of NOT_DELIVERED or OUTCOME_UNKNOWN."""
    # The gatekeeper didn't ask for a pause: the client's own back-off is enough.
    return Unavailable(message, reason=reason, advice="Check that the bus is up (`cordon status`).", retry_after_s=0.0)


async def open_nats(
    url: str | Sequence[str],
    credential: Credential,
    *,
    name: str = "",
    ca_file: str | None = None,
    timing: Timing | None = None,
) -> Transport:
    """A connected transport. `url`: one server of the bus, or several. Raises Unavailable, Denied or ConfigError."""
    transport = NatsTransport(servers(url, ca_file), credential, name or credential.name, timing or Timing())
    await transport.open()
    return transport
