"""Every refusal the gatekeeper gives: one table of code → class, sentence, advice. No caller text is ever echoed."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from bus.frames import Refusal

ErrorClass = Literal["rejected", "conflict", "denied", "unavailable", "malformed", "internal"]


class Wording(NamedTuple):
    error: ErrorClass
    message: str
    advice: str
    retry_after_s: float | None = None


TABLE: dict[str, Wording] = {
    # malformed
    "malformed_frame": Wording(
        "malformed", "The request is not a frame of this verb.", "Send one JSON object as docs/wire.md describes."
    ),
    "bad_field": Wording("rejected", "A field has a value outside its type.", "See `field`; allowed values are in docs/wire.md."),
    "frame_too_large": Wording("rejected", "The frame is over its limit.", "Send less text in one call."),
    # identity and rights
    "identity_missing": Wording(
        "denied", "The broker gave no identity for this request.", "Connect to the tenant's account with ordinary credentials."
    ),
    "identity_mismatch": Wording(
        "denied", "The subject names another actor than the broker.", "Publish on the subject with your own public key."
    ),
    "issuer_unknown": Wording(
        "denied", "The key that signed this credential is not in the registry.", "Ask the operator for a credential of this home."
    ),
    "agent_unregistered": Wording(
        "denied", "This key is not registered in the ledger.", "Add the agent with `cordon agent add`."
    ),
    "agent_revoked": Wording("denied", "This agent was revoked; its name is not used again.", "Add an agent with another name."),
    "credential_revoked": Wording("denied", "This credential was revoked.", "Ask the operator for a new one."),
    "credential_expired": Wording("denied", "This credential is over.", "Ask who issued or delegated it for a new one."),
    "parent_revoked": Wording(
        "denied",
        "This credential ended with the one that it was delegated by.",
        "Ask the operator, or delegate anew from a credential that stands.",
    ),
    "delegation_too_wide": Wording(
        "denied",
        "A child may be no wider than its parent in any dimension: `field` names the one that is.",
        "Ask for less there, or leave it out: a child then has what its parent has.",
    ),
    "delegation_too_deep": Wording(
        "denied", "This chain of delegation is as long as one may be.", "Delegate from an agent further up."
    ),
    "too_many_children": Wording(
        "rejected", "As many delegated agents stand as may at a time.", "Wait until one is over, or have one revoked."
    ),
    "delegation_unproven": Wording(
        "denied",
        "The request is not signed by the key of its parent, or the parent's credential doesn't count.",
        "Sign it with the parent's seed as docs/wire.md describes.",
    ),
    "delegation_stale": Wording(
        "denied", "The request was signed too long ago, or in the future.", "Check the clock of this machine, then ask again."
    ),
    "delegation_exceeded": Wording(
        "denied",
        "The credential carries more than was delegated: `field` names where.",
        "Use the credential as the issuer signed it.",
    ),
    "second_user": Wording(
        "denied",
        "Another user was served in this context: one context has one user.",
        "Give each user a session of its own: delegate it from a user gateway.",
    ),
    "delegated_not_rotated": Wording(
        "conflict", "A delegated agent is not rotated.", "Delegate a new one; revoke this one if its key is known to others."
    ),
    "tenant_suspended": Wording("denied", "This tenant is suspended.", "Ask the operator to resume it."),
    "read_only": Wording(
        "denied",
        "This home is a restored copy for looking: agents can't write in it.",
        "Write in the live home. Whoever runs this one can make it live (`read_only` in cordon.toml), unless it is a part.",
    ),
    "tag_invalid": Wording(
        "denied", "The credential carries a doubled or unknown tag, or one above its key's maximum.", "Ask for a new credential."
    ),
    "verb_unknown": Wording("rejected", "There is no such verb.", "Use one of the verbs in docs/wire.md."),
    "verb_not_available": Wording("rejected", "This verb is not available in this version.", "See CHANGELOG.md for what is."),
    "verb_denied": Wording("denied", "This role may not use that verb.", "Use a credential of a role that may."),
    "project_unknown": Wording(
        "denied", "There is no such project for this credential.", "List projects with `cordon project list TENANT`."
    ),
    "project_deleted": Wording(
        "denied", "This project was deleted: nothing of it is read or written any more.", "Use another project."
    ),
    "project_archived": Wording(
        "denied", "This project is archived: it can be read, nothing is written.", "Ask the operator to restore it."
    ),
    "not_in_audience": Wording(
        "denied", "This project's memories are not for this role.", "Ask for a credential of a role of its `audience`."
    ),
    "tenant_deleted": Wording(
        "denied", "This tenant was deleted; its name and account are not used again.", "Use another tenant."
    ),
    "tenant_unknown": Wording("denied", "This tenant is not known to the gatekeeper.", "Add it with `cordon tenant add`."),
    # limits
    "too_long": Wording("rejected", "A field is over its limit.", "Shorten the named field to its limit, in bytes or items."),
    "answer_too_large": Wording(
        "rejected",
        "The answer is more than one message holds.",
        "Ask for less at once: a narrower selector, fewer hops, or one case, agent or project. What it changed, stands.",
    ),
    "too_short": Wording("rejected", "A field is empty.", "Give the named field a value."),
    "out_of_range": Wording(
        "rejected", "A number is out of its range.", "Keep the named field within the range in docs/wire.md."
    ),
    "nul_character": Wording("rejected", "The text holds a NUL character.", "Remove it."),
    "bidi_control": Wording(
        "rejected",
        "The text holds a bidirectional override, which can disguise what it says.",
        "Remove U+202A-U+202E and U+2066-U+2069.",
    ),
    "time_not_utc": Wording("rejected", "A time is not RFC 3339 in UTC.", "Write it as 2026-01-31T12:00:00Z."),
    "time_order": Wording(
        "rejected",
        "The times contradict each other.",
        "valid_from must be before valid_until, as_of in the past, expiry in the future; give ttl or expires_at, not both.",
    ),
    "bad_name": Wording("rejected", "A name is not an identity token.", "Use 1-64 characters of a-z, 0-9, '-' and '_'."),
    "readers_invalid": Wording(
        "rejected", "`readers` is not a list of non-empty clauses.", "Use clauses of agent:NAME, role:ROLE or user:ID, or null."
    ),
    "filter_invalid": Wording(
        "rejected",
        "A filter is unknown or empty.",
        "Use kind, origin, agent, scope, classification, task_state, each with at least one value.",
    ),
    "scope_id_missing": Wording("rejected", "This scope needs `scope_id` (user) or `task` (task).", "Name the user or the task."),
    "parent_unknown": Wording(
        "rejected", "A declared parent is unknown here.", "Declare only memories that you were served or can read."
    ),
    "supersede_unknown": Wording(
        "rejected", "The memory to supersede is unknown here.", "Supersede only a memory that you can read."
    ),
    "promotes_unknown": Wording(
        "rejected",
        "There is no such memory of a task to promote here.",
        "Promote an active memory of task scope in this project that you can read.",
    ),
    "used_unknown": Wording(
        "rejected", "A memory in this report is unknown here.", "Report only memories that this agent was served."
    ),
    "memory_unknown": Wording(
        "rejected",
        "This credential sees no such memory.",
        "Check the id (at least its last 8 characters). It sees its own projects alone: `cordon agent show` names them.",
    ),
    "id_ambiguous": Wording("rejected", "More than one id ends so.", "Give more characters of the id."),
    "notice_unknown": Wording("rejected", "There is no such open notice for this agent.", "Call `sync` for the open ones."),
    "agent_unknown": Wording(
        "rejected",
        "There is no such agent in this tenant, or none in this credential's projects.",
        "List agents and their projects with `cordon agent list TENANT`.",
    ),
    "case_unknown": Wording("rejected", "There is no such case.", "List cases with `cordon case list`."),
    "recall_unknown": Wording("rejected", "There is no such recall.", "Check the id; reads are kept for 90 days."),
    "message_missing": Wording("rejected", "A reason is required.", "Say why in `message` (-m)."),
    "task_unknown": Wording("rejected", "No memory of this project names that task.", "Check the task's label and the project."),
    "task_open": Wording(
        "rejected",
        "That task isn't over: nothing in force says so after the last that says it is active.",
        "Write with `task_state` resolved or abandoned when it is, then compact it.",
    ),
    "end_unknown": Wording("rejected", "There is no such end of memories here.", "List them with `cordon prune --list`."),
    "selector_empty": Wording(
        "rejected",
        "The selector matches no memory that this credential sees.",
        "Give ids, agent:NAME, user:ID, run:LABEL or source:URI.",
    ),
    "nothing_to_review": Wording(
        "rejected", "This memory is not waiting for a review.", "Only memories held at write are reviewed; cases are released."
    ),
    # conflicts
    "idempotency_conflict": Wording(
        "conflict", "This idempotency key was used for other content.", "Use a new key for a new memory."
    ),
    "promoted_already": Wording(
        "conflict",
        "That memory was promoted already, and what it became is active or held.",
        "Read `promoted_as`, or have an operator review it.",
    ),
    "promotion_rejected": Wording(
        "conflict",
        "That memory was promoted, and a review rejected what it became.",
        "Ask who did: an operator may accept it after all, with `cordon review ID --accept`.",
    ),
    "prune_nothing": Wording(
        "conflict", "Nothing of this plan may end any more: all of it was read, held or over meanwhile.", "Make a new plan."
    ),
    "end_undone": Wording("conflict", "This end was undone already.", "Nothing more is to be done."),
    "supersede_conflict": Wording(
        "conflict", "That memory was superseded meanwhile.", "Read the current one and supersede that."
    ),
    "plan_unknown": Wording(
        "conflict", "This plan is unknown, used or older than 60 minutes.", "Make a new one as this one was made."
    ),
    "plan_of_other_kind": Wording(
        "conflict",
        "This plan is not for this command.",
        "Apply it with the one that it is for, or make the plan that you meant.",
    ),
    "plan_stale": Wording("conflict", "What the plan would hold has changed since.", "See `detail`, then make a new plan."),
    "case_closed": Wording("conflict", "This case is released already.", "Open a new one if it is needed."),
    "case_elsewhere": Wording(
        "denied",
        "A root of this case is in a project or above a clearance that this credential doesn't have.",
        "Ask the operator who opened it (`by` in `cordon case show`).",
    ),
    "context_elsewhere": Wording(
        "denied",
        "This context was also served, or wrote, memories that this credential may not see.",
        "Ask an operator of all the agent's projects and classifications, or a supervisor.",
    ),
    "case_pending": Wording("conflict", "This case is still being written.", "Try again in a moment."),
    "key_taken": Wording("conflict", "This key belongs to an agent already.", "Make a new key pair for each child."),
    "erased_already": Wording("conflict", "All of it is erased already.", "See the receipt: `cordon erasure list`."),
    "erasure_contested": Wording(
        "conflict",
        "An open case or a legal hold has some of these memories.",
        "Another person must agree within 60 minutes: `cordon erase --agree ID`, with the id in `detail.request`.",
    ),
    "erasure_request_unknown": Wording(
        "conflict", "This request is unknown, used or older than 60 minutes.", "Ask for the erasure again."
    ),
    "second_person_needed": Wording(
        "denied", "Who agrees must be another person than who asked.", "Use an operator's credential of somebody else."
    ),
    "person_missing": Wording(
        "denied",
        "This credential doesn't say which person holds it.",
        "Use one made with `cordon agent add … --role operator --project PROJECT --person NAME`.",
    ),
    "erasure_unknown": Wording("rejected", "There is no such erasure.", "List them with `cordon erasure list`."),
    "legal_hold_unknown": Wording("rejected", "There is no such legal hold.", "List them with `cordon legal-hold list`."),
    "legal_hold_lifted": Wording("conflict", "This legal hold is lifted already.", "Place a new one if it is needed."),
    "legal_hold_elsewhere": Wording(
        "denied",
        "A memory of this legal hold is in a project or above a clearance that this credential doesn't have.",
        "Lift it with a credential that has all of it, as the one that placed it had.",
    ),
    "legal_hold_of_another": Wording(
        "denied", "A legal hold is lifted by the person who placed it.", "Ask that person: `cordon legal-hold list` names them."
    ),
    "project_shared": Wording(
        "conflict", "This project, or one of the others, is shared as often as it can be.", "Unshare one first; see `limit`."
    ),
    "tenant_contested": Wording(
        "conflict",
        "Open cases hold memories of this tenant, and its deletion erases them.",
        "Somebody else, with another login name, gives the same command within 60 minutes; or release the cases first.",
    ),
    "tenant_legally_held": Wording(
        "conflict",
        "A legal hold has memories of this tenant.",
        "Who placed it lifts it first: `cordon legal-hold list` says who.",
    ),
    "tenant_moved": Wording(
        "conflict", "The tenant is not at that position any more.", "Suspend it, export it again, then delete it."
    ),
    "name_taken": Wording("conflict", "This name is taken; names are never reused.", "Choose another name."),
    # quotas and state
    "event_too_large": Wording(
        "rejected",
        "With all its labels this is more than one record of the ledger holds.",
        "Derive from less, or name less at once.",
    ),
    "over_quota": Wording("unavailable", "Over a quota of requests.", "Send fewer at once, and wait `retry_after_s`.", 0.5),
    "quota_full": Wording(
        "rejected",
        "A quota of what is kept is used up.",
        "Have memories reviewed and cases released (held, review), give more room under [quotas] in cordon.toml, or (reads) with "
        "`cordon broker room`.",
    ),
    "issuer_unreachable": Wording(
        "unavailable", "The issuer, which signs credentials, does not answer.", "Try again; nothing was delegated.", 0.5
    ),
    "issuer_silent": Wording(
        "unavailable",
        "The issuer, which signs credentials, is there and gives no answer: it may be hung.",
        "Nothing was delegated. The operator restarts it: `cordon status` names its pid.",
        15.0,  # longer than a client tries: it doesn't pass by itself
    ),
    "issuer_without_keys": Wording(
        "unavailable",
        "The issuer, which signs credentials, lacks its own keys: it isn't for anything that you sent.",
        "Nothing was delegated. The operator sees in `cordon status` which file is missing, and how to bring it back.",
        15.0,  # as above
    ),
    "starting": Wording(
        "unavailable",
        "The gatekeeper is starting: it reads the ledger again.",
        "Try again; see `cordon status`.",
        0.5,
    ),
    "tenant_broken": Wording(
        "denied",
        "This tenant's part of the ledger isn't what was written: nothing from there on counts, so it neither writes nor reads.",
        "Evidence goes on (`why`, `trace`, `case`). `cordon verify` names the place: restore the ledger from a copy.",
    ),
    "ledger_unreachable": Wording(
        "unavailable", "The ledger does not confirm writes now.", "Try again; nothing was stored.", 1.0
    ),
    "ledger_full": Wording(
        "unavailable",
        "The ledger is full: memory writes are stopped, reads and holds go on.",
        "The operator must add space: `cordon broker room --ledger GIB`.",
        30.0,
    ),
    "disk_full": Wording(
        "unavailable",
        "The disk of this home is nearly full: memory writes are stopped, later reads too; holds and erasures go on.",
        "The operator must free disk space.",
        30.0,
    ),
    "store_unwritable": Wording(
        "unavailable",
        "This tenant's catalog can't be written now: memory writes are stopped, reads and holds go on.",
        "The operator finds the cause in `cordon status`; it is tried again by itself.",
        5.0,
    ),
    "reads_full": Wording(
        "unavailable",
        "The record of reads is full: questions can't be answered, writes and holds go on.",
        "The operator must add space: `cordon broker room --reads GIB`.",
        30.0,
    ),
    "context_changed": Wording("unavailable", "The context was closed while this was answered.", "Ask again.", 0.1),
    "integrity_alarm": Wording(
        "unavailable", "The answer failed its last look and was not sent.", "Tell the operator; ask again.", 1.0
    ),
    "behind": Wording("unavailable", "The gatekeeper is behind the position you ask for.", "Ask again.", 0.2),
    "store_behind": Wording("unavailable", "The lineage store has not caught up.", "Try again in a moment.", 1.0),
    "stopping": Wording("unavailable", "The gatekeeper is stopping.", "Try again in a moment.", 1.0),
    "internal": Wording(
        "internal", "The gatekeeper failed on this request; it is in its log.", "Try again; report it if it stays.", 1.0
    ),
}


class Refused(Exception):
    """A typed no on its way to the caller. `code` is a key of TABLE."""

    def __init__(
        self,
        code: str,
        *,
        field: str = "",
        limit: int | None = None,
        reasons: tuple[str, ...] = (),
        detail: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(code)
        self.code = code
        self.field = field
        self.limit = limit
        self.reasons = reasons
        self.detail = detail or {}

    def _quota(self) -> str:
        """Which quota, whose and how much of it is used, where this is the refusal of one."""
        if "whose" not in self.detail:
            return ""
        used = f"{self.detail['used']} of {self.limit}" if "used" in self.detail else f"at most {self.limit}"
        return f" It is the {self.detail['whose']}'s {self.field}: {used}."

    def _named(self) -> str:
        """The command that a plan is for, where it was given to another; who rejected what a memory became."""
        if "apply_with" in self.detail:
            return f" It is for `{self.detail['apply_with']}`."
        return f" It was rejected by {self.detail['rejected_by']}." if "rejected_by" in self.detail else ""

    def frame(self, request_id: str = "", agent: str = "", project: str = "") -> Refusal:
        w = TABLE[self.code]
        return Refusal(
            request_id=request_id,
            agent=agent,
            project=project,
            error=w.error,
            reason=self.code,
            reasons=list(self.reasons) or [self.code],
            field=self.field,
            limit=self.limit,
            message=w.message + self._quota() + self._named(),
            advice=w.advice,
            retry_after_s=w.retry_after_s,
            detail=self.detail,
        )
