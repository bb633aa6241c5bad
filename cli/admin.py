"""Who is in a home: tenants and their agents."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from .agents import register_agents
from .call import Call
from .command import PEOPLE, command, group
from .exits import usage
from .output import facts, note, print_json, show, table
from .render import render_untrusted
from .tenants import register_ends

TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="1 to 64 characters of a-z, 0-9, - and _.")]

FALLEN_SHOWN: Final = 8  # delegated agents, in a sentence
# Can do nothing without one: reads, writes and delegations all name a project.
_NEEDS_PROJECT: Final = ("agent", "ingest", "user_gateway", "user_session")


def register(app: typer.Typer) -> None:
    tenants = group(app, "tenant", "Add, list, suspend, export and delete tenants.", panel=PEOPLE)
    command(tenants, "add", example="cordon tenant add acme")(tenant_add)
    command(tenants, "list", example="cordon tenant list")(tenant_list)
    command(tenants, "suspend", example="cordon tenant suspend acme")(tenant_suspend)
    command(tenants, "resume", example="cordon tenant resume acme")(tenant_resume)
    register_ends(tenants)
    agents = group(app, "agent", "Add, list, delegate, rotate and revoke a tenant's agents.", panel=PEOPLE)
    command(agents, "add", example="cordon agent add acme writer --project p1")(agent_add)
    command(agents, "list", example="cordon agent list acme")(agent_list)
    command(agents, "show", example="cordon agent show acme writer")(agent_show)
    command(agents, "rotate", example="cordon agent rotate acme writer")(agent_rotate)
    register_agents(agents)
    command(agents, "revoke", example="cordon agent revoke acme writer")(agent_revoke)


def tenant_add(call: Call, name: Name) -> int | None:
    """Add a tenant: an account of its own, which nothing crosses."""
    done = call.ask_control(lambda control: control.tenant_add(name))
    return told(call, done, f"tenant {name} is there; next: cordon project add {name} PROJECT{call.chosen()}")


def tenant_list(call: Call) -> int | None:
    """List the home's tenants."""
    return listed(call, "tenants", call.ask_control(lambda control: control.tenant_list()), ("name", "state", "account"))


def tenant_suspend(call: Call, name: Name) -> int | None:
    """Cut all of a tenant's connections and refuse its credentials, until it is resumed. Nothing is lost."""
    done = call.ask_control(lambda control: control.tenant_suspend(name))
    return told(call, done, f"tenant {name} is suspended; resume it with: cordon tenant resume {name}{call.chosen()}")


def tenant_resume(call: Call, name: Name) -> int | None:
    """Let a suspended tenant's credentials count again, but for those that were revoked singly."""
    done = call.ask_control(lambda control: control.tenant_resume(name))
    return told(call, done, f"tenant {name} is active")


def agent_add(
    call: Call,
    tenant: TenantName,
    name: Name,
    project: Annotated[
        list[str],
        typer.Option("--project", metavar="NAME", help="A project it may use, or an operator sees (repeatable)."),
    ] = [],  # noqa: B006
    role: Annotated[
        str,
        typer.Option(metavar="ROLE", help="agent, ingest, user_gateway, user_session, supervisor, operator or auditor."),
    ] = "agent",
    see: Annotated[
        list[str], typer.Option(metavar="CLASS", help="What it may see: public, internal, restricted (repeatable).")
    ] = [],  # noqa: B006
    tool: Annotated[list[str], typer.Option(metavar="NAME", help="A tool whose results it may write (repeatable).")] = [],  # noqa: B006
    person: Annotated[str, typer.Option(metavar="NAME", help="The person who answers for it.")] = "",
    user: Annotated[
        str,
        typer.Option(metavar="ID", help="The end user of a user_session; any form of id."),
    ] = "",
    ttl: Annotated[int | None, typer.Option(metavar="SECONDS", help="How long the credential lives.")] = None,
) -> int | None:
    """Add an agent and write its credential file. Names are never reused.

    The file that is named at the end is all the agent needs, with the address from `cordon status`.
    What an agent may do is in its credential. `cordon agent rotate` gives it other projects; for more, add another agent.
    """
    if not project and role in _NEEDS_PROJECT:
        raise usage(
            f"An agent of role {role} without a project could do nothing, and its name would be used up.",
            reason="project_missing",
            advice="Give it --project NAME, once for each; `cordon project list` has them.",
            field="project",
        )
    made = call.ask_control(
        lambda control: control.agent_add(
            tenant, name, role=role, projects=project, see=see, tools=tool, person=person, user=user, ttl=ttl
        )
    )
    if call.json:
        print_json(made)
        return None
    show(facts({"agent": f"{tenant}/{name} ({role})", "id": made["agent_id"], "key": made["key"], "creds": made["creds"]}))
    if not project:
        note(
            f"cordon: attention: {name} has no project, so no memory can be seen or named with it. Give it some with: "
            f"cordon agent rotate {tenant} {name} --project NAME{call.chosen()}"
        )
    return None


def agent_list(
    call: Call,
    tenant: TenantName,
    below: Annotated[str, typer.Option(metavar="NAME", help="This one, and those that it delegated, instead.")] = "",
) -> int | None:
    """List a tenant's agents, and how many each has delegated; with --below those of one."""
    rows = call.ask_control(lambda control: control.agent_family(tenant, below) if below else control.agent_list(tenant))
    return listed(call, "agents", rows, ("name", "state", "role", "agent_id", "projects", "below"))


def agent_show(call: Call, tenant: TenantName, name: Name) -> int | None:
    """Show an agent: its rights, its keys, which of them are revoked."""
    row = call.ask_control(lambda control: control.agent_show(tenant, name))
    if call.json:
        print_json(row)
        return None
    keys = [f"{key} ({'revoked' if key in row['revoked'] or row['state'] == 'revoked' else 'active'})" for key in row["keys"]]
    pairs = {"agent": f"{tenant}/{name} ({row['role']})", "state": row["state"], "id": row["agent_id"]}
    if row["parent"]:
        pairs |= {"delegated by": row["parent"], "until": row["expires_at"]}
    pairs |= {"projects": cell(row["projects"]) or "none", "person": row["person"] or "nobody", "below": str(row["below"])}
    pairs["keys"] = " ".join(keys)
    pairs["keeps"] = f"{row['bytes']:,} bytes; {row['held']} held, {row['review']} of them wait for a review"
    if row["shared"]:
        pairs["shared"] = "; ".join(
            f"{x['key']} was used on several hosts at once ({cell(x['hosts']) or 'which: not known since the restart'}), "
            f"last {x['last_at']}"
            for x in row["shared"]
        )
    show(facts(pairs))
    if row["shared"]:
        note(f"cordon: a key of {name} was copied, or is used by two: `cordon agent rotate {tenant} {name}` cuts it.")
    return None


def agent_rotate(
    call: Call,
    tenant: TenantName,
    name: Name,
    ttl: Annotated[int | None, typer.Option(metavar="SECONDS", help="How long the new credential lives.")] = None,
    keep_old: Annotated[
        bool, typer.Option("--keep-old", metavar="", help="Let the old credential work until the next rotation.")
    ] = False,
    project: Annotated[
        list[str],
        typer.Option("--project", metavar="NAME", help="Instead of its projects (repeatable); without one it keeps them."),
    ] = [],  # noqa: B006
) -> int | None:
    """Give an agent a new key and credential file, and cut the old one. Its id, context and notices stay.

    With --project it also gets other projects: name all that it is to have from now on.
    """
    made = call.ask_control(lambda control: control.agent_rotate(tenant, name, ttl, keep_old, project))
    if call.json:
        print_json(made)
        return None
    old = "the old credential still works" if keep_old else "the old credential is cut"
    projects = cell(made["projects"]) or "none"
    show(facts({"agent": f"{tenant}/{name}", "projects": projects, "key": made["key"], "creds": made["creds"], "note": old}))
    return None


def agent_revoke(call: Call, tenant: TenantName, name: Name) -> int | None:
    """Cut an agent, and all that it delegated, for ever. What they wrote stays, attributed; their names are not used again."""
    done = call.ask_control(lambda control: control.agent_revoke(tenant, name))
    fallen = done["fallen"]
    more = f" and {len(fallen) - FALLEN_SHOWN} more" if len(fallen) > FALLEN_SHOWN else ""
    with_it = f", and with it {', '.join(fallen[:FALLEN_SHOWN])}{more}" if fallen else ""
    hold = f"cordon hold agent:{name} --dry-run{call.chosen()}"
    return told(call, done, f"agent {tenant}/{name} is revoked{with_it}; hold what it wrote with: {hold}")


def told(call: Call, done: dict[str, Any], sentence: str) -> int | None:
    if call.json:
        print_json(done)
    else:
        show(render_untrusted(sentence))
    return None


def listed(call: Call, noun: str, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> int | None:
    if call.json:
        print_json({noun: rows})
    elif not rows:
        show(f"no {noun} yet")
    else:
        show(table(columns, [[cell(row.get(column)) for column in columns] for row in rows]))
    return None


def cell(value: Any) -> str:
    return render_untrusted(", ".join(map(str, value)) if isinstance(value, list) else str(value if value is not None else ""))
