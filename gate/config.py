"""Settings of a project and bounds of the service, each with its reason. The rules themselves live beside the code that
applies them.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from bus.limits import PAYLOAD_BYTES_MAX
from bus.subjects import is_token

DAY_MS: Final = 86_400_000

# Service bounds (DEFAULTS: blocks, time-outs, quotas).
BLOCK_EVENTS_MAX: Final = 256
BLOCK_BYTES_MAX: Final = 256 << 10
EVENT_BYTES_MAX: Final = 512 << 10  # of one event, meta and body: alone in a block it must fit into a message
READS_BLOCK_RECORDS_MAX: Final = 256
READS_BLOCK_BYTES_MAX: Final = 256 << 10
CASE_ROOTS_MAX: Final = 65_536  # they stand in one event, 5 bytes each
COMPARTMENTS_MAX: Final = 64  # beyond it a label says `many`, which may flow nowhere
QUERY_BATCH_MAX: Final = 16
WRITE_BATCH_MAX: Final = 64
CROWD_ASKS_MAX: Final = 2  # of the crowd (gate/turns.py) at once while others are about: two milliseconds
CROWD_WRITES_MAX: Final = 16
WRITE_BATCH_BYTES: Final = 32 << 10  # of content: a larger text is alone in its batch
DRAIN_S: Final = 5.0
LEDGER_FULL_SHARE: Final = 0.9  # memory writes stop here, containment goes on
PLAN_MS: Final = 60 * 60_000
NOTICE_AGAIN_S: Final = 600.0
CHILDREN_MAX: Final = 64  # that stand at a time, of one agent or supervisor
DESCENDANTS_MAX: Final = 256  # that stand at a time below any agent or supervisor, children of children too
SESSIONS_MAX: Final = 4_096  # that stand at a time below a user gateway: its sessions and their helpers
SIGN_TIMEOUT_S: Final = 2.0  # a signature takes a millisecond; less than the client's time for one attempt
AUDITS_PER_MINUTE: Final = 10  # per key and code, then a count
SUSPECT_HOLD_MS: Final = DAY_MS
CONTEXT_WINDOW_IDS: Final = 2_048

PROJECTS_MAX: Final = 2_000  # of a tenant: their numbers are 16 bits wide
SHARES_MAX: Final = 16  # projects that one lends to, and that lend to one: a question looks into each

NAMESPACE_SHARD: Final = "0"


class ProjectSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a project's owner may set. Unknown fields are refused.

    mode: `shadow` decides and records all, changes nothing for reads. flow_from / flow_to: projects whose content may come
    in / where
    content may go; a flow needs the line on both sides. classification_max: a write that joins more is held.
    context_idle_hours: 0 = never. audience: the roles that its memories are for; none = every role that reads.
    """

    mode: Literal["enforce", "shadow"] = "enforce"
    gate: Literal["enforce", "shadow", "off"] = "shadow"
    flow_from: list[str] = []
    flow_to: list[str] = []
    classification_max: Literal["public", "internal", "restricted"] = "restricted"
    context_idle_hours: int = 24
    audience: list[Literal["agent", "user_session", "operator"]] = []

    def __post_init__(self) -> None:
        if not 0 <= self.context_idle_hours <= 720:
            raise ValueError("context_idle_hours must be 0 (never) to 720")
        if not all(is_token(name) for name in (*self.flow_from, *self.flow_to)):
            raise ValueError("flow_from and flow_to are lists of project names")


decode_settings = msgspec.json.Decoder(ProjectSettings).decode
encode_settings = msgspec.json.Encoder().encode


assert BLOCK_BYTES_MAX < EVENT_BYTES_MAX < PAYLOAD_BYTES_MAX
assert 5 * CASE_ROOTS_MAX < EVENT_BYTES_MAX
