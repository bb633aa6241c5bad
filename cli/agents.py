"""Delegation: agent delegate, as an agent; issuer, the process that signs for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .call import Call
from .command import HOME, command
from .exits import Exit, Failure
from .output import facts, print_json, show

if TYPE_CHECKING:
    from bus.client import Child
    from bus.identity import Credential


def register(app: typer.Typer) -> None:
    command(app, "issuer", example="cordon issuer --home /srv/cordon", panel=HOME)(issuer)


def register_agents(agents: typer.Typer) -> None:
    """Into the group `agent`, whose other commands are the home owner's (cli.admin)."""
    command(agents, "delegate", example="cordon agent delegate helper --project p1 --verb query --as acme/writer")(agent_delegate)


def issuer(call: Call) -> int | None:
    """Run the issuer alone, in the foreground; `cordon up` runs it by itself.

    It needs the home's trust/issuer folder, registry.jwt, operator.jwt and its own credential, and no other key. CORDON_URL says
    where the broker is.
    """
    from broker_config.issuer_process import main

    return main(["--home", str(call.existing_home().path)])


def agent_delegate(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the helper: it is called PARENT--NAME.")],
    project: Annotated[
        list[str], typer.Option("--project", metavar="NAME", help="A project it may use (repeatable); else its parent's.")
    ] = [],  # noqa: B006
    verb: Annotated[
        list[str],
        typer.Option("--verb", metavar="VERB", help="What it may do (repeatable); else what its parent may, but to delegate."),
    ] = [],  # noqa: B006
    clearance: Annotated[str, typer.Option(metavar="CLASS", help="The highest it may see: public, internal, restricted.")] = "",
    ceiling: Annotated[str, typer.Option(metavar="ORIGIN", help="The highest origin of what it writes.")] = "",
    tool: Annotated[list[str], typer.Option(metavar="NAME", help="A tool of its parent's (repeatable); else all.")] = [],  # noqa: B006
    user: Annotated[str, typer.Option(metavar="ID", help="The end user of a user gateway's session.")] = "",
    ttl: Annotated[int | None, typer.Option(metavar="SECONDS", help="How long it lives; else an hour.")] = None,
    out: Annotated[str, typer.Option(metavar="FILE", help="Where its .creds file goes; else into the home.")] = "",
) -> int | None:
    """Make a helper of the agent that --as names: a credential that is never wider than its own.

    Whatever ends the parent's credential ends the helper's. It shares the parent's context, so nothing that either was served
    can be shed by the other.
    """
    parent = call.credential()
    path = _free_path(call, parent, name, out)
    child: Child = call.ask_bus(
        lambda memory: memory.delegate(
            name,
            projects=project or None,
            verbs=verb or None,
            clearance=clearance or None,  # type: ignore[arg-type]  # checked against its type before it is sent
            ceiling=ceiling or None,  # type: ignore[arg-type]
            tools=tool or None,
            user=user,
            ttl=ttl,
        ),
        any_project=True,
    )
    from broker_config.home import write_private

    write_private(path, child.creds)
    said = child.said
    if call.json:
        print_json(
            {
                "agent_id": said.id, "name": said.name, "role": said.role, "key": said.key, "chain": said.chain,
                "projects": said.projects, "verbs": said.verbs, "clearance": said.clearance, "tools": said.tools,
                "ceiling": said.ceiling, "user": said.user, "expires_at": said.expires_at, "tenant": parent.tenant,
                "creds": str(path),
            }
        )  # fmt: skip
        return None
    show(
        facts(
            {
                "agent": f"{parent.tenant}/{said.name} ({said.role})",
                "projects": ", ".join(said.projects),
                "verbs": ", ".join(said.verbs),
                "sees": f"up to {said.clearance}",
                "until": said.expires_at,
                "creds": str(path),
            }
        )
    )
    return None


def _free_path(call: Call, parent: Credential, name: str, out: str) -> Path:
    """Where the credential is to go. Exit 3 if something is there: no file of another agent is written over."""
    from bus.delegation import JOINT
    from bus.subjects import token

    token(name, "agent")
    path = (
        Path(out).expanduser().absolute()
        if out
        else call.existing_home().agent_creds(parent.tenant, f"{parent.name}{JOINT}{name}")
    )
    if path.exists():
        raise Failure(
            Exit.CONFLICT,
            f"There is a file {path} already.",
            reason="name_taken",
            advice="Choose another name, or --out.",
            field="name",
        )
    return path
