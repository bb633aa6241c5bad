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
