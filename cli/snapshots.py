"""Copies of a home, and homes made of them."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .call import Call
from .command import HOME, Message, command, group
from .exits import NAMES, Exit, usage
from .ledger import walked
from .output import facts, note, print_json, progress, show, table
from .people import me
from .render import render_untrusted

if TYPE_CHECKING:
    from broker_config.snapshots import Copy

To = Annotated[str, typer.Option("--to", metavar="FOLDER", help="A folder for snapshots; else the home's `snapshots`.")]
WithKeys = Annotated[
    bool, typer.Option("--with-keys", metavar="", help="With every seed and credential: whoever reads it is this home.")
]
Named = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="A snapshot's name, or the folder of one or of a backup.")]


def register(app: typer.Typer) -> None:
    snapshots = group(app, "snapshot", "Copies of the ledger, policy and public trust.", panel=HOME)
    command(snapshots, "create", example="cordon snapshot create")(snapshot_create)
    command(snapshots, "list", example="cordon snapshot list")(snapshot_list)
    command(snapshots, "verify", example="cordon snapshot verify before-upgrade")(snapshot_verify)
    command(snapshots, "prune", example="cordon snapshot prune --keep 30")(snapshot_prune)
    command(app, "backup", example="cordon backup --to /mnt/backup/cordon")(backup)
    command(app, "restore", example="cordon restore --snapshot before-upgrade --into ./looked-at")(restore)


def snapshot_create(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="What to call it; else the time.")] = "",
    to: To = "",
    with_keys: WithKeys = False,
) -> int | None:
    """Copy the home as it is at this moment, while it serves. Blocks that the last snapshot has are shared with it.

    It holds the ledger with all texts, policy files, cordon.toml and the public side of the trust tree: no seed, no credential.
    """
    from broker_config.snapshots import Snapshots

    home = call.existing_home()
    with progress("copying the ledger") as words:
        copy = Snapshots(home, lambda at: words(walked(at))).create(name, _folder(to), keys=with_keys)
    return _tell(call, copy)


def snapshot_list(call: Call, to: To = "") -> int | None:
    """List the home's snapshots, oldest first."""
    from broker_config.snapshots import Snapshots

    copies = Snapshots(call.existing_home()).all(_folder(to))
    if call.json:
        print_json({"snapshots": [_document(c) for c in copies]})
        return None
    rows = [
        (render_untrusted(c.manifest.name), c.manifest.made, f"{c.manifest.block:,}", f"{c.manifest.memories:,}", _keys(c))
        for c in copies
    ]
    show(
        table(("name", "made", "block", "memories", "keys"), rows)
        if rows
        else "no snapshots: make one with `cordon snapshot create`"
    )
    return None


def snapshot_verify(call: Call, snapshot: Named) -> int | None:
    """Read every block and file of a snapshot or backup again. Exit 1 with findings, each with its file."""
    from broker_config.snapshots import Snapshots

    snapshots = Snapshots(call.existing_home())
    found = snapshots.verify(snapshots.find(snapshot))
    for internal in ("cut", "drill"):
        found.pop(internal)
    if call.json:
        print_json({"snapshot": snapshot, **found})
    else:
        show(
            facts({"blocks": f"{found['blocks']:,}", "events": f"{found['events']:,}"}), *map(render_untrusted, found["findings"])
        )
        show("" if found["findings"] else "no findings")
    return findings_exit(found["findings_count"], "the snapshot")


def snapshot_prune(
    call: Call,
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=1, help="How many of the newest stay.")] = 30,
) -> int | None:
    """Remove the home's old snapshots; the newest stay."""
    from broker_config.snapshots import Snapshots

    gone = Snapshots(call.existing_home()).prune(keep)
    if call.json:
        print_json({"removed": gone})
    else:
        show(f"removed {', '.join(map(render_untrusted, gone))}" if gone else "nothing to remove")
    return None


def backup(
    call: Call,
    to: Annotated[str, typer.Option("--to", metavar="FOLDER", help="Where the backup lies, or is to lie.")],
    with_keys: WithKeys = False,
) -> int | None:
    """Bring a backup up to date: only new blocks of the ledger are written, and what was erased since leaves it.

    The first time makes it. What it holds is what a snapshot holds; restore from it with --snapshot FOLDER.
    """
    from broker_config.snapshots import Snapshots

    home = call.existing_home()
    with progress("copying the ledger") as words:
        copy, blocks = Snapshots(home, lambda at: words(walked(at))).backup(Path(to), keys=with_keys)
    return _tell(call, copy, {"new_blocks": blocks})


def restore(
    call: Call,
    snapshot: Annotated[str, typer.Option("--snapshot", metavar="SNAPSHOT", help="Its name, or a folder; else the newest.")] = "",
    into: Annotated[str, typer.Option("--into", metavar="FOLDER", help="The new home's folder.")] = "",
    at: Annotated[str, typer.Option("--at", metavar="TIME", help="As it was then, like 2026-11-30T14:00:00Z.")] = "",
    position: Annotated[int, typer.Option("--position", metavar="BLOCK", min=0, help="Up to this block of the ledger.")] = 0,
    live: Annotated[
        bool, typer.Option("--live", metavar="", help="Agents may write in it: it takes the place of the home.")
    ] = False,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="This tenant alone; a part, to look at.")] = "",
    project: Annotated[str, typer.Option("--project", metavar="NAME", help="Only what was written into this project.")] = "",
    user: Annotated[str, typer.Option("--user", metavar="ID", help="Only what is about this end user.")] = "",
    agent: Annotated[
        str, typer.Option("--agent", metavar="NAME", help="Only what this agent wrote, and those that it delegated to.")
    ] = "",
    message: Message = "",
) -> int | None:
    """Make a new home of a snapshot or backup; read-only for agents unless --live is said.

    Erasures, holds, revocations and tighter settings that came later are carried over from the live home, if it is there; who
    restored it, and from what, stands in its ledger. Start it with `cordon --home FOLDER up`.

    With --tenant, --project, --user or --agent (all that are given must fit) it has the text of those memories alone. Others of
    that tenant are there by id, labels and lineage, shown as erased; other tenants aren't. Nobody can ever write in such a part.
    """
    from broker_config.restore import Restore, Wish
    from broker_config.snapshots import Snapshots

    if not into:
        raise usage("No folder for the new home was named.", reason="into_missing", field="into", advice="Give --into FOLDER.")
    if at and position:
        raise usage("--at and --position exclude each other.", reason="cut_twice", advice="Give one of them.")
    copy = named_or_newest(Snapshots(call.home), snapshot)
    given = {"tenant": tenant, "project": project, "user": user, "agent": agent}
    only = {name: value for name, value in given.items() if value}
    wish = Wish(into=Path(into), by=me(), why=message, position=position, before_ms=_ms(at) if at else 0, live=live, only=only)
    with progress("restoring") as words:
        made = Restore(call.home, copy, lambda told: words(walked(told))).run(wish)
    if call.json:
        print_json(made)
    else:
        carried = ", ".join(f"{kind} {n:,}" for kind, n in made["carried"].items()) or "nothing"
        shown = {"home": made["home"], "as of": f"block {made['block']:,}, {made['at']}", "memories": f"{made['memories']:,}"}
        lost = made["left_out"]
        if only:
            shown |= {"only": ", ".join(f"{k} {v}" for k, v in made["only"].items())}
            shown |= {"without text": f"{made['stubs']:,} others of the tenant: ids, labels and lineage"}
        shown |= {"carried over": carried, "left out": f"{lost['events']:,} later events, {lost['memories']:,} of them memories"}
        show(facts({k: render_untrusted(v) for k, v in shown.items()}))
        if only:
            show("It is a part of the ledger: nobody can write in it, and it can't be made live.")
        else:
            show("Agents can't write in it (read_only in its cordon.toml)." if made["read_only"] else "It is live.")
        show(f"start it: cordon up --detach --home {shlex.quote(into)}")
    if not made["later"]:
        note(f"cordon: later erasures, holds and revocations could not be looked up: {render_untrusted(made['later_why_not'])}.")
    return None


# --- words --------------------------------------------------------------------------------------------
def named_or_newest(snapshots: Any, name: str) -> Copy:
    if name:
        found: Copy = snapshots.find(name)
        return found
    there = snapshots.all()
    if not there:
        raise usage("The home has no snapshot.", reason="snapshot_missing", advice="Make one with `cordon snapshot create`.")
    newest: Copy = there[-1]
    return newest


def _folder(given: str) -> Path | None:
    return Path(given).expanduser().absolute() if given else None


def _ms(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise usage(
            f"{text!r} is no time.", reason="time_invalid", field="at", advice="Write it like 2026-11-30T14:00:00Z."
        ) from None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def _document(copy: Copy) -> dict[str, Any]:
    m = copy.manifest
    return {
        "name": m.name, "folder": str(copy.folder), "made": m.made, "block": m.block, "reads_seq": m.reads_seq,
        "events": m.events, "memories": m.memories, "keys": m.keys,
    }  # fmt: skip


def _keys(copy: Copy) -> str:
    return "with keys" if copy.manifest.keys else "no keys"


def _tell(call: Call, copy: Copy, more: dict[str, int] | None = None) -> int | None:
    """What was made. Exit 5 where the home's registry was damaged before: it is whole but for that."""
    from broker_config.snapshots import wrong_registry

    found = wrong_registry(copy.files / "trust")
    if call.json:
        print_json(_document(copy) | (more or {}) | {"findings": found})
    else:
        _show_made(copy, more or {})
    if not found:
        return None
    advice = "The home's own is damaged: `cordon doctor` says how to mend it; then make another."
    note(f"cordon: {NAMES[Exit.INCOMPLETE]}: {render_untrusted(found[0], 400)}. {advice}")
    return Exit.INCOMPLETE


def _show_made(copy: Copy, more: dict[str, int]) -> None:
    m = copy.manifest
    shown = {"folder": str(copy.folder), "block": f"{m.block:,}", "events": f"{m.events:,}", "memories": f"{m.memories:,}"}
    shown |= {name.replace("_", " "): f"{n:,}" for name, n in more.items()}
    shown["holds"] = "the ledger with its texts, policy, cordon.toml, public trust" + (", all keys" if m.keys else "; no keys")
    show(facts({k: render_untrusted(v) for k, v in shown.items()}))


def findings_exit(count: int, whose: str) -> int | None:
    if not count:
        return None
    note(f"cordon: {NAMES[Exit.REFUSED]}: {whose} has {count} finding{'' if count == 1 else 's'}.")
    return Exit.REFUSED
