"""What may still be in an agent's head: context show, context close."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .call import Call
from .cases import required_message
from .command import DESK, Message, command, group
from .output import facts, first_of, print_json, show
from .render import render_untrusted

if TYPE_CHECKING:
    from bus import ContextAnswer

AgentName = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name or id.")]


def register(app: typer.Typer) -> None:
    contexts = group(app, "context", "See and close an agent's context: what it was served and still carries.", panel=DESK)
    command(contexts, "show", example="cordon context show writer --as acme/ops")(context_show)
    command(contexts, "close", example="cordon context close writer -m 'restarted empty' --as acme/ops")(context_close)


def context_show(call: Call, agent: AgentName) -> int | None:
    """Show what an agent was served and still carries."""
    return _told(call, call.ask_desk(lambda desk: desk.context(agent)))


def context_close(call: Call, agent: AgentName, message: Message = "") -> int | None:
    """Declare an agent's head empty: what it was served no longer marks what it writes.

    True only after a restart that kept nothing. Who said so, and why, stays in the record.
    """
    reason = required_message(message)
    return _told(call, call.ask_desk(lambda desk: desk.close_context(agent, reason)))


def _told(call: Call, answer: ContextAnswer) -> int | None:
    if call.json:
        print_json(answer)
        return None
    show(
        facts(
            {
                "context": answer.context,
                "root": render_untrusted(answer.root),
                "state": "closed" if answer.closed else "open",
                "epoch": str(answer.epoch),
                "served": _counted(answer.served, "memory", "memories") + " in " + _counted(answer.recalls, "recall", "recalls"),
                "trust floor": f"{answer.trust_floor:g}",
                "classification": answer.classification,
                "compartments": (", ".join(render_untrusted(c) for c in answer.compartments) or "none")
                + (f", and {answer.elsewhere} of other projects" if answer.elsewhere else ""),
                "exposed to": first_of(answer.exposed, answer.exposed_count, ", ") or "no open case",
                "last read": answer.last_read_at or "never",
            }
        )
    )
    return None


def _counted(n: int, one: str, several: str) -> str:
    return f"{n:,} {one if n == 1 else several}"
