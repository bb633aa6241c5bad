-- name: create_memory
-- Text and metadata of a memory, by the tenant_seq of its event. `meta` is the event's meta as it lies in the ledger.
CREATE TABLE memory (
    seq INTEGER PRIMARY KEY, meta BLOB NOT NULL, content TEXT NOT NULL, evidence BLOB NOT NULL,
    run TEXT NOT NULL, task TEXT NOT NULL, session TEXT NOT NULL, trace_id TEXT NOT NULL, scope_id TEXT NOT NULL
) STRICT;

-- name: create_source
-- Which memories cite which evidence: 8 bytes of a hash, checked against the row's own evidence when it is read.
CREATE TABLE source (hash INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (hash, seq)) STRICT, WITHOUT ROWID;

-- name: create_position
-- The one row that says how far the ledger is applied, of which ledger, in which schema.
CREATE TABLE position (
    one INTEGER PRIMARY KEY CHECK (one = 1), stream TEXT NOT NULL, schema INTEGER NOT NULL,
    ledger_seq INTEGER NOT NULL, tenant_seq INTEGER NOT NULL, chain BLOB NOT NULL
) STRICT;

-- name: create_plan
-- Plans of holds that wait to be applied. Not a projection: lost with the file, then planned again.
CREATE TABLE plan (id BLOB PRIMARY KEY, blob BLOB NOT NULL, expires_ms INTEGER NOT NULL, used INTEGER NOT NULL DEFAULT 0) STRICT;

-- name: first_position
-- A new catalog: nothing applied yet.
INSERT INTO position VALUES (1, ?, ?, 0, 0, x'');

-- name: read_position
-- Whose catalog this is and how far it is.
SELECT stream, schema, ledger_seq, tenant_seq, chain FROM position WHERE one = 1;

-- name: move_position
-- In the transaction of the rows that it speaks for.
UPDATE position SET ledger_seq = ?, tenant_seq = ?, chain = ? WHERE one = 1;

-- name: insert_memory
-- One memory.
INSERT INTO memory VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_source
-- One citation.
INSERT OR IGNORE INTO source VALUES (?, ?);

-- name: fetch
-- Memories by a JSON array of tenant_seqs.
SELECT * FROM memory WHERE seq IN (SELECT value FROM json_each(?));

-- name: after
-- The next memories after a tenant_seq, ascending.
SELECT * FROM memory WHERE seq > ? ORDER BY seq LIMIT ?;

-- name: citing
-- Candidates that cite an evidence hash, ascending.
SELECT m.seq, m.evidence FROM source s JOIN memory m ON m.seq = s.seq WHERE s.hash = ? ORDER BY m.seq;

-- name: erase_memory
-- Everything personal of a memory; its place and its meta stay. A content is never empty otherwise.
UPDATE memory SET content = '', evidence = x'5b5d', run = '', task = '', session = '', trace_id = '', scope_id = '' WHERE seq = ?;

-- name: erase_source
-- One citation.
DELETE FROM source WHERE hash = ? AND seq = ?;

-- name: erased
-- Memories whose text is gone, ascending.
SELECT seq FROM memory WHERE content = '' ORDER BY seq;

-- name: count
-- How many memories.
SELECT count(*) FROM memory;

-- name: count_upto
-- How many memories up to a tenant_seq.
SELECT count(*) FROM memory WHERE seq <= ?;

-- name: citations_upto
-- How many citations of memories up to a tenant_seq, and a sum over their hashes.
SELECT count(*), sum(hash & 0xFFFFFFFF) FROM source WHERE seq <= ?;

-- name: insert_plan
-- A plan, unused.
INSERT INTO plan VALUES (?, ?, ?, 0);

-- name: read_plan
-- A plan that may still be used at a time.
SELECT blob FROM plan WHERE id = ? AND used = 0 AND expires_ms > ?;

-- name: plan_ids
-- Plans that may still be used at a time.
SELECT id FROM plan WHERE used = 0 AND expires_ms > ?;

-- name: use_plan
-- Marks a plan as used, if it may still be used at a time.
UPDATE plan SET used = 1 WHERE id = ? AND used = 0 AND expires_ms > ?;

-- name: prune_plans
-- Plans that can't be used any more, and all but so many of the newest.
DELETE FROM plan WHERE used = 1 OR expires_ms <= ? OR id IN (SELECT id FROM plan ORDER BY expires_ms DESC, rowid DESC LIMIT -1 OFFSET ?);
