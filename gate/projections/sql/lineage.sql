-- name: closure_down
-- Everything derived from the roots ($roots, included) over edges of $kinds within $hops, each once with its least depth.
WITH RECURSIVE reached(node, depth) USING KEY (node) AS (
    SELECT DISTINCT unnest($roots::INTEGER[]), 0
    UNION
    SELECT e.dst, min(r.depth) + 1
    FROM reached r JOIN edge e ON e.src = r.node
    WHERE e.tenant = $tenant AND list_contains($kinds, e.kind) AND r.depth < $hops
      AND NOT EXISTS (FROM recurring.reached known WHERE known.node = e.dst)
    GROUP BY e.dst
)
SELECT node, depth FROM reached ORDER BY node;

-- name: closure_up
-- Everything that the roots ($roots, included) derive from over edges of $kinds within $hops, each once with its least depth.
WITH RECURSIVE reached(node, depth) USING KEY (node) AS (
    SELECT DISTINCT unnest($roots::INTEGER[]), 0
    UNION
    SELECT e.src, min(r.depth) + 1
    FROM reached r JOIN edge e ON e.dst = r.node
    WHERE e.tenant = $tenant AND list_contains($kinds, e.kind) AND r.depth < $hops
      AND NOT EXISTS (FROM recurring.reached known WHERE known.node = e.src)
    GROUP BY e.src
)
SELECT node, depth FROM reached ORDER BY node;

-- name: exposure
-- Recalls that showed any of $memories (decided below $quarantine), newest first, at most $most: when, who, where, which memory, decision, reasons, withdrawn or not.
SELECT r.ms, r.id, r.agent, r.project, r.verb, r.intent, r.risk, s.memory, s.decision, s.reasons,
       EXISTS (FROM withdrawn w WHERE w.tenant = s.tenant AND w.recall = s.recall AND w.memory = s.memory) AS withdrawn
FROM served s JOIN recall r ON r.tenant = s.tenant AND r.id = s.recall
WHERE s.tenant = $tenant AND list_contains($memories, s.memory) AND s.decision < $quarantine
ORDER BY r.ms DESC, r.id DESC, s.memory
LIMIT $most;

-- name: newest_read
-- When the newest recall or audited refusal before $before (ms) was; NULL if there is none.
SELECT max(ms) FROM (SELECT ms FROM recall UNION ALL SELECT ms FROM audit) WHERE ms < $before;

-- name: decisions
-- Everything that one recall ($recall) decided: memory, decision, reasons, withdrawn or not; in the order of memories.
SELECT s.memory, s.decision, s.reasons,
       EXISTS (FROM withdrawn w WHERE w.tenant = s.tenant AND w.recall = s.recall AND w.memory = s.memory) AS withdrawn
FROM served s
WHERE s.tenant = $tenant AND s.recall = $recall
ORDER BY s.memory;

-- name: recall
-- One recall ($recall): when, who, where, in which context and number, for what.
SELECT ms, agent, project, ctx, epoch, ctx_seq, verb, intent, risk FROM recall WHERE tenant = $tenant AND id = $recall;

-- name: agents_served
-- Agents that were served any of $memories (and it wasn't withdrawn), with the number of recalls and the time of the last.
SELECT r.agent, count(DISTINCT r.id) AS recalls, max(r.ms) AS last_ms
FROM served s JOIN recall r ON r.tenant = s.tenant AND r.id = s.recall
WHERE s.tenant = $tenant AND list_contains($memories, s.memory) AND s.decision < $quarantine
  AND NOT EXISTS (FROM withdrawn w WHERE w.tenant = s.tenant AND w.recall = s.recall AND w.memory = s.memory)
GROUP BY r.agent
ORDER BY r.agent;

-- name: exposed_writes
-- Memories written in a context and epoch after any of $memories was served there: exposed, not infected; at most $most.
SELECT m.seq, m.id, m.agent, m.project, m.ms
FROM memory m JOIN (
    SELECT r.ctx, r.epoch, min(r.ctx_seq) AS first
    FROM served s JOIN recall r ON r.tenant = s.tenant AND r.id = s.recall
    WHERE s.tenant = $tenant AND list_contains($memories, s.memory) AND s.decision < $quarantine
    GROUP BY r.ctx, r.epoch
) x ON m.ctx = x.ctx AND m.epoch = x.epoch AND m.ctx_seq >= x.first
WHERE m.tenant = $tenant
ORDER BY m.seq
LIMIT $most;

-- name: case_history
-- What happened to one case ($case_id), oldest first: ledger sequence, kind, time, agent, number of members.
SELECT ledger_seq, kind, ms, agent, members FROM case_event WHERE tenant = $tenant AND case_id = $case_id ORDER BY ledger_seq, kind;

-- name: case_members
-- Who is or was in one case ($case_id), ascending.
SELECT DISTINCT memory FROM case_member WHERE tenant = $tenant AND case_id = $case_id ORDER BY memory;

-- name: notices
-- Notices of one case ($case_id): agent, kind, sent or acked, when.
SELECT agent, kind, state, ms FROM notice WHERE tenant = $tenant AND case_id = $case_id ORDER BY agent, ms, state;

-- name: audit
-- Refusals and looks at text since $since_ms, newest first, at most $most.
SELECT ms, key, verb, project, code, number, agent, memory FROM audit
WHERE tenant = $tenant AND ms >= $since_ms
ORDER BY ms DESC, key, verb
LIMIT $most;

-- name: counts
-- Rows of every table of one tenant, to compare with the live state.
SELECT 'memory' AS name, count(*) AS rows FROM memory WHERE tenant = $tenant
UNION ALL SELECT 'edge', count(*) FROM edge WHERE tenant = $tenant
UNION ALL SELECT 'recall', count(*) FROM recall WHERE tenant = $tenant
UNION ALL SELECT 'served', count(*) FROM served WHERE tenant = $tenant
UNION ALL SELECT 'withdrawn', count(*) FROM withdrawn WHERE tenant = $tenant
UNION ALL SELECT 'case_event', count(*) FROM case_event WHERE tenant = $tenant
UNION ALL SELECT 'case_member', count(*) FROM case_member WHERE tenant = $tenant
UNION ALL SELECT 'notice', count(*) FROM notice WHERE tenant = $tenant
UNION ALL SELECT 'audit', count(*) FROM audit WHERE tenant = $tenant;

-- name: digests
-- Of one tenant, for verification: rows and the sum of their hashes, by table and part (1,024 memories or blocks, or a minute); up to $upto (tenant_seq), $ledger (block), between $since and $until (ms).
SELECT 'memory' AS name, seq // 1024 AS part, count(*) AS rows, sum(hash(seq, id, project, agent, kind, origin, trust, floor, class, state, ms, ctx, epoch, ctx_seq)) AS digest
FROM memory x
WHERE x.tenant = $tenant AND seq <= $upto
GROUP BY part
UNION ALL SELECT 'edge' AS name, dst // 1024 AS part, count(*) AS rows, sum(hash(src, dst, kind, confidence)) AS digest
FROM edge x
WHERE x.tenant = $tenant AND dst <= $upto
GROUP BY part
UNION ALL SELECT 'case_member' AS name, memory // 1024 AS part, count(*) AS rows, sum(hash(case_id, memory)) AS digest
FROM case_member x
WHERE x.tenant = $tenant AND memory <= $upto AND case_id IN (SELECT case_id FROM case_event WHERE tenant = $tenant AND ledger_seq <= $ledger)
GROUP BY part
UNION ALL SELECT 'case_event' AS name, ledger_seq // 1024 AS part, count(*) AS rows, sum(hash(ledger_seq, case_id, kind, ms, agent, members)) AS digest
FROM case_event x
WHERE x.tenant = $tenant AND ledger_seq <= $ledger
GROUP BY part
UNION ALL SELECT 'notice' AS name, ms // 60000 AS part, count(*) AS rows, sum(hash(case_id, kind, agent, state, ms)) AS digest
FROM notice x
WHERE x.tenant = $tenant AND ms < $until
GROUP BY part
UNION ALL SELECT 'recall' AS name, ms // 60000 AS part, count(*) AS rows, sum(hash(id, ctx, epoch, ctx_seq, agent, project, ms, verb, intent, risk)) AS digest
FROM recall x
WHERE x.tenant = $tenant AND ms >= $since AND ms < $until
GROUP BY part
UNION ALL SELECT 'served' AS name, r.ms // 60000 AS part, count(*) AS rows, sum(hash(x.recall, x.memory, x.decision, x.reasons)) AS digest
FROM served x JOIN recall r ON r.tenant = x.tenant AND r.id = x.recall
WHERE x.tenant = $tenant AND r.ms >= $since AND r.ms < $until
GROUP BY part
UNION ALL SELECT 'withdrawn' AS name, r.ms // 60000 AS part, count(*) AS rows, sum(hash(x.recall, x.memory)) AS digest
FROM withdrawn x JOIN recall r ON r.tenant = x.tenant AND r.id = x.recall
WHERE x.tenant = $tenant AND r.ms >= $since AND r.ms < $until
GROUP BY part
UNION ALL SELECT 'audit' AS name, ms // 60000 AS part, count(*) AS rows, sum(hash(ms, key, verb, project, code, number, agent, memory)) AS digest
FROM audit x
WHERE x.tenant = $tenant AND ms >= $since AND ms < $until
GROUP BY part;

-- name: rows_memory
-- The rows of `memory` in one $part of `digests`.
SELECT seq, id, project, agent, kind, origin, trust, floor, class, state, ms, ctx, epoch, ctx_seq FROM memory x
WHERE x.tenant = $tenant AND seq // 1024 = $part AND seq <= $upto
ORDER BY ALL
LIMIT 5000;

-- name: rows_edge
-- The rows of `edge` in one $part of `digests`.
SELECT src, dst, kind, confidence FROM edge x
WHERE x.tenant = $tenant AND dst // 1024 = $part AND dst <= $upto
ORDER BY ALL
LIMIT 5000;

-- name: rows_case_member
-- The rows of `case_member` in one $part of `digests`.
SELECT case_id, memory FROM case_member x
WHERE x.tenant = $tenant AND memory // 1024 = $part AND memory <= $upto AND case_id IN (SELECT case_id FROM case_event WHERE tenant = $tenant AND ledger_seq <= $ledger)
ORDER BY ALL
LIMIT 5000;

-- name: rows_case_event
-- The rows of `case_event` in one $part of `digests`.
SELECT ledger_seq, case_id, kind, ms, agent, members FROM case_event x
WHERE x.tenant = $tenant AND ledger_seq // 1024 = $part AND ledger_seq <= $ledger
ORDER BY ALL
LIMIT 5000;

-- name: rows_notice
-- The rows of `notice` in one $part of `digests`.
SELECT case_id, kind, agent, state, ms FROM notice x
WHERE x.tenant = $tenant AND ms // 60000 = $part AND ms < $until
ORDER BY ALL
LIMIT 5000;

-- name: rows_recall
-- The rows of `recall` in one $part of `digests`.
SELECT id, ctx, epoch, ctx_seq, agent, project, ms, verb, intent, risk FROM recall x
WHERE x.tenant = $tenant AND ms // 60000 = $part AND ms >= $since AND ms < $until
ORDER BY ALL
LIMIT 5000;

-- name: rows_served
-- The rows of `served` in one $part of `digests`.
SELECT x.recall, x.memory, x.decision, x.reasons FROM served x JOIN recall r ON r.tenant = x.tenant AND r.id = x.recall
WHERE x.tenant = $tenant AND r.ms // 60000 = $part AND r.ms >= $since AND r.ms < $until
ORDER BY ALL
LIMIT 5000;

-- name: rows_withdrawn
-- The rows of `withdrawn` in one $part of `digests`.
SELECT x.recall, x.memory FROM withdrawn x JOIN recall r ON r.tenant = x.tenant AND r.id = x.recall
WHERE x.tenant = $tenant AND r.ms // 60000 = $part AND r.ms >= $since AND r.ms < $until
ORDER BY ALL
LIMIT 5000;

-- name: rows_audit
-- The rows of `audit` in one $part of `digests`.
SELECT ms, key, verb, project, code, number, agent, memory FROM audit x
WHERE x.tenant = $tenant AND ms // 60000 = $part AND ms >= $since AND ms < $until
ORDER BY ALL
LIMIT 5000;
