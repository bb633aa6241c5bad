"""Segments: files of blocks as the streams had them, and `streams.json`, which says what a folder of them holds.

    segment = "CSG1" ‖ (u32 len ‖ block)*        named STREAM-FIRST-LAST.seg, in decimal

Invariant: a segment is never appended to, only replaced as a whole (when a text in it is erased), so hard links to it may be
shared; `streams.json` is written last, so what it names is whole. A segment is proven by the hash of its last block.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct as Layout
from typing import Final

import msgspec

from bus.errors import ConfigError, CordonError
from gate.ledger.block import decode, strip
from gate.ledger.errors import LedgerCorrupt
from gate.snapshots.notary import Notary

MAGIC: Final = b"CSG1"
SEGMENT_BYTES_MAX: Final = 64 << 20  # then the next one begins: what an erasure rewrites, and a check reads, at a time
STREAMS_FILE: Final = "streams.json"
FORGOTTEN_FILE: Final = "forgotten.json"
LOCK_FILE: Final = ".lock"
VERSION: Final = 1
ENDING_S: Final = 2.0  # for the lock: what a killed one had started is told to end, and does within this
ENDING_POLL_S: Final = 0.02
_U32: Final = Layout(">I")

Erased = frozenset[tuple[str, int]]
"""(tenant, tenant_seq) of memories whose text is erased."""


class SnapshotDamaged(CordonError):
    """A file of a copy isn't what was written."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"{path} is damaged: {what}.",
            reason="snapshot_damaged",
            advice="Use another snapshot or backup; `cordon snapshot verify` tells all that is wrong with this one.",
        )


class SnapshotForeign(CordonError):
    """A copy of another ledger."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"What lies in {path} is a copy of another home's ledger.",
            reason="snapshot_foreign",
            advice="Give an empty folder.",
        )


class Segment(msgspec.Struct, frozen=True):
    """Blocks `first` to `last`; `hash`: of the last one, hex."""

    file: str
    first: int
    last: int
    hash: str


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """One stream's part. `last` is `first` - 1 when there is no block of it; `hash`: of the last block, hex."""

    identity: str
    first: int = 1
    last: int = 0
    hash: str = ""
    segments: list[Segment] = []


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """streams.json. `ms`: when the last block of the ledger was decided; `events`, `memories`: how many are in its blocks."""

    v: int = VERSION
    shard: int
    ledger: Stream
    reads: Stream
    ms: int = 0
    events: int = 0
    memories: int = 0


def read_kept(folder: Path) -> Kept | None:
    """What the folder holds; None if no capture into it was ever finished. `SnapshotDamaged`."""
    path = folder / STREAMS_FILE
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as e:
        raise SnapshotDamaged(path, str(e)) from None
    if kept.v != VERSION:
        raise SnapshotDamaged(path, f"version {kept.v} is unknown, this program reads version {VERSION}")
    if any(os.sep in s.file for stream in (kept.ledger, kept.reads) for s in stream.segments):
        raise SnapshotDamaged(path, "it names a file outside of its folder")
    return kept


def write_kept(folder: Path, kept: Kept) -> None:
    _write(folder / STREAMS_FILE, [msgspec.json.format(msgspec.json.encode(kept), indent=1)])


def read_segment(folder: Path, segment: Segment) -> Iterator[tuple[int, bytes]]:
    """(number, bytes) of its blocks, not decoded. `SnapshotDamaged`."""
    path = folder / segment.file
    try:
        data = path.read_bytes()
    except OSError as e:
        raise SnapshotDamaged(path, e.strerror or type(e).__name__) from None
    if data[: len(MAGIC)] != MAGIC:
        raise SnapshotDamaged(path, "it doesn't begin as a segment does")
    at, no = len(MAGIC), segment.first
    while at < len(data):
        end = at + 4
        size = _U32.unpack_from(data, at)[0] if end <= len(data) else 0
        if not size or end + size > len(data):
            raise SnapshotDamaged(path, f"it ends within block {no}")
        yield no, data[end : end + size]
        at, no = end + size, no + 1
    if no != segment.last + 1:
        raise SnapshotDamaged(path, f"it ends at block {no - 1}; {segment.last} was written")


def read_stream(folder: Path, stream: Stream) -> Iterator[tuple[Segment, int, bytes]]:
    """Every block of a stream, with the segment that it lies in."""
    for segment in stream.segments:
        for no, data in read_segment(folder, segment):
            yield segment, no, data


class SegmentWriter:
    """Writes blocks that follow each other into new segments of a folder; `done` are those that are whole and on disk."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._blocks: list[bytes] = []
        self._bytes, self._first, self._last, self._hash = 0, 0, 0, b""
        self.done: list[Segment] = []

    def add(self, no: int, data: bytes, hash_: bytes) -> None:
        if self._bytes >= SEGMENT_BYTES_MAX:
            self.close()
        self._first = self._first or no
        self._last, self._hash = no, hash_
        self._blocks.append(data)
        self._bytes += len(data)

    def close(self) -> None:
        if not self._blocks:
            return
        file = f"{self._name}-{self._first}-{self._last}.seg"
        _write(self._folder / file, framed(self._blocks))
        self.done.append(Segment(file, self._first, self._last, self._hash.hex()))
        self._blocks, self._bytes, self._first = [], 0, 0


def framed(blocks: Iterable[bytes]) -> list[bytes]:
    return [MAGIC, *(part for block in blocks for part in (_U32.pack(len(block)), block))]


def sweep(folder: Path, kept: Kept | None) -> None:
    """Delete what a capture that was killed has left: segments that streams.json doesn't name, halves of files."""
    named = {s.file for stream in (kept.ledger, kept.reads) for s in stream.segments} if kept is not None else set()
    for path in (*folder.glob("*.seg"), *folder.glob(".*.new")):  # a gatekeeper that erases tries again
        if path.name not in named:
            path.unlink()


def forget(folder: Path, ledger: Stream, erased: Erased, notary: Notary) -> int:
    """Take these texts out of the ledger's segments; how many were replaced. Every hash stays as it was.

    What goes is noted before, for the erasure itself may be younger than the copy. Repeated, it finds nothing to do.
    `SnapshotDamaged`: that segment, and what comes after it, is as it was.
    """
    replaced = 0
    for segment in ledger.segments:
        path = folder / segment.file
        blocks, changed = [], False
        for no, data in read_segment(folder, segment):
            try:
                stripped = without(data, no, erased)
            except LedgerCorrupt as e:
                raise SnapshotDamaged(path, e.message) from None
            changed = changed or stripped is not data
            blocks.append(stripped)
        if changed:
            _note_forgotten(folder, ledger.identity, erased, notary)
            _write(path, framed(blocks))
            replaced += 1
    return replaced


class _Forgotten(msgspec.Struct, frozen=True):
    """forgotten.json. `texts`: {tenant: [tenant_seq…]}; the signature is over these very bytes."""

    texts: msgspec.Raw
    signature: str


def forgotten(folder: Path, ledger: Stream, notary: Notary) -> Erased:
    """Texts that were taken out of this copy after it was made. `SnapshotDamaged`, also if the gatekeeper didn't write so."""
    path = folder / FORGOTTEN_FILE
    try:
        note = msgspec.json.decode(path.read_bytes(), type=_Forgotten)
        if not notary.signed(_signed(ledger.identity, note.texts), note.signature):
            raise SnapshotDamaged(path, "this home's gatekeeper didn't write it")
        found = msgspec.json.decode(note.texts, type=dict[str, list[int]])
    except FileNotFoundError:
        if path.exists():
            raise SnapshotDamaged(path, "the gatekeeper's credential, which proves it, isn't here") from None
        return frozenset()
    except (OSError, msgspec.MsgspecError, ConfigError) as e:
        raise SnapshotDamaged(path, str(e)) from None
    return frozenset((tenant, seq) for tenant, seqs in found.items() for seq in seqs)


def _note_forgotten(folder: Path, identity: str, erased: Erased, notary: Notary) -> None:
    before = forgotten(folder, Stream(identity=identity), notary)
    if erased <= before:
        return
    noted: dict[str, list[int]] = {}
    for tenant, seq in sorted(before | erased):
        noted.setdefault(tenant, []).append(seq)
    texts = msgspec.json.encode(noted)
    note = _Forgotten(msgspec.Raw(texts), notary.sign(_signed(identity, texts)))
    _write(folder / FORGOTTEN_FILE, [msgspec.json.encode(note)])


def _signed(identity: str, texts: bytes | msgspec.Raw) -> bytes:
    """Of one ledger's copies alone: a note can't be put beside another's."""
    return b"cordon.forgotten.1\0" + identity.encode() + b"\0" + bytes(texts)


def forget_in_all(snapshots: Path, erased: Erased, notary: Notary) -> int:
    """`forget` in every copy under a folder, also in one that is being made; how many segments were replaced.

    What is left of one whose making was killed goes as a whole. One that is being made, and has no streams.json yet, looks for
    what was erased meanwhile itself.
    """
    if not snapshots.exists():
        return 0
    with (snapshots / LOCK_FILE).open("a") as lock:
        if _locked(lock.fileno(), wait_s=ENDING_S if any(snapshots.glob(".*.part")) else 0.0):
            for left in (*snapshots.glob(".*.part"), *snapshots.glob("*/.*.new")):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    kept = ((streams.parent, read_kept(streams.parent)) for streams in sorted(snapshots.glob(f"*/{STREAMS_FILE}")))
    return sum(forget(folder, k.ledger, erased, notary) for folder, k in kept if k is not None)


def _locked(fd: int, wait_s: float) -> bool:
    """Whoever makes or removes a copy holds this lock; of one that was killed, what it had started, until that has ended."""
    give_up = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= give_up:
                return False
        time.sleep(ENDING_POLL_S)


def without(data: bytes, no: int, erased: Erased) -> bytes:
    """The block without these texts; the same object if it has none of them."""
    sections = decode(data, no).sections
    named = any(
        body is not None and (section.tenant, seq) in erased
        for section in sections
        for seq, (_, body) in enumerate(section.events, section.seq)
    )
    return strip(data, erased) if named else data


def _write(path: Path, parts: Iterable[bytes]) -> None:
    """Replace a file at once and durably, readable by its owner only."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")  # an erasure and a capture may be at the same one
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as f:
        f.writelines(parts)
        f.flush()
        os.fsync(f.fileno())
    new.replace(path)
