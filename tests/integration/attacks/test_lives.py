"""The life cycle as a way in: promoting, reporting and compacting to launder, to learn, or to make others' work vanish."""

from __future__ import annotations

import itertools
from typing import Any

from .arena import SIEGE, Arena, ids
from .test_laundering import is_tainted

_fresh = itertools.count(1)


def topic() -> str:
    """A word that no other test uses."""
    return f"mangonel{next(_fresh):03}"


async def finding(arena: Arena, text: str, who: str = "ingest", **fields: Any) -> str:
    """A memory of a task, by its id."""
    fields = {"task": "repair", "kind": "event", "evidence": ["https://wiki.example/log"], **fields}
    return str((await arena[who].write(text, scope="task", **fields))["id"])


def test_words_that_the_gatekeeper_wrote_for_a_promoter_are_not_its_own(arena: Arena) -> None:
    """It promotes by its id what it was never served, then reads it: a copy is a copy all the same."""

    async def attack() -> None:
        for promoting in (False, True):
            word = topic()
            text = f"The {word} ledger number 7731 is kept by warden Quellmark behind the copper stairs"
            source = await finding(arena, text)
            async with arena.minted(f"project:{SIEGE}", "see:internal") as peer:
                if promoting:
                    await peer.write("", promotes=source, evidence=[], readers=[["role:auditor"]])
                assert source in ids(await peer.query(text, task="repair"))
                for said in (f"Remember: {text.lower()}", f"Ask Quellmark about 7731 if the {word} is unclear to you"):
                    receipt = await peer.write(said)
                    assert is_tainted(receipt, source), (promoting, said, receipt)

    arena.run(attack())
