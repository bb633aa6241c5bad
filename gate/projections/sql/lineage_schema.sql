-- name: about
-- The schema's version: one row.
CREATE TABLE about (schema INTEGER NOT NULL);

-- name: stream
-- The streams whose events are applied, each by its identity (a stream made anew under an old name is another one).
CREATE TABLE stream (name VARCHAR NOT NULL, identity VARCHAR NOT NULL);

-- name: position
-- How far each stream is applied: the greatest counts. One row a transaction, thinned out at the next start.
CREATE TABLE position (stream VARCHAR NOT NULL, seq BIGINT NOT NULL);

-- name: tenant
-- The account key behind a tenant's dense number.
CREATE TABLE tenant (tenant INTEGER NOT NULL, account VARCHAR NOT NULL);

-- name: memory
-- A memory as it was written; no text. Enumerations are indexes into the tuples of bus.frames; times are ms since 1970.
CREATE TABLE memory (
    tenant INTEGER NOT NULL, seq INTEGER NOT NULL, id BLOB NOT NULL, project VARCHAR NOT NULL, agent BLOB NOT NULL,
    kind UTINYINT NOT NULL, origin UTINYINT NOT NULL, trust SMALLINT NOT NULL, floor SMALLINT NOT NULL, class UTINYINT NOT NULL,
    state VARCHAR NOT NULL, ms BIGINT NOT NULL, ctx BLOB NOT NULL, epoch INTEGER NOT NULL, ctx_seq INTEGER NOT NULL
);

-- name: edge
-- Parent src, child dst (tenant_seqs), kind as in gate.ledger.events.EDGE_KINDS, confidence 0..255.
CREATE TABLE edge (
    tenant INTEGER NOT NULL, src INTEGER NOT NULL, dst INTEGER NOT NULL, kind UTINYINT NOT NULL, confidence UTINYINT NOT NULL
);

-- name: recall
-- A recall, numbered within its context and epoch.
CREATE TABLE recall (
    tenant INTEGER NOT NULL, id BLOB NOT NULL, ctx BLOB NOT NULL, epoch INTEGER NOT NULL, ctx_seq INTEGER NOT NULL,
    agent BLOB NOT NULL, project VARCHAR NOT NULL, ms BIGINT NOT NULL, verb VARCHAR NOT NULL, intent UTINYINT NOT NULL,
    risk UTINYINT NOT NULL
);

-- name: served
-- What a recall decided about a memory: an index into bus.frames.DECISIONS, reasons as bits.
CREATE TABLE served (
    tenant INTEGER NOT NULL, recall BLOB NOT NULL, memory INTEGER NOT NULL, decision UTINYINT NOT NULL, reasons UBIGINT NOT NULL
);

-- name: withdrawn
-- What the last look dropped from a recall.
CREATE TABLE withdrawn (tenant INTEGER NOT NULL, recall BLOB NOT NULL, memory INTEGER NOT NULL);

-- name: case_event
-- opened, joined or released, with the number of members that it concerns.
CREATE TABLE case_event (
    tenant INTEGER NOT NULL, ledger_seq BIGINT NOT NULL, case_id BLOB NOT NULL, kind VARCHAR NOT NULL, ms BIGINT NOT NULL,
    agent BLOB NOT NULL, members INTEGER NOT NULL
);

-- name: case_member
-- Who joined a case.
CREATE TABLE case_member (tenant INTEGER NOT NULL, case_id BLOB NOT NULL, memory INTEGER NOT NULL);

-- name: notice
-- A notice (kind: recall or released) that was sent to or acked by an agent.
CREATE TABLE notice (
    tenant INTEGER NOT NULL, case_id BLOB NOT NULL, kind VARCHAR NOT NULL, agent BLOB NOT NULL, state VARCHAR NOT NULL, ms BIGINT NOT NULL
);

-- name: audit
-- Refusals, and looks at text by an operator. `number` > 1: folded.
CREATE TABLE audit (
    tenant INTEGER NOT NULL, ms BIGINT NOT NULL, key VARCHAR NOT NULL, verb VARCHAR NOT NULL, project VARCHAR NOT NULL,
    code VARCHAR NOT NULL, number INTEGER NOT NULL, agent BLOB NOT NULL, memory INTEGER NOT NULL
);
