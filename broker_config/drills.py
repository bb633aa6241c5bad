"""Drills: a copy is restored into a scratch folder and compared with what it was made of, to know that it can be done, how
long it takes and what would be lost.

    full                    all of it
    single-user             one end user's memories alone
    point-in-time           as it was at a moment in its middle
    contamination-rollback  all of it serves, and a project is taken back to before a case, and forth again

Each compares the restored ledger with the copy event by event (gate.snapshots.compare), rebuilds and verifies every store, and
notes in drills.jsonl what came of it against the targets of cordon.toml. Invariant: the home itself is left as it is.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import anyio
import msgspec

import bus
from bus.errors import Rejected, Unavailable

from . import supervisor
from .control import Control
from .gate_runs import broker_for, run_gate, verify
from .home import Home, private_folder
from .restore import Restore, Wish
from .snapshots import Copy, Say, result, unsaid
from .status import utc

Kind = Literal["full", "single-user", "point-in-time", "contamination-rollback"]
KINDS: Final = get_args(Kind)
SHOWN_MAX: Final = 100  # of the history
LOOKED_AT_MAX: Final = 200  # memories that are looked at one by one before and after a rollback
UP_S: Final = 120.0


@dataclass(frozen=True)
class Drill:
    """One kind of drill of one copy. `home`: the one that the copy was made of."""

    home: Home
    copy: Copy
    kind: Kind = "full"
    say: Say = unsaid

    def run(self) -> dict[str, Any]:
        """What came of it, as it is noted: {at, kind, snapshot, ok, findings, missed, seconds, lost…}.

        `seconds`: until it could serve. `lost`: what the home has by now and this restore hasn't. Raises Rejected
        (drill_impossible: the copy has nothing to do it with) and what a restore raises.
        """
        private_folder(self.home.run)
        scratch = Path(tempfile.mkdtemp(prefix="drill-", dir=self.home.run))
        now = time.time()
        try:
            done = self._drilled(scratch, self._wish(scratch))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        done["missed"] = self._missed(done)
        done["ok"] = not done["findings"] and not done["missed"]
        at = utc(now, "seconds")
        done = {"at": at, "kind": self.kind, "snapshot": self.copy.manifest.name, **done}
        with self.home.drills.open("a") as history:
            history.write(json.dumps(done) + "\n")
        self.home.drills.chmod(0o600)
        return done

    def _wish(self, scratch: Path) -> Wish:
        into, why = scratch / "home", f"a drill: {self.kind}"
        if self.kind == "single-user":
            return Wish(into=into, by="drill", why=why, only=self._choice("user", "no memory of an end user")["user"])
        if self.kind == "point-in-time":
            return Wish(into=into, by="drill", why=why, before_ms=self._choice("ms", "no block")["ms"])
        return Wish(into=into, by="drill", why=why)

    def _choice(self, what: str, nothing: str) -> dict[str, Any]:
        """What the copy has to do it with (see gate.snapshots.check)."""
        checked = result(run_gate(self.home, "--check", str(self.copy.folder), say=self.say), found_is_fine=True)
        chosen: dict[str, Any] = checked["drill"]
        if not chosen.get(what):
            raise Rejected(
                f"The copy has {nothing}.", reason="drill_impossible", field="kind", advice="Drill another kind, or another copy."
            )
        return chosen

    def _drilled(self, scratch: Path, wish: Wish) -> dict[str, Any]:
        started = time.perf_counter()
        made = Restore(self.home, self.copy, self.say).run(wish)
        new = Home(wish.into)
        with broker_for(new):
            rebuilt = result(run_gate(new, "--rebuild", say=self.say))
            seconds = round(time.perf_counter() - started, 3)
            verified = result(run_gate(new, "--verify", say=self.say), found_is_fine=True)
            back = scratch / "back"
            private_folder(back)
            result(run_gate(new, "--capture", str(back), say=self.say))
        facts = self._compared(back, made)
        findings = [*verified["findings"], *facts["findings"]]
        more: dict[str, Any] = {}
        if self.kind == "point-in-time" and made["at_ms"] != wish.before_ms:  # the time of a block
            findings.append(f"it is as of {made['at']}, not of the moment that was asked for")
        if self.kind == "contamination-rollback":
            rolled = anyio.run(_rolled_back, new, self._choice("memory", "no memory"))
            findings += rolled.pop("findings")
            more = rolled
        now_ms = time.time() * 1000 if self.kind != "point-in-time" else wish.before_ms
        lost = made["left_out"] if self.kind != "point-in-time" else {"events": 0, "memories": 0}
        return {
            "findings": findings,
            "block": made["block"],
            "memories": made["memories"],
            "facts": facts["facts"],
            "texts": facts["texts"],
            "seconds": seconds,
            "replayed": rebuilt["replayed"],
            "later": made["later"],
            "lost": {**lost, "seconds": max(0, round((now_ms - made["at_ms"]) / 1000))},
            **more,
        }

    def _compared(self, back: Path, made: Mapping[str, Any]) -> dict[str, Any]:
        """Against the copy itself, from which no drill goes on."""
        mode = ("--compare", str(back), "--with", str(self.copy.folder), "--position", str(made["block"]))
        return result(run_gate(self.home, *mode, say=self.say), found_is_fine=True)

    def _missed(self, done: Mapping[str, Any]) -> list[str]:
        """Targets of cordon.toml that it didn't reach, as sentences."""
        targets, missed = self.home.settings().drill, []
        if targets.rto_s and done["seconds"] > targets.rto_s:
            missed.append(f"it could serve after {done['seconds']:g} s; the target is {targets.rto_s} s (drill.rto_s)")
        if targets.rpo_s and done["lost"]["seconds"] > targets.rpo_s:
            missed.append(f"{done['lost']['seconds']:,} s would be lost; the target is {targets.rpo_s:,} s (drill.rpo_s)")
        return missed


class _Shown(msgspec.Struct):
    """What a line must have to be shown."""

    at: str
    snapshot: str
    seconds: float
    lost: dict[str, int]
    ok: bool
    kind: str = "full"


def history(home: Home) -> list[dict[str, Any]]:
    """The last SHOWN_MAX drills, oldest first; a line that was cut short by a kill, or altered, is none."""
    found = []
    if home.drills.exists():
        for line in home.drills.read_bytes().splitlines()[-SHOWN_MAX:]:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                msgspec.json.decode(line, type=_Shown)
                found.append(json.loads(line))
    return found


# --- contamination-rollback -------------------------------------------------------------------------------
async def _rolled_back(new: Home, chosen: Mapping[str, str]) -> dict[str, Any]:
    """The scratch home serves; a project of it goes back to before the newest case's first root, and forth again.

    Where it has no case one is opened, of a memory in its middle.
    """
    status = await anyio.to_thread.run_sync(lambda: supervisor.start(new, detach=True, ready_timeout_s=UP_S))
    try:
        if status.state != "ready":
            why = status.error.message if status.error is not None else ""
            raise Unavailable(
                f"The restored home doesn't serve. {why}", reason="drill_not_serving", advice="Run `cordon verify`."
            )
        tenant, name = chosen["tenant"], f"drill-{secrets.token_hex(4)}"
        async with Control(new) as control:
            projects = [p["name"] for p in await control.project_list(tenant) if p["state"] != "deleted"]
            see = ("public", "internal", "restricted")
            await control.agent_add(tenant, name, role="operator", projects=projects, see=see, person=name)
        async with bus.connect_operator(url=new.url, creds=str(new.agent_creds(tenant, name))) as desk:
            found = await _there_and_back(desk, chosen["memory"])
        ended = await anyio.to_thread.run_sync(verify, new)
        found["findings"] += ended.last.get("findings", ["the restored home can't be verified"])
        return found
    finally:
        await anyio.to_thread.run_sync(supervisor.stop, new)


async def _there_and_back(desk: bus.Desk, memory: str) -> dict[str, Any]:
    cases = [k for k in await desk.cases() if k.roots]
    case = cases[0] if cases else await desk.hold_now(memory, "a drill")
    started = time.perf_counter()
    plan = await desk.plan_rollback(case.case)
    ids = [m.id for m in plan.members[: LOOKED_AT_MAX // 2]], [m.id for m in plan.again[: LOOKED_AT_MAX // 2]]
    looked = [*ids[0], *ids[1]]
    before = {id_: await _state(desk, id_) for id_ in looked}
    counts = (await desk.stats()).counts
    applied = await desk.apply_rollback(plan.plan, "a drill")
    seconds = round(time.perf_counter() - started, 3)
    wanted = {**dict.fromkeys(ids[0], "held"), **dict.fromkeys(ids[1], "active")}
    findings = [f"after the rollback {i} is {s}, not {wanted[i]}" for i in looked if (s := await _state(desk, i)) != wanted[i]]
    held = (await desk.stats()).counts["held"] - counts["held"]
    if held != plan.count - plan.already_held:
        findings.append(f"the rollback holds {held} memories more; its plan said {plan.count - plan.already_held}")
    await desk.release(applied.case, "the drill is over")
    findings += [f"after its release {i} is {s}, not {before[i]}" for i in looked if (s := await _state(desk, i)) != before[i]]
    if (await desk.stats()).counts != counts:
        findings.append("after its release the tenant's counts aren't as they were")
    rollback = {"case": case.case, "held": plan.count, "again": plan.again_count, "seconds": seconds}
    return {"findings": findings, "rollback": rollback}


async def _state(desk: bus.Desk, id_: str) -> str:
    return str((await desk.why(id_)).facts["state"])
