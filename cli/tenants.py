"""A tenant's end: exported, deleted, and where it can't be moved to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .call import Call
from .cases import required_message
from .command import Message, command
from .erasures import show_receipt
from .exits import NAMES, Exit, Failure, usage
from .output import facts, note, print_json, progress, show
from .people import me
from .render import render_untrusted

if TYPE_CHECKING:
    from broker_config.control import Control

ERASING_S: Final = 20.0  # for the stores to be done; a large tenant's ledger takes longer
TenantName = Annotated[str, typer.Argument(metavar="NAME", help="The tenant's name.")]


def register_ends(tenants: typer.Typer) -> None:
    """Into the group `tenant`, whose other commands are in cli.admin."""
    command(tenants, "export", example="cordon tenant export acme --to ./acme")(tenant_export)
    command(tenants, "delete", example="cordon tenant delete acme --confirm acme -m 'the contract ended'")(tenant_delete)
    command(tenants, "move", example="cordon tenant move acme --shard 1")(tenant_move)


def tenant_export(
    call: Call,
    name: TenantName,
    to: Annotated[str, typer.Option(metavar="FOLDER", help="A new folder; else one in the home's exports.")] = "",
) -> int | None:
    """Write a tenant's memories, lineage, cases, projects and agents into files of JSON lines.

    It serves meanwhile; suspend it first for an export that it can be deleted by.
    """
    done = call.ask_control(lambda control: control.tenants.export(name, Path(to) if to else None))
    if call.json:
        print_json(done)
        return None
    show(facts({"folder": done["folder"], "position": str(done["position"])} | {k: str(v) for k, v in done["files"].items()}))
    if done["moved"]:
        note(f"cordon: {name} was written into meanwhile: to delete it, suspend it and export it again.")
    return None


def tenant_delete(
    call: Call,
    name: TenantName,
    confirm: Annotated[str, typer.Option(metavar="NAME", help="The tenant's name once more; else it is asked for.")] = "",
    without_export: Annotated[bool, typer.Option("--without-export", help="Nothing of it is wanted any more.")] = False,
    message: Message = "",
) -> int | None:
    """End a tenant for ever: cut its agents, erase its texts everywhere, remove its files and keys. Its name is not used again.

    An export of its very position must exist. Where open cases have memories of it, a second person gives the same command. Given
    again, it shows the receipt of the erasure.
    """
    if not confirm and sys.stdin.isatty():
        confirm = input(f"Deleting {name} can't be undone. Its name once more: ")
    if confirm != name:
        raise usage(
            "The tenant's name was not given once more.",
            reason="not_confirmed",
            advice=f"Give --confirm {name} if you mean it.",
            field="confirm",
        )
    reason = required_message(message)

    async def delete(control: Control) -> tuple[dict[str, Any], list[Path]]:
        import anyio

        done = await control.tenants.delete(name, without_export=without_export, message=reason, by=me())
        ends = anyio.current_time() + ERASING_S
        while _erasing(done) and anyio.current_time() < ends:
            done = await control.tenants.ended(done["account"])  # waits itself
        return done, control.tenants.exports(name)

    with progress("erasing"):
        done, exports = call.ask_control(delete)
    if call.json:
        print_json(done)
    else:
        show(render_untrusted(f"tenant {name} is deleted; its name is not used again"))
        _show_erasure(done, exports)
    if _erasing(done):
        note(
            f"cordon: {NAMES[Exit.INCOMPLETE]}: nobody is served its texts any more; the erasure goes on by itself: "
            "the same command shows how far it is."
        )
        return Exit.INCOMPLETE
    return None


def _erasing(done: dict[str, Any]) -> bool:
    return "erasure" in done and done["erasure"]["state"] != "done"


def _show_erasure(done: dict[str, Any], exports: list[Path]) -> None:
    import msgspec

    from bus import Erasure

    if "erasure" in done:
        show_receipt(msgspec.convert(done["erasure"], Erasure))
    for folder in exports:
        show(f"out of reach: its export at {folder} has its texts: remove it when nobody needs it")


def tenant_move(
    call: Call,
    name: TenantName,
    shard: Annotated[int, typer.Option("--shard", metavar="NUMBER", help="The shard to serve it.")],
) -> int | None:
    """Refused in this version: a home has one shard."""
    call.ask_control(lambda control: control.tenant_list())
    raise Failure(
        Exit.REFUSED,
        f"Tenant {name} stays in its shard: this version has shard 0 alone and moves nothing to {shard}.",
        reason="verb_not_available",
        advice="Make a home of its own for it, or see CHANGELOG.md for what a newer version has.",
        error="rejected",
    )
