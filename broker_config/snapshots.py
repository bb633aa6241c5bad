"""Snapshots and backups of a home: the ledger's blocks in segments, policy files, the public side of the trust tree, a manifest.

A snapshot is a folder of its own, made beside its place and renamed when it is whole; segments of the one before it are shared by
hard links. A backup is one folder that is brought up to date. Live state and stores are in neither: they are replayed.

Invariants: no seed and no credential is in a copy unless keys were asked for, and then nobody else may enter its folder; files
but segments are never replaced: each run writes them into a new folder (`files-N`), which counts when the manifest, written last,
names it. Segments are proven by the chain's own hashes (gate.snapshots), the other files by their SHA-256.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from bus.errors import ConfigError, Conflict, CordonError, Rejected, Unavailable
from bus.identity import verify_jwt, verify_registry
from bus.subjects import token

from .gate_runs import Ended, broker_for, run_gate
from .home import Home, private_folder, write_private
from .processes import try_lock
from .status import read_status, utc

MANIFEST: Final = "manifest.json"
STREAMS: Final = "streams.json"  # written by the gatekeeper's program
FORGOTTEN: Final = "forgotten.json"  # likewise: texts that were erased after the copy was made
KEYS: Final = "keys"
FILES: Final = "files-"  # and a number: the folder of what isn't the ledger
VERSION: Final = 1
BUSY_WAIT_S: Final = 5.0  # for the lock: what a killed one had started ends within this
BUSY_POLL_S: Final = 0.02
EXIT_UNAVAILABLE: Final = 69  # of the gatekeeper's program: ask again later
# Of trust/: what has no seed in it. The rest goes along with keys alone.
PUBLIC: Final = ("*.jwt", "revoked*.json", "deleted.json")

Say = Callable[[dict[str, Any]], None]


def unsaid(_: dict[str, Any]) -> None:
    """Nobody wants to know how far it is."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json. `source`: id of the home's ledger; `operator`: public key of its operator; `block`, `hash`: where the ledger
    ended; `at_ms`: when that block was decided; `files`: SHA-256 of everything but the segments and streams.json, by the path in
    the folder `under`.
    """

    v: int = VERSION
    name: str
    made: str
    source: str
    operator: str
    block: int
    hash: str
    at_ms: int
    reads_seq: int
    events: int
    memories: int
    keys: bool = False
    under: Annotated[str, msgspec.Meta(pattern=f"^{FILES}[0-9]{{1,9}}$")]
    files: dict[str, str] = {}


class Copy(msgspec.Struct, frozen=True):
    """A snapshot or backup that is whole: its folder and what it says of itself."""

    folder: Path
    manifest: Manifest

    @property
    def files(self) -> Path:
        """Where policy/, trust/ and the like are."""
        return self.folder / self.manifest.under


class Snapshots:
    def __init__(self, home: Home, say: Say = unsaid, clock: Callable[[], float] = time.time) -> None:
        self.home, self._say, self._clock = home, say, clock

    # --- making -----------------------------------------------------------------------------------
    def create(self, name: str = "", to: Path | None = None, *, keys: bool = False) -> Copy:
        """A new snapshot in the home's folder of them or in `to`, while it serves or is down. `Conflict` if the name is taken.

        `keys`: with every seed and credential; `Rejected` (target_readable) where others may enter the folder.
        """
        parent = (to or self.home.snapshots).expanduser().absolute()
        target = parent / token(name or f"{datetime.fromtimestamp(self._clock(), UTC):%Y%m%dt%H%M%Sz}", "snapshot")
        if keys:
            _check_closed(parent)
        private_folder(parent)
        with alone_in(parent) as lock:
            if target.exists():
                raise Conflict(f"{target} is there already.", reason="snapshot_exists", advice="Give another name.")
            _sweep(parent)
            part = _part_of(target)
            private_folder(part)
            try:
                before = self._newest(parent)
                if before is not None:
                    link_streams(before.folder, part)
                self._fill(part, target.name, keys=keys, keep=(lock,))
                part.rename(target)
            except (CordonError, OSError):
                shutil.rmtree(part, ignore_errors=True)  # it may be what fills the disk
                raise
        return Copy(target, read_manifest(target))

    def backup(self, to: Path, *, keys: bool = False) -> tuple[Copy, int]:
        """Bring a backup up to date: what is new since the last time goes into it. And how many blocks that were."""
        folder = to.expanduser().absolute()
        if keys:
            _check_closed(folder if folder.exists() else folder.parent)
        if list(folder.glob("[!.]*")) and not (folder / STREAMS).exists() and not list(folder.glob("*.seg")):
            raise Conflict(
                f"{folder} has something else in it than a backup.", reason="not_a_backup", advice="Name an empty folder."
            )
        private_folder(folder)
        with alone_in(folder) as lock:
            was = read_manifest(folder).block if (folder / MANIFEST).exists() else 0
            self._fill(folder, folder.name, keys=keys, keep=(lock,))
        copy = Copy(folder, read_manifest(folder))
        return copy, copy.manifest.block - was

    def _newest(self, parent: Path) -> Copy | None:
        """The newest snapshot there of this very ledger: its segments are shared."""
        mine = [c for c in whole_in(parent) if c.manifest.operator == operator_of(self.home.operator_jwt)]
        newest = max(mine, key=lambda c: c.manifest.block, default=None)
        marker = self.home.streams(0)
        now = msgspec.json.decode(marker.read_bytes(), type=dict[str, str]) if marker.exists() else {}
        return newest if newest is not None and newest.manifest.source == now.get("LEDGER_0") else None

    def _fill(self, folder: Path, name: str, *, keys: bool, keep: tuple[int, ...] = ()) -> None:
        result(self.capture(folder, keep))
        # Without what was erased meanwhile: from the first on the gatekeeper sees this folder.
        kept = result(self.capture(folder, keep))
        before = [path for path in folder.glob(f"{FILES}*") if path.name.removeprefix(FILES).isdecimal()]
        under = f"{FILES}{max((int(path.name.removeprefix(FILES)) for path in before), default=0) + 1}"
        with trust_still(self.home):
            files = self._files(folder / under, keys=keys)
        ledger = kept["ledger"]
        manifest = Manifest(
            name=name,
            made=utc(self._clock()),
            source=ledger["identity"],
            operator=operator_of(self.home.operator_jwt),
            block=ledger["last"],
            hash=ledger["hash"],
            at_ms=kept["ms"],
            reads_seq=kept["reads"]["last"],
            events=kept["events"],
            memories=kept["memories"],
            keys=keys,
            under=under,
            files=files,
        )
        write_private(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)).decode() + "\n")
        for old in before:
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()

    def capture(self, folder: Path, keep: tuple[int, ...] = ()) -> Ended:
        """The ledger's new blocks into `folder`; beside a home that is up, or with its broker started for a while.

        keep: descriptors that the process which copies holds until it ends.
        """
        mode = ("--capture", str(folder))
        if self.home.settings().servers or read_status(self.home) is not None:
            return run_gate(self.home, *mode, say=self._say, keep=keep)
        with broker_for(self.home):
            return run_gate(self.home, *mode, say=self._say, keep=keep)

    def _files(self, folder: Path, *, keys: bool) -> dict[str, str]:
        """Copy all but the ledger into a new folder; relative path → SHA-256."""
        home, wanted = self.home, [(self.home.config, "cordon.toml")]
        wanted += [(p, f"policy/{p.relative_to(home.path / 'policy')}") for p in _files_of(home.path / "policy", ("*",))]
        wanted += [(p, f"trust/{p.relative_to(home.trust)}") for p in _files_of(home.trust, PUBLIC)]
        wanted += [(p, f"jwt/{p.relative_to(home.broker_jwt)}") for p in _files_of(home.broker_jwt, ("*.jwt",))]
        if keys:
            for under in (home.trust, home.creds):
                wanted += [(p, f"{KEYS}/{p.relative_to(home.path)}") for p in _files_of(under, ("*",))]
        sums = {}
        for path, name in wanted:
            data = path.read_bytes()
            write_private(folder / name, data.decode())
            sums[name] = hashlib.sha256(data).hexdigest()
        return sums

    # --- those that are there ---------------------------------------------------------------------
    def all(self, to: Path | None = None) -> list[Copy]:
        """The home's snapshots, or those in `to`; oldest first."""
        return whole_in(to or self.home.snapshots)

    def find(self, name: str) -> Copy:
        """By name, or the folder of a snapshot or backup. `Rejected` (snapshot_unknown, snapshot_damaged)."""
        named = self.home.snapshots / name
        folder = named if (named / MANIFEST).exists() else Path(name).expanduser().absolute()
        if not (folder / MANIFEST).exists():
            known = ", ".join(c.manifest.name for c in self.all()) or "none"
            raise Rejected(
                f"There is no snapshot {name!r}.",
                reason="snapshot_unknown",
                field="snapshot",
                advice=f"Name one of the home's ({known}) or a folder that holds one.",
            )
        return Copy(folder, read_manifest(folder))

    def verify(self, copy: Copy) -> dict[str, Any]:
        """Every block and file read again: {ok, findings, findings_count, blocks, events, seconds}."""
        wrong = [*wrong_files(copy), *wrong_registry(copy.files / "trust")]
        ended = run_gate(self.home, "--check", str(copy.folder), say=self._say)
        found = result(ended, found_is_fine=True)
        return {
            **found,
            "ok": found["ok"] and not wrong,
            "findings": [*wrong, *found["findings"]],
            "findings_count": found["findings_count"] + len(wrong),
        }

    def prune(self, keep: int, prefix: str = "") -> list[str]:
        """Remove all but the newest `keep` of the home's snapshots whose names begin so; their names. Segments that others share
        stay with them; what is left of one whose making or removal was killed goes, too.
        """
        if not self.home.snapshots.exists():
            return []
        now = utc(self._clock())
        with alone_in(self.home.snapshots):
            mine = [copy for copy in self.all() if copy.manifest.name.startswith(prefix)]
            # By what they hold: a time from the future is of a clock that was wrong.
            gone = sorted(mine, key=lambda c: (c.manifest.block, c.manifest.made <= now, c.manifest.made))[:-keep]
            for copy in gone:
                copy.folder.rename(_part_of(copy.folder))  # from here on it counts no more
            _sweep(self.home.snapshots)
        return [copy.manifest.name for copy in gone]


# --- files --------------------------------------------------------------------------------------------
def _part_of(folder: Path) -> Path:
    """Where a snapshot lies while it is made or removed; an erasure deletes it, too (gate.snapshots.files)."""
    return folder.with_name(f".{folder.name}.part")


def _sweep(parent: Path) -> None:
    """Delete what has been cut off there: of one that was killed while it was made, or removed."""
    for left in parent.glob(".*.part"):
        shutil.rmtree(left)


def whole_in(parent: Path) -> list[Copy]:
    """Snapshots under a folder, oldest first; what isn't whole, or whose manifest can't be read, is none."""
    found = []
    for path in parent.glob(f"[!.]*/{MANIFEST}"):
        with suppress(Rejected):
            found.append(Copy(path.parent, read_manifest(path.parent)))
    return sorted(found, key=lambda c: (c.manifest.made, c.manifest.block))


def read_manifest(folder: Path) -> Manifest:
    """`Rejected` (snapshot_damaged) if it can't be read."""
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError) as e:
        raise damaged(f"{path} can't be read: {e}.") from None
    if manifest.v != VERSION:
        raise damaged(f"{path} has version {manifest.v}, which this program doesn't read.")
    return manifest


def wrong_files(copy: Copy) -> list[str]:
    """What isn't as the manifest says, as sentences."""
    found = []
    for name, sum_ in copy.manifest.files.items():
        path = copy.files / name
        try:
            if hashlib.sha256(path.read_bytes()).hexdigest() != sum_:
                found.append(f"{path}: it isn't what was written")
        except OSError as e:
            found.append(f"{path}: {e.strerror}")
    found += [f"{path}: the copy didn't have it" for path in _files_of(copy.files, ("*",)) if not _named(copy, path)]
    streams, m = copy.folder / STREAMS, copy.manifest
    try:
        ledger = msgspec.json.decode(streams.read_bytes())["ledger"]
        same = ledger["last"] > m.block or (ledger["last"], ledger["hash"]) == (m.block, m.hash)
        if not same or ledger["identity"] != m.source:
            found.append(f"{streams}: it isn't of the copy that {MANIFEST} describes")
    except (OSError, msgspec.MsgspecError, KeyError, TypeError) as e:
        found.append(f"{streams}: it can't be read ({e})")
    return found


def _named(copy: Copy, path: Path) -> bool:
    return str(path.relative_to(copy.files)) in copy.manifest.files


def wrong_registry(trust: Path) -> list[str]:
    """Of a home's trust/, or a copy's, which has it as it was: a sentence if the registry is damaged. A restore makes its own."""
    registry, operator = trust / "registry.jwt", trust / "operator.jwt"
    try:
        verify_registry(registry.read_text(), operator.read_text())
    except (ConfigError, OSError, ValueError) as e:
        return [f"{registry}: it doesn't verify ({e.strerror if isinstance(e, OSError) else e})"]
    return []


def damaged(message: str) -> Rejected:
    return Rejected(
        message, reason="snapshot_damaged", advice="Use another one; `cordon snapshot verify` tells all that is wrong with it."
    )


def link_streams(source: Path, target: Path) -> None:
    """Share a copy's segments, or copy them where the file system can't. `Rejected` (snapshot_damaged) names what is missing."""
    for path in (*sorted(source.glob("*.seg")), *source.glob(FORGOTTEN), source / STREAMS):
        try:
            try:
                os.link(path, target / path.name)
            except OSError:
                shutil.copyfile(path, target / path.name)
        except OSError as e:
            raise damaged(f"{path} can't be read: {e.strerror}.") from None


def operator_of(jwt: Path) -> str:
    return verify_jwt(jwt.read_text().strip()).subject


@contextmanager
def alone_in(folder: Path) -> Iterator[int]:
    """One process at a time makes or removes copies there. `Conflict` (snapshot_busy) if another one does.

    The lock's descriptor goes to whom it starts: of one that was killed, what it started holds the lock till it has ended, too.
    """
    with (folder / ".lock").open("a") as lock:
        deadline = time.monotonic() + BUSY_WAIT_S
        while not try_lock(lock.fileno()):
            if time.monotonic() > deadline:
                raise Conflict(
                    f"Another process makes or removes copies in {folder}.",
                    reason="snapshot_busy",
                    advice="Wait for it to end.",
                )
            time.sleep(BUSY_POLL_S)
        yield lock.fileno()


@contextmanager
def trust_still(home: Home) -> Iterator[None]:
    """Nobody changes the trust tree meanwhile."""
    with home.trust_lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def _files_of(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    found = {p for pattern in patterns for p in folder.rglob(pattern) if p.is_file() and p.name != ".lock"}
    return sorted(found)


def _check_closed(folder: Path) -> None:
    """Keys go where nobody else can enter, be it only to see names."""
    near = next(p for p in (folder, *folder.parents) if p.exists())
    if near.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Rejected(
            f"Keys are not copied into {folder}: others than you can enter {near}.",
            reason="target_readable",
            advice=f"Close it (`chmod 700 {near}`) or name another folder.",
        )


# --- the gatekeeper's program -------------------------------------------------------------------------
def result(ended: Ended, *, found_is_fine: bool = False) -> dict[str, Any]:
    """What a run gave; its refusal is raised."""
    if (ended.code == 0 or (found_is_fine and ended.code == 1)) and ended.last:
        return ended.last
    said = ended.last
    if ended.code < 0 and not said:
        raise Unavailable(
            f"The gatekeeper's program was killed at its work (signal {-ended.code}). What it had begun counts for nothing.",
            reason="program_killed",
            advice="Give the command again. If it is killed again, see whether the machine has run out of memory.",
        )
    kind: type[CordonError] = Unavailable if ended.code == EXIT_UNAVAILABLE or not said else Rejected
    raise kind(
        str(said.get("message", f"The gatekeeper's program ended with {ended.code}.")),
        reason=str(said.get("reason", "internal")),
        advice=str(said.get("advice", "See logs/gatekeeper.log of the home.")),
    )
