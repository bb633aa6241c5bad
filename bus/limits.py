"""Every bound of the wire with its unit, in one place, and how they relate.

The gatekeeper refuses beyond these; the client refuses earlier where it can. Sources: the project's defaults table
(docs/decisions.md says why where a number is not obvious).
"""

from __future__ import annotations

from typing import Final

WIRE_VERSION: Final = 1

# --- frames (bytes) -------------------------------------------------------------------------------
PAYLOAD_BYTES_MAX: Final = 1 << 20  # the server's max_payload
DRAFT_FRAME_BYTES_MAX: Final = 512 << 10
QUERY_FRAME_BYTES_MAX: Final = 64 << 10
RECALL_FRAME_BYTES_MAX: Final = 512 << 10
REGISTRY_FRAME_BYTES_MAX: Final = (1 << 20) - 4_096  # of the home itself: about 290 tenants a home; headers need the rest
PAGE_BYTES_MAX: Final = 256 << 10
PAGE_ITEMS_MAX: Final = 500

# --- fields ---------------------------------------------------------------------------------------
CONTENT_BYTES_MAX: Final = 65_536
QUERY_TEXT_BYTES_MAX: Final = 8_192
NAME_CHARS_MAX: Final = 64  # identity tokens [a-z0-9_-]
LABEL_BYTES_MAX: Final = 128  # run, task, session, trace_id, idempotency_key
SCOPE_ID_BYTES_MAX: Final = 256  # scope_id and user
SCENE_BYTES_MAX: Final = 64
REQUEST_ID_CHARS_MAX: Final = 64
EVIDENCE_ITEMS_MAX: Final = 8
EVIDENCE_BYTES_MAX: Final = 2_048
PARENTS_DECLARED_MAX: Final = 64
EDGES_PER_MEMORY_MAX: Final = 128
READER_CLAUSES_MAX: Final = 16
READER_ENTRIES_MAX: Final = 32
FILTER_KEYS_MAX: Final = 16
FILTER_VALUES_MAX: Final = 64
FILTER_VALUE_BYTES_MAX: Final = 256
MESSAGE_CHARS_MAX: Final = 1_000  # -m of hold, release, context close
GET_IDS_MAX: Final = 64
SYNC_NOTICES_MAX: Final = 64  # open notices in one answer; the next come when these are acknowledged
K_DEFAULT: Final = 8
K_MAX: Final = 64
TURN_MAX: Final = 1 << 31
TRUNCATED_CHARS: Final = 200  # what is left of an item beyond the recall's byte budget
SUMMARY_CHARS: Final = 200  # the gatekeeper's extract for admit_summary_only

# --- times (seconds) ------------------------------------------------------------------------------
CONNECT_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 5.0
CLIENT_DEADLINE_S: Final = 15.0
RETRY_FIRST_S: Final = 0.1
RETRY_MOST_S: Final = 2.0
RETRY_JITTER: Final = 0.5  # plus or minus this share
RECONNECT_FIRST_S: Final = 0.25
RECONNECT_MOST_S: Final = 5.0
TTL_SECONDS_MAX: Final = 100 * 365 * 86_400

# --- client queues --------------------------------------------------------------------------------
FEED_QUEUE_FRAMES: Final = 1_024
NOTICE_QUEUE_FRAMES: Final = 256
PENDING_BYTES_MAX: Final = 16 << 20

assert CONTENT_BYTES_MAX < DRAFT_FRAME_BYTES_MAX < PAYLOAD_BYTES_MAX
assert QUERY_TEXT_BYTES_MAX < QUERY_FRAME_BYTES_MAX
assert RECALL_FRAME_BYTES_MAX < PAYLOAD_BYTES_MAX
assert REGISTRY_FRAME_BYTES_MAX < PAYLOAD_BYTES_MAX
assert PAGE_BYTES_MAX < PAYLOAD_BYTES_MAX
assert PARENTS_DECLARED_MAX < EDGES_PER_MEMORY_MAX
assert REQUEST_TIMEOUT_S < CLIENT_DEADLINE_S
