"""An erasure beside a folder of copies: what is left of one whose making was killed goes, as soon as nothing writes to it."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from gate.snapshots import files
from gate.snapshots.files import LOCK_FILE, forget_in_all
from gate.snapshots.notary import Notary


def test_what_a_killed_snapshot_left_goes_once_what_it_had_started_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / ".night.part"
    left.mkdir()
    (left / "ledger-1-2.seg").write_bytes(b"a text")
    with (tmp_path / LOCK_FILE).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with monkeypatch.context() as patched:
            patched.setattr(files, "ENDING_S", 0.1)
            assert forget_in_all(tmp_path, frozenset(), Notary(tmp_path / "none")) == 0
        assert left.exists()  # of one that is being made, which looks for what was erased meanwhile itself
        ends = threading.Timer(0.3, lambda: fcntl.flock(lock, fcntl.LOCK_UN))
        ends.start()
        forget_in_all(tmp_path, frozenset(), Notary(tmp_path / "none"))
        ends.join()
    assert not left.exists()
