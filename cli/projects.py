"""A tenant's projects: what they are set to, who is in them, with whom they are shared, and how they end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .admin import Name, TenantName, cell, listed, told
from .call import Call
from .cases import required_message
from .command import PEOPLE, Message, command, group
from .exits import usage
from .output import facts, print_json, show, table
from .people import me

if TYPE_CHECKING:
    from broker_config.control_projects import Move

Display = Annotated[str | None, typer.Option("--display", metavar="TEXT", help="A name for people, any characters, at most 128.")]
With = Annotated[list[str], typer.Option("--with", metavar="NAME", help="The other project (repeatable).")]
AgentName = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")]


def register(app: typer.Typer) -> None:
    projects = group(app, "project", "Add, set, share, archive and delete a tenant's projects.", panel=PEOPLE)
    command(projects, "add", example="cordon project add acme p1")(project_add)
    command(projects, "list", example="cordon project list acme")(project_list)
    command(projects, "show", example="cordon project show acme p1")(project_show)
    command(projects, "set", example="cordon project set acme p1 --mode shadow")(project_set)
    command(projects, "share", example="cordon project share acme p1 --with p2 -m 'one product'")(project_share)
    command(projects, "unshare", example="cordon project unshare acme p1 --with p2 -m 'it is over'")(project_unshare)
    command(projects, "archive", example="cordon project archive acme p1 -m 'it is done'")(project_archive)
    command(projects, "restore", example="cordon project restore acme p1 -m 'it goes on'")(project_restore)
    command(projects, "delete", example="cordon project delete acme p1 -m 'the contract ended'")(project_delete)
    members = group(projects, "member", "Add and remove members of a project.", panel=PEOPLE)
    command(members, "add", example="cordon project member add acme p1 writer -m 'joins the team'")(member_add)
    command(members, "remove", example="cordon project member remove acme p1 writer -m 'left the team'")(member_remove)


def project_add(call: Call, tenant: TenantName, name: Name, display: Display = None) -> int | None:
    """Add a project to a tenant."""
    done = call.ask_control(lambda control: control.project_add(tenant, name, display=display, by=me()))
    next_ = f"cordon agent add {tenant} AGENT --project {name}{call.chosen()}"
    return told(call, done, f"project {name} of {tenant} is there; next: {next_}")


def project_list(call: Call, tenant: TenantName) -> int | None:
    """List a tenant's projects."""
    rows = call.ask_control(lambda control: control.project_list(tenant))
    return listed(call, "projects", rows, ("name", "state", "memories", "shared_with", "display"))


def project_show(call: Call, tenant: TenantName, name: Name) -> int | None:
    """Show a project: state, settings, members, with whom it is shared, and who changed it last and why."""
    row = call.ask_control(lambda control: control.projects.show(tenant, name))
    if call.json:
        print_json(row)
        return None
    settings = ", ".join(f"{key} {cell(value)}" for key, value in row["settings"].items())
    pairs = {
        "project": f"{tenant}/{name}",
        "display": cell(row["display"]),
        "state": row["state"],
        "memories": str(row["memories"]),
        "settings": settings or "as they come",
        "lends to": cell(row["shared_with"]),
        "borrows from": cell(row["borrows"]),
        "members": cell(row["members"]) or "none",
    }
    changes = [[cell(x[column]) for column in ("at", "by", "what", "why")] for x in row["changes"]]
    show(facts({key: value for key, value in pairs.items() if value}), table(("at", "by", "what", "why"), changes))
    return None


def project_set(
    call: Call,
    tenant: TenantName,
    name: Name,
    mode: Annotated[str | None, typer.Option(metavar="MODE", help="enforce, or shadow: record, change nothing.")] = None,
    gate: Annotated[str | None, typer.Option(metavar="GATE", help="The learned gate: enforce, shadow or off.")] = None,
    flow_from: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Content of this project may come in (repeatable; '' = none).")
    ] = None,
    flow_to: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Content may go into this project (repeatable; '' = none).")
    ] = None,
    classification_max: Annotated[
        str | None, typer.Option(metavar="CLASS", help="What is written may be at most this; more is held.")
    ] = None,
    context_idle_hours: Annotated[
        int | None, typer.Option(metavar="HOURS", help="After so long without reading a head is empty; 0 = never.")
    ] = None,
    audience: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE", help="Roles that may read it, of agent, user_session, operator (repeatable; '' = all)."),
    ] = None,
    display: Display = None,
    message: Message = "",
) -> int | None:
    """Change a project's settings, live. What isn't named stays as it is.

    A flow needs its line in both projects. No setting lets a shared project lend more than its plain memories.
    """
    given = {
        "mode": mode,
        "gate": gate,
        "flow_from": _list(flow_from),
        "flow_to": _list(flow_to),
        "classification_max": classification_max,
        "context_idle_hours": context_idle_hours,
        "audience": _list(audience),
    }
    settings = {key: value for key, value in given.items() if value is not None}
    if not settings and display is None:
        raise usage("Nothing to set was named.", reason="setting_missing", advice="See `cordon project set --help`.")
    _check(settings)
    done = call.ask_control(
        lambda control: control.projects.set(tenant, name, settings, display=display, message=message, by=me())
    )
    named = [*settings, *(["display"] if display is not None else [])]
    return told(call, done, f"project {name} of {tenant} is set: {', '.join(named)}")


def project_share(call: Call, tenant: TenantName, name: Name, with_: With = [], message: Message = "") -> int | None:  # noqa: B006
    """Let another project's agents read this one's plain memories, in answers to questions that they ask in theirs.

    Plain: of project scope, not restricted, without readers of their own, made of nothing of a user or a third project. What is
    written from them elsewhere is held unless both projects allow the flow.
    """
    done = _move(call, tenant, name, "share", message, with_)
    return told(call, done, f"project {name} lends its plain memories to: {', '.join(done['shared_with'])}")


def project_unshare(call: Call, tenant: TenantName, name: Name, with_: With = [], message: Message = "") -> int | None:  # noqa: B006
    """End a sharing. What was read stays in the readers' contexts, with its labels."""
    done = _move(call, tenant, name, "unshare", message, with_)
    return told(call, done, f"project {name} lends its plain memories to: {', '.join(done['shared_with']) or 'nobody'}")


def project_archive(call: Call, tenant: TenantName, name: Name, message: Message = "") -> int | None:
    """Refuse writes into a project from now on; reads, holds and releases go on."""
    done = _move(call, tenant, name, "archive", message)
    return told(
        call,
        done,
        f"project {name} is archived; restore it with: cordon project restore {tenant} {name} -m REASON{call.chosen()}",
    )


def project_restore(call: Call, tenant: TenantName, name: Name, message: Message = "") -> int | None:
    """Let an archived project be written into again."""
    return told(call, _move(call, tenant, name, "restore", message), f"project {name} is active")


def project_delete(call: Call, tenant: TenantName, name: Name, message: Message = "") -> int | None:
    """End a project for ever: no agent reads or writes in it any more, and its name is not used again.

    Its memories stay in the record, for operators of the project to trace, hold and erase; contexts that were served some keep
    their labels.
    """
    done = _move(call, tenant, name, "delete", message)
    return told(call, done, f"project {name} is deleted; its {done['memories']} memories are served to no agent any more")


def member_add(call: Call, tenant: TenantName, name: Name, agent: AgentName, message: Message = "") -> int | None:
    """Make an agent a member of a project."""
    reason = required_message(message)
    done = call.ask_control(lambda control: control.projects.member_add(tenant, name, agent, message=reason, by=me()))
    rotate = f"cordon agent rotate {tenant} {agent}{call.chosen()}"
    then = "" if done["carried"] else f"; its credential carries the project after: {rotate}"
    return told(call, done, f"agent {agent} is a member of {name}{then}")


def member_remove(call: Call, tenant: TenantName, name: Name, agent: AgentName, message: Message = "") -> int | None:
    """End an agent's membership. What it wrote stays the project's; what it read stays in its context, with its labels.

    Its credential is replaced by one without the project, and the old one is cut.
    """
    reason = required_message(message)
    done = call.ask_control(lambda control: control.projects.member_remove(tenant, name, agent, message=reason, by=me()))
    then = (
        f"its new credential: {done['creds']}"
        if done["creds"]
        else "its credential is cut; its file was not there to be replaced"
    )
    return told(call, done, f"agent {agent} is no member of {name} any more; {then}")


def _move(call: Call, tenant: str, name: str, action: Move, message: str, others: list[str] | None = None) -> dict[str, Any]:
    if others is not None and not others:
        raise usage("No other project was named.", reason="other_missing", advice="Give --with NAME for each.", field="with")
    if name in (others or ()):
        raise usage(f"--with {name} is the project itself.", reason="other_missing", advice="Name another.", field="with")
    reason = required_message(message)
    return call.ask_control(
        lambda control: control.projects.move(tenant, name, action, others=others or (), message=reason, by=me())
    )


def _check(settings: dict[str, Any]) -> None:
    """Exit 2, naming the option and its value, if one can't be set so."""
    import msgspec

    from gate.config import ProjectSettings

    for key, value in settings.items():
        try:
            msgspec.convert({key: value}, ProjectSettings)
        except msgspec.ValidationError as e:
            option, given = key.replace("_", "-"), ", ".join(value) if isinstance(value, list) else value
            why = str(e).partition(" - at")[0]
            raise usage(
                f"--{option} can't be {given!r}: {why}.",
                reason="setting_invalid",
                advice="See `cordon project set --help`.",
                field=key,
            ) from None


def _list(given: list[str] | None) -> list[str] | None:
    """A repeatable option: not given, or its values; one empty value is the empty list."""
    return None if not given else [x for x in given if x]
