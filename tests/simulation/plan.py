"""What a seed draws: how many there are, how they behave, and what goes wrong. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Literal

Fault = Literal["kill", "cut", "stall", "server", "ledger full", "reads full", "clock", "deaf"]
FAULTS: Final[tuple[Fault, ...]] = ("kill", "cut", "stall", "server", "ledger full", "reads full", "clock", "deaf")
CLOCK_STEPS_S: Final = (-7_200.0, -30.0, -1.0, 1.0, 30.0, 3_600.0, 90_000.0)


@dataclass(frozen=True)
class Plan:
    """Times in virtual seconds, rates as chances of 0..1."""

    tenants: int
    agents: int  # of a tenant, beside its operator and its feeder
    gatekeepers: int  # more than one: they serve in turn, under a lease
    lasts_s: float
    pause_s: float  # between two things that one client does, on average
    words: int  # of a text, on average
    k: int
    block_events: int
    gate: bool
    index_slow_s: float
    lineage_every_s: float
    latency_s: float
    faults: tuple[Fault, ...]
    fault_every_s: float
    append_faults: float  # of appends that meet one
    line_faults: float  # of clients' requests, and of answers to them
    erasures: int  # an operator's, beside fourteen other things
    rotate_every_s: float  # 0 = nobody gets another key

    def __str__(self) -> str:
        return (
            f"{self.tenants} tenants of {self.agents} agents, {self.gatekeepers} gatekeeper{'s' * (self.gatekeepers > 1)}, "
            f"{self.lasts_s:.0f} s, blocks of {self.block_events}, gate {'on' if self.gate else 'off'}; "
            f"{', '.join(self.faults) or 'no faults'} every {self.fault_every_s:.0f} s, "
            f"appends {self.append_faults:.2f}, lines {self.line_faults:.2f}, erasures {self.erasures}, "
            f"keys {f'every {self.rotate_every_s:.0f} s' if self.rotate_every_s else 'stay'}"
        )


def drawn(chance: random.Random, keys: random.Random) -> Plan:
    """`keys`: chance of its own for what concerns keys."""
    return Plan(
        tenants=chance.choice((1, 2, 2, 3)),
        agents=chance.randint(2, 4),
        gatekeepers=chance.choice((1, 1, 1, 2)),
        lasts_s=chance.uniform(20, 60),
        pause_s=chance.choice((0.4, 1.0, 2.0)),
        words=chance.choice((8, 12, 40, 300)),
        k=chance.choice((1, 4, 8, 32)),
        block_events=chance.choice((1, 3, 256)),
        gate=chance.random() < 0.3,
        index_slow_s=chance.choice((0.0, 0.01, 0.1, 0.4)),
        lineage_every_s=chance.choice((0.2, 3.0, 30.0)),
        latency_s=chance.choice((0.0005, 0.005, 0.05)),
        faults=tuple(f for f in FAULTS if chance.random() < 0.5),
        fault_every_s=chance.choice((3.0, 6.0, 15.0)),
        append_faults=chance.choice((0.0, 0.02, 0.1, 0.3)),
        line_faults=chance.choice((0.0, 0.05, 0.2)),
        erasures=chance.choice((0, 1, 4)),
        rotate_every_s=keys.choice((0.0, 2.0, 8.0)),
    )
