"""A project as the ledger knows it: state, settings, with whom it is shared, and who changed it last and why.

Members stand with the agents (gate.state.principals); what all this allows is decided in gate.rights.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from gate.config import ProjectSettings, decode_settings
from gate.ledger.events import ProjectChanged

CHANGES_KEPT: Final = 32  # of a project, the newest: the ledger has them all


class Change(NamedTuple):
    """One change as a person asks for it later: when, what of the project is now other than before, who, why."""

    ms: int
    what: str
    by: str
    why: str


class Project:
    __slots__ = ("changes", "display", "name", "number", "rows", "settings", "shared_with", "special", "state")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.settings = ProjectSettings()
        self.state = ""
        self.display = ""
        self.shared_with: tuple[str, ...] = ()
        self.changes = deque[Change](maxlen=CHANGES_KEPT)
        self.rows = 0  # memories so far: the next row in the project's index
        self.special = False  # whether any memory is not simply visible to the whole project

    def apply(self, e: ProjectChanged, joined: list[str], left: list[str], why: str) -> None:
        """`joined`, `left`: names of agents."""
        settings, shared_with = decode_settings(e.settings), tuple(e.shared_with)
        what = [f"member {name} added" for name in joined] + [f"member {name} removed" for name in left]
        if self.state != e.state:
            what.append(e.state if self.state else "added")
        if self.settings != settings:
            what.append("settings")
        what += [f"shared with {name}" for name in shared_with if name not in self.shared_with]
        what += [f"no longer shared with {name}" for name in self.shared_with if name not in shared_with]
        if self.display != e.display:
            what.append("display name")
        self.state, self.settings, self.shared_with, self.display = e.state, settings, shared_with, e.display
        self.changes.append(Change(e.ms, ", ".join(what) or "nothing", e.by, why))

    @property
    def shown_state(self) -> str:
        """active, shared, archived or deleted."""
        return "shared" if self.state == "active" and self.shared_with else self.state
