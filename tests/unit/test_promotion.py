"""Whom a promotion that a review rejected keeps from promoting the same memory."""

from __future__ import annotations

import pytest

from gate.identify import Principal
from gate.ledger import events as E
from gate.lifecycle import promotion
from gate.refusals import Refused
from gate.rights import TASK_SCOPE

from .story import Story


class Team:
    """A memory of a task, and what the first agent promoted it to: held for `holds`, and rejected."""

    def __init__(self, *holds: str) -> None:
        story = self.story = Story()
        self.first, self.second, self.ops = story.agent("first"), story.agent("second"), story.agent("ops", "operator")
        self.noted = story.memory(self.first, scope=TASK_SCOPE)
        self.became = self.promoted(self.first, *holds)
        self.reject(self.became)

    def promoted(self, by: Principal, *holds: str) -> int:
        return self.story.memory(
            by, promotes=self.noted, holds=list(holds), edges=[E.Edge(E.DECLARED, self.noted, 255)]
        )  # fmt: skip

    def reject(self, memory: int) -> None:
        s = self.story
        s.apply(E.MemoryReviewed(ms=s.ms, memory=memory, verdict="reject", agent=self.ops.agent.id, person="", body=b""))

    def code(self, by: Principal) -> str:
        """Why it may not promote the memory now; empty if it may."""
        try:
            promotion.check(by, self.noted, self.story.ms)
        except Refused as e:
            return e.code
        return ""


@pytest.mark.parametrize("hold", ["flow_down:project:p2", "contradicts_stronger", "parent_held"])
def test_what_was_rejected_for_what_its_promoter_brought_along_is_open_to_others(hold: str) -> None:
    team = Team(hold)
    assert team.code(team.first) == "promotion_rejected", "a person said no to this one"
    assert team.code(team.second) == ""
    team.promoted(team.second)
    assert team.code(team.first) == team.code(team.second) == "promoted_already"


@pytest.mark.parametrize("holds", [["screen:instruction"], ["flow_down:project:p2", "screen:instruction"]])
def test_what_was_rejected_for_its_text_is_open_to_nobody(holds: list[str]) -> None:
    team = Team(*holds)
    assert team.code(team.first) == team.code(team.second) == "promotion_rejected"


def test_what_a_case_holds_besides_is_open_to_nobody() -> None:
    team = Team("parent_held")
    team.story.case(team.ops, team.became)
    assert team.code(team.second) == "promotion_rejected"
