-- Recipes whose newest reading is old, the oldest first.
-- :days integer = 30 -- older than this many days
-- :provenance choice = any -- measured, simulated, imported or any
-- :limit integer = 100 -- how many
SELECT
  series.provenance, workloads.recipe, workloads.device, substr(max(series.last_measured), 1, 10) AS measured,
  CAST(julianday('now') - julianday(max(series.last_measured)) AS INTEGER) AS days_ago,
  substr(series.last_committed, 1, 10) AS newest_commit, series.workload
FROM series
JOIN workloads ON workloads.id = series.workload
WHERE series.metric = 'allocated' AND (:provenance = 'any' OR series.provenance = :provenance)
GROUP BY series.workload, series.provenance
HAVING julianday('now') - julianday(max(series.last_measured)) > :days
ORDER BY measured, workloads.recipe
LIMIT :limit
