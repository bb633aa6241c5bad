"""What a home to look at takes over from the live one, whatever came between."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from base64 import urlsafe_b64decode
from pathlib import Path

import pytest

from broker_config.followed import LOOK_S, Followed
from broker_config.home import Home
from broker_config.trust import EVERYBODY, Tenant, Trust
from bus.errors import CordonError


def followed(tmp_path: Path) -> tuple[Home, Home, Tenant]:
    """A live home with tenants `acme` and `zeta`, one that was made of it to look at, and `acme`."""
    live, copy = Home(tmp_path / "live"), Home(tmp_path / "copy")
    live.create()
    trust = Trust(live, time.time)
    trust.create()
    acme = trust.make_tenant("acme")
    trust.make_tenant("zeta")
    copy.create()
    shutil.copytree(live.trust, copy.trust, dirs_exist_ok=True)
    copy.restored.write_text(json.dumps({"source": str(live.path), "only": {"tenant": "acme"}}))
    return live, copy, acme


def revoked_for_the_broker(home: Home, tenant: Tenant) -> list[str]:
    claims = (home.broker_jwt / f"{tenant.account}.jwt").read_text().split(".")[1]
    return list(json.loads(urlsafe_b64decode(claims + "=="))["nats"].get("revocations", {}))


def test_a_revocation_that_a_kill_kept_from_the_broker_reaches_it_at_the_next_start(tmp_path: Path) -> None:
    live, copy, acme = followed(tmp_path)
    Trust(live, time.time).revoke(acme, [EVERYBODY])
    Trust(copy, time.time).revoke(acme, [EVERYBODY])  # taken over, and killed before the broker had it
    Followed(copy).before_start()
    assert EVERYBODY in revoked_for_the_broker(copy, acme)


def test_a_home_that_follows_nobody_leaves_the_brokers_folder_alone(tmp_path: Path) -> None:
    _, copy, acme = followed(tmp_path)
    copy.restored.unlink()
    Followed(copy).before_start()
    assert not (copy.broker_jwt / f"{acme.account}.jwt").exists()


def test_the_next_tenants_damaged_file_does_not_hide_who_was_cut(tmp_path: Path) -> None:
    live, copy, acme = followed(tmp_path)
    Trust(live, time.time).revoke(acme, [EVERYBODY])
    live.revocations("zeta").write_text("{")
    follower = Followed(copy)
    with pytest.raises(ValueError, match="truncated"):
        follower.tick(1.0)
    assert follower._unpushed == {"acme"}


def test_what_a_clock_ahead_revoked_is_taken_over_once(tmp_path: Path) -> None:
    live, copy, acme = followed(tmp_path)
    Trust(live, lambda: time.time() + 9_000).revoke(acme, [EVERYBODY])
    follower = Followed(copy)
    follower.before_start()
    first = copy.revocations("acme").read_bytes()
    assert first == live.revocations("acme").read_bytes()
    follower.tick(1.0)
    assert not follower._unpushed
    assert copy.revocations("acme").read_bytes() == first


def test_while_somebody_else_changes_the_trust_tree_nothing_is_written_to_it(tmp_path: Path) -> None:
    live, copy, acme = followed(tmp_path)
    follower = Followed(copy)
    with copy.trust_lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        Trust(live, time.time).revoke(acme, [EVERYBODY])
        follower.tick(1.0)
        assert not copy.revocations("acme").exists()
        fcntl.flock(lock, fcntl.LOCK_UN)
    with pytest.raises(CordonError):  # no broker is up to tell
        follower.tick(1.0 + LOOK_S)
    assert copy.revocations("acme").exists()
    assert follower._unpushed == {"acme"}
