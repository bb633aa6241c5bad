"""Who is who in a test: the rights of a name, defaults for agents and operators, each name issued once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypedDict, TypeVar

from ..errors import Conflict
from ..frames import CLASSIFICATIONS

T = TypeVar("T")
TENANT: Final = "acme"
Projects = Iterable[str] | Mapping[str, Mapping[str, Any]]  # names, or names with settings


class Rights(TypedDict, total=False):
    """What a credential carries, as for `cordon agent add`."""

    projects: Sequence[str]
    role: str
    see: Sequence[str]
    tools: Sequence[str]
    person: str
    user: str


def settings_of(projects: Projects) -> dict[str, Mapping[str, Any]]:
    return dict(projects) if isinstance(projects, Mapping) else {name: {} for name in projects}


def agent_rights(project: str, known: Iterable[str], rights: Rights) -> tuple[str, Rights]:
    """(default project, rights): an agent of its own project, the first one known if none is named."""
    default = project or next(iter(rights.get("projects") or known))
    return default, {"role": "agent", "projects": (default,), **rights}


def operator_rights(known: Iterable[str], rights: Rights) -> Rights:
    """An operator of all projects and classifications, but for what is given."""
    return {"role": "operator", "projects": tuple(known), "see": CLASSIFICATIONS, **rights}


class Names(Generic[T]):
    """What was issued to each name. The same name with other rights is a Conflict."""

    def __init__(self, issue: Callable[[str, Rights], T]) -> None:
        self._issue = issue
        self._issued: dict[str, tuple[Rights, T]] = {}

    def get(self, name: str, rights: Rights) -> T:
        """What `name` got, issued now if it is new."""
        if name not in self._issued:
            self._issued[name] = (rights, self._issue(name, rights))
        known, issued = self._issued[name]
        if known != rights:
            raise Conflict(
                f"There is an agent {name!r} with other rights.",
                reason="name_taken",
                advice="Names are never reused: choose another.",
            )
        return issued
