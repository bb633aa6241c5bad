"""Checks of a home's files and of its server. Each yields what is wrong, by name; nothing = all is well."""

from __future__ import annotations

from collections.abc import Iterator

from bus.errors import CordonError

from . import server_rules as rules
from .examined import Examined
from .snapshots import MANIFEST, Copy, read_manifest, wrong_files


def secret_files(x: Examined) -> Iterator[str]:
    """Seeds and credentials that others than the owner may read or write."""
    return rules.exposed(x.home.secrets())


def secret_folders(x: Examined) -> Iterator[str]:
    """Folders of trust and creds that others may enter."""
    for top in (x.home.trust, x.home.creds):
        yield from rules.exposed([top, *(p for p in sorted(top.rglob("*")) if p.is_dir())])


def store_folders(x: Examined) -> Iterator[str]:
    """The home, ledger and projection folders that others may enter. What lies in them is as private as they are."""
    home, shards = x.home, x.home.shard(x.shard).parent
    return rules.exposed(
        [home.path, home.broker, home.broker_js, home.broker_jwt, shards, *sorted(shards.glob("*")), home.logs, home.run]
    )


def snapshot_folders(x: Examined) -> Iterator[str]:
    """Folders of snapshots that others may enter, and files in them with keys or texts that others may read."""
    folders = [p for p in (x.home.snapshots, *sorted(x.home.snapshots.glob("*"))) if p.is_dir()]
    yield from rules.exposed(folders)
    yield from rules.exposed(p for folder in folders[1:] for p in sorted(folder.rglob("*")) if p.is_file())


def snapshot_files(x: Examined) -> Iterator[str]:
    """Files of snapshots that aren't what their manifests say. Blocks are read by `cordon snapshot verify` alone."""
    for manifest in sorted(x.home.snapshots.glob(f"[!.]*/{MANIFEST}")):
        try:
            yield from wrong_files(Copy(manifest.parent, read_manifest(manifest.parent)))
        except CordonError as e:
            yield e.message


def server_version(x: Examined) -> Iterator[str]:
    return rules.version()


def server_listen(x: Examined) -> Iterator[str]:
    return rules.listen(x.server)


def server_routes(x: Examined) -> Iterator[str]:
    return rules.routes(x.server)


def server_anonymous(x: Examined) -> Iterator[str]:
    """Settings that let somebody in without a credential of this home."""
    yield from rules.anonymous(x.server)
    if x.server.get("operator") and x.server["operator"] != x.home.operator_jwt.read_text():
        yield "the operator is not this home's"


def server_sync(x: Examined) -> Iterator[str]:
    return rules.sync(x.server)
