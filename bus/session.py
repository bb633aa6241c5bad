"""One credential on one connection: asks the gatekeeper and matches its answers. What agents' and operators' clients share.

Invariants: an answer counts only if it names this request, this agent and this project; a write is sent again only under the same
idempotency key; an operator's change is sent again only if nobody can have got it; every call ends within its deadline.
"""

from __future__ import annotations

import difflib
import os
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec

from . import limits, subjects
from .errors import ConfigError, DeadlineExceeded, Denied, MalformedFrame, Rejected, Unavailable
from .frames import VERB_OF, Answer, Draft, Frame, Refusal, Reply, decode_reply, encode, raise_refusal, words_of
from .identity import Credential, parse_creds
from .servers import CA_VARIABLE, URL_VARIABLE
from .transport import NOT_DELIVERED, OUTCOME_UNKNOWN, Timing, Transport, open_nats

A = TypeVar("A", bound=Answer)

HOME_VARIABLE = "CORDON_HOME"
CREDS_VARIABLE = "CORDON_CREDS"
PROJECT_VARIABLE = "CORDON_PROJECT"


class Session:
    """Sends requests of one credential over a transport."""

    def __init__(self, transport: Transport, credential: Credential, *, project: str = "", timing: Timing | None = None) -> None:
        """`project` is the default one, empty = the credential's only one."""
        self.transport = transport
        self.credential = credential
        self._project = project
        self._timing = timing or Timing()

    # --- projects ---------------------------------------------------------------------------------
    def project(self, asked: str | None = None) -> str:
        """The project of a call: asked for > the default > the credential's only one. Denied at once if not in the credential."""
        projects = self.credential.projects
        name = asked or self._project
        if not name and len(projects) != 1:
            has = ", ".join(projects) or "none"
            raise ConfigError(
                f"No project was named, and the credential has {has}.",
                reason="project_missing",
                advice=f"Give project=, or set {PROJECT_VARIABLE}." if projects else "Ask the operator for one with a project.",
            )
        if name and name not in projects:
            raise self._no_project(name)
        return name or projects[0]

    def any_project(self) -> str:
        """For verbs that concern the agent and not a project: the subject names one all the same."""
        return self.project(self._project or next(iter(self.credential.projects), None))

    def _no_project(self, name: str) -> Denied:
        projects = self.credential.projects
        near = difflib.get_close_matches(name, projects, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return Denied(
            f"This credential has no project {name[: limits.NAME_CHARS_MAX]!r}.{hint}",
            reason="project_unknown",
            advice=f"It has: {', '.join(projects) or 'none'}.",
            field="project",
        )

    # --- requests ---------------------------------------------------------------------------------
    async def ask(self, request: Frame, answer: type[A], *, project: str = "", repeatable: bool = True) -> A:
        """Send `request` and return its answer, trying again within the deadline where that is safe.

        project: empty for operators' verbs. repeatable: whether doing it twice equals doing it once; if not, it is sent again
        only when the broker proves that nobody got it. Raises what the refusal says, DeadlineExceeded, FrameTooLarge, Closed.
        """
        request = msgspec.structs.replace(request, request_id=secrets.token_hex(12))
        subject, payload = self._subject(request, project), _encoded(request)
        attempts = _Attempts(self._timing, request, repeatable)
        while True:
            try:
                reply: Reply = await self.transport.request(
                    subject, payload, lambda data: self._accept(data, request.request_id, project), attempts.timeout_s()
                )
                return _expect(reply, answer, type(request))
            except Unavailable as e:
                await anyio.sleep(attempts.next_delay_s(e))

    def _subject(self, request: Frame, project: str) -> str:
        verb, c = VERB_OF[type(request)], self.credential
        return subjects.memory(c.tenant, project, verb, c.key) if project else subjects.ops(c.tenant, verb, c.key)

    def _accept(self, data: bytes, request_id: str, project: str) -> Reply | None:
        reply: Reply | None
        try:
            reply = decode_reply(data)
        except MalformedFrame:
            reply = None
        if reply is not None and self._is_ours(reply, request_id, project):
            return reply
        return None

    def _is_ours(self, reply: Reply, request_id: str, project: str) -> bool:
        # A refusal that was given before the subject was understood names no project.
        right_project = not project or reply.project == project or (isinstance(reply, Refusal) and not reply.project)
        return reply.request_id == request_id and reply.agent in ("", self.credential.key) and right_project


class _Attempts:
    """How often and how long one call is tried. Times are seconds of anyio's clock."""

    def __init__(self, timing: Timing, request: Frame, repeatable: bool) -> None:
        self._timing, self._request, self._repeatable = timing, request, repeatable
        self._ends = anyio.current_time() + timing.deadline_s
        self._delay = limits.RETRY_FIRST_S
        self._perhaps_done = False

    def timeout_s(self) -> float:
        """For the next attempt. A change that can't be sent twice gets all the time there is."""
        left = max(0.0, self._ends - anyio.current_time())
        return min(left, self._timing.request_s) if self._repeatable else left

    def next_delay_s(self, error: Unavailable) -> float:
        """How long to wait before the next attempt; raises if there is none."""
        self._perhaps_done = self._perhaps_done or error.reason in OUTCOME_UNKNOWN
        jitter = self._timing.random.uniform(1 - limits.RETRY_JITTER, 1 + limits.RETRY_JITTER)
        delay = max(self._delay * jitter, error.retry_after_s)
        self._delay = min(2 * self._delay, limits.RETRY_MOST_S)
        again = self._repeatable or error.reason in NOT_DELIVERED
        if not again or anyio.current_time() + delay >= self._ends:
            raise self._last(error) from error
        return delay

    def _last(self, error: Unavailable) -> Unavailable:
        if error.reason not in NOT_DELIVERED | OUTCOME_UNKNOWN and not self._perhaps_done:
            return error  # the gatekeeper itself said that it can't: nothing is unknown
        verb, key = VERB_OF[type(self._request)], ""
        if not self._perhaps_done:
            advice = "Nothing was done: try again when the bus is up."
        elif isinstance(self._request, Draft):
            key = self._request.idempotency_key
            advice = f"It may be stored or not: write the same again with idempotency_key={key!r} and you get its one receipt."
        elif self._repeatable:
            advice = "Ask again."
        else:
            advice = "It may have happened or not: look at the case or memory before you do it again."
        return DeadlineExceeded(
            f"No answer to {verb!r} in time: {error.message}",
            reason="outcome_unknown" if self._perhaps_done else "not_delivered",
            advice=advice,
            idempotency_key=key,
        )


def _encoded(request: Frame) -> bytes:
    """Bytes of a request, checked against its own type: a wrong value is refused here, by name, and not on the other side."""
    try:
        payload = encode(request)
        msgspec.json.decode(payload, type=type(request))
    except (msgspec.MsgspecError, UnicodeEncodeError, TypeError, OverflowError) as e:
        what, _, place = str(e).partition(" - at `$.")
        field = place.rstrip("`")
        words = ", ".join(words_of(type(request), field))
        raise Rejected(
            f"A value of this {VERB_OF[type(request)]} is not allowed: {what.rstrip('.')}.",
            reason="bad_field",
            field=field,
            advice=f"Give one of {words}." if words else "docs/wire.md says what each field takes.",
        ) from None
    return payload


def _expect(reply: Reply, answer: type[A], request: type[Frame]) -> A:
    if isinstance(reply, Refusal):
        raise raise_refusal(reply, request)
    if not isinstance(reply, answer):
        raise MalformedFrame(
            f"The answer to {VERB_OF[request]!r} is a {reply.__struct_config__.tag} frame.",
            reason="answer_unexpected",
            advice="Gatekeeper and client are of different versions: update the older one.",
        )
    return reply


# --- opening ----------------------------------------------------------------------------------------
@asynccontextmanager
async def open_session(
    url: str | Sequence[str] | None,
    creds: str | os.PathLike[str] | None,
    *,
    project: str | None,
    name: str,
    ca_file: str | None,
    timing: Timing | None,
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[Session]:
    """A session from arguments, else from the environment. Raises ConfigError, Denied or Unavailable."""
    env = os.environ if environ is None else environ
    given = creds or env.get(CREDS_VARIABLE)
    credential = _credential(given)
    told = url or env.get(URL_VARIABLE)
    if told:
        ca_file = ca_file or env.get(CA_VARIABLE)  # of those servers; a home on this machine has no TLS
    address = told or _home_url(given, env) or ""
    default = project or env.get(PROJECT_VARIABLE, "")
    transport = await open_nats(address, credential, name=name, ca_file=ca_file, timing=timing)
    try:
        yield Session(transport, credential, project=default, timing=timing)
    finally:
        await transport.aclose()


def _credential(creds: str | os.PathLike[str] | None) -> Credential:
    if not creds:
        raise ConfigError(
            "No credentials were given.",
            reason="creds_missing",
            advice=f"Give creds= (a path or the text of a .creds file) or set {CREDS_VARIABLE}.",
        )
    text = str(creds)
    if "-----BEGIN" not in text:
        try:
            text = Path(text).expanduser().read_text()
        except (OSError, ValueError) as e:
            why = e.strerror if isinstance(e, OSError) and e.strerror else "not a text file"
            raise ConfigError(
                f"The credentials {text} can't be read: {why}.",
                reason="creds_unreadable",
                advice="Check the path; `cordon quickstart` and `cordon agent add` make such files.",
            ) from None
    credential = parse_creds(text)
    if not subjects.is_token(credential.tenant):
        raise ConfigError("The credentials belong to no tenant.", reason="tenant_missing", advice="Use an agent's credentials.")
    if credential.expires_at and credential.expires_at <= time.time():
        raise Denied(
            f"The credential of {credential.name} has expired.",
            reason="credential_expired",
            advice="Ask the operator for a new one.",
        )
    return credential


def _home_url(creds: str | os.PathLike[str] | None, env: Mapping[str, str]) -> str | None:
    """Where the home that the credentials lie in (or `CORDON_HOME`, or ./.cordon) says that it serves; None if there is none."""
    homes = [Path(env.get(HOME_VARIABLE, ".cordon"))]
    if creds and "-----BEGIN" not in str(creds):
        homes.insert(0, Path(creds).expanduser().absolute().parent.parent.parent)  # <home>/creds/<tenant>/<agent>.creds
    for home in homes:
        try:
            url = msgspec.json.decode((home / "run" / "status.json").read_bytes(), type=_Status).url
        except (OSError, ValueError):
            continue
        if url:
            return url
    return None


class _Status(msgspec.Struct):
    url: str = ""
