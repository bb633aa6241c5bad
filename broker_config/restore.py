"""A new home made of a snapshot or backup, up to a point in time. That it can be done, drills prove (broker_config/drills.py).

The new home has the same operator, tenants and credentials, for they prove who wrote what; its streams have ids of their own, and
its ledger says of whom it is a copy (`home_restored`). What was forbidden or erased since is carried over from the live home, if
that can be asked (gate.snapshots.carried).

Invariants: it is made beside its place and renamed when it is whole; nothing is poured before every block of the copy was read
again; a live one isn't made while the home it comes from serves: both would sign with the same keys.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import msgspec

from bus.errors import Conflict, CordonError, Rejected

from .control import Control
from .gate_runs import broker_for, run_gate
from .home import Home, private_folder, rendered, write_private
from .snapshots import KEYS, Copy, Say, Snapshots, damaged, link_streams, operator_of, result, trust_still, unsaid, wrong_files
from .status import read_status, utc
from .streams import ensure_streams
from .trust import Trust


@dataclass(frozen=True)
class Wish:
    """What to restore. `position`: the last block; `before_ms`: the last moment; both 0 = all that the copy has.

    `live`: agents may write in it. `by`, `why`: who restores, for its ledger. `only`: not all of it: a part, by tenant, project,
    user and agent (the gatekeeper's program knows what fits); nobody can write in it, and it stays so.
    """

    into: Path
    by: str
    why: str = ""
    position: int = 0
    before_ms: int = 0
    live: bool = False
    only: dict[str, str] = field(default_factory=dict)


class Restore:
    """`home`: the one that the copy was made of, which may be lost."""

    def __init__(self, home: Home, copy: Copy, say: Say = unsaid) -> None:
        self._home, self._copy, self._say = home, copy, say

    def run(self, wish: Wish) -> dict[str, Any]:
        """What the new home is: {home, block, at, read_only, later, carried, left_out…}.

        Raises Conflict (the folder is in use, the source serves) and Rejected (damaged, no such position, no keys).
        """
        if wish.live and wish.only:
            raise Rejected(
                "A part of a ledger can't be the one that goes on.",
                reason="part_not_live",
                field="live",
                advice="Restore all of it, or leave out --live to look at the part.",
            )
        into = wish.into.expanduser().absolute()
        if into.exists() and any(into.iterdir()):
            raise Conflict(f"{into} is there already.", reason="home_exists", advice="Name a folder that is not there yet.")
        wrong = wrong_files(self._copy)
        if wrong:
            raise damaged(f"{wrong[0]}.")
        source, why_not = self._source()
        if wish.live and source is not None and read_status(source) is not None:
            raise Conflict(
                f"The home {source.path} is up: two homes would serve with the same keys.",
                reason="source_up",
                advice="Run `cordon down` there first, or restore without --live to look.",
            )
        part = into.with_name(f".{into.name}.part")
        shutil.rmtree(part, ignore_errors=True)  # of a restore that was killed
        try:
            made = self._made(Home(part), source, wish, why_not, into)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)  # keys are in it
            raise
        if into.exists():
            into.rmdir()
        part.rename(into)
        return made

    def _made(self, new: Home, source: Home | None, wish: Wish, why_not: str, into: Path) -> dict[str, Any]:
        new.create()
        self._furnish(new, source, read_only=not wish.live)
        if wish.only.get("tenant"):
            _leave_out_tenants(new, wish.only["tenant"])
        made = self._pour(new, source, wish, why_not)
        made = {"home": str(into), "snapshot": self._copy.manifest.name, "by": wish.by, "why": wish.why, **made}
        made["source"] = str(source.path.absolute()) if source is not None else ""  # see followed
        write_private(new.restored, msgspec.json.format(msgspec.json.encode(made)).decode() + "\n")
        return made

    def _source(self) -> tuple[Home | None, str]:
        """The home that the copy was made of, if it is there; else why it isn't asked."""
        if not self._home.exists:
            return None, f"there is no home at {self._home.path}"
        if operator_of(self._home.operator_jwt) != self._copy.manifest.operator:
            return None, f"{self._home.path} is another operator's home"
        return self._home, ""

    def _furnish(self, new: Home, source: Home | None, *, read_only: bool) -> None:
        """Settings, policy, trust and credentials: as they are now where the source is there, else as the copy has them."""
        files = self._copy.files
        if source is not None:
            trees = [(source.trust, new.trust), (source.creds, new.creds), (source.broker_jwt, new.broker_jwt)]
            trees.append((source.path / "policy", new.path / "policy"))
            with trust_still(source):
                _copy_trees(trees)
        elif self._copy.manifest.keys:
            keys = files / KEYS
            _copy_trees([(keys / "trust", new.trust), (keys / "creds", new.creds)])
            _copy_trees([(files / "jwt", new.broker_jwt), (files / "policy", new.path / "policy")])
        else:
            raise Rejected(
                "This copy has no keys, and the home that has them isn't there.",
                reason="keys_missing",
                advice="Say where that home is with --home, or use a copy that was made --with-keys.",
            )
        settings = source.settings() if source is not None else _settings_of(files, new)
        kept = msgspec.structs.replace(settings, port=new.settings().port, read_only=read_only, servers=[], ca="")
        write_private(new.config, rendered(kept, "Restored: see restored.json."))

    def _pour(self, new: Home, source: Home | None, wish: Wish, why_not: str) -> dict[str, Any]:
        work = new.run / "restore"
        private_folder(work)
        link_streams(self._copy.folder, work)
        if source is not None:
            why_not = self._catch_up(source, work)
        asked = wish.position or (0 if wish.before_ms else self._copy.manifest.block)
        mode = ("--check", str(work), "--position", str(asked), "--before", str(wish.before_ms))
        checked = result(run_gate(new, *mode, say=self._say), found_is_fine=True)
        if not checked["ok"]:
            raise damaged(f"{checked['findings'][0].replace(str(work), str(self._copy.folder))}.")
        cut = checked["cut"]
        if not cut["block"] or (wish.position and cut["block"] != wish.position):
            raise Rejected(
                "The copy doesn't have what was asked for.",
                reason="position_unknown",
                field="position" if wish.position else "at",
                advice=f"It has blocks 1 to {cut['block']}."
                if wish.position
                else "Its first block is younger: name another time.",
            )
        wanted = {"block": cut["block"], "by": wish.by, "why": wish.why, "later": not why_not, "read_only": not wish.live}
        wanted |= {"only": wish.only} if wish.only else {}
        with broker_for(new):
            anyio.run(_make_streams, new, cut["reads_first"])
            poured = result(run_gate(new, "--pour", str(work), "--wanted", json.dumps(wanted), say=self._say))
        shutil.rmtree(work)
        at = utc(cut["at_ms"] / 1000)
        only = {**wish.only, "user": "…"} if wish.only.get("user") else wish.only  # an end user's id is personal
        return {**poured, "at": at, "only": only, "read_only": not wish.live, "later": not why_not, "later_why_not": why_not}

    def _catch_up(self, source: Home, work: Path) -> str:
        """What the live home has beyond the copy, into `work`; why that couldn't be had, or nothing."""
        try:
            result(Snapshots(source, self._say).capture(work))
        except CordonError as e:
            return e.message
        return ""


def _copy_trees(pairs: list[tuple[Path, Path]]) -> None:
    for source, target in pairs:
        if source.exists():
            shutil.copytree(source, target, dirs_exist_ok=True)


def _leave_out_tenants(new: Home, tenant: str) -> None:
    """Of other tenants, keys, credentials and settings stay behind."""
    trust = Trust(new, time.time)
    for name in [name for name in trust.tenant_names() if name != tenant]:
        (new.broker_jwt / f"{trust.tenant(name).account}.jwt").unlink(missing_ok=True)
        for folder in (new.tenant_trust(name), new.issuer_trust(name), new.creds / name, new.path / "policy" / name):
            shutil.rmtree(folder, ignore_errors=True)
    trust.write_registry()


def _settings_of(folder: Path, new: Home) -> Any:
    """cordon.toml of a copy, whose home is lost."""
    there = Home(new.path)
    config = folder / "cordon.toml"
    mine = new.config.read_text()
    write_private(new.config, config.read_text())
    try:
        return there.settings()
    finally:
        write_private(new.config, mine)


async def _make_streams(home: Home, reads_first: int) -> None:
    async with Control(home) as control:
        await ensure_streams(control._client(), home, reads_first=reads_first)
