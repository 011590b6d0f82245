-- Recipes that grow though no single commit adds much, the largest growth first.
-- :metric choice = allocated -- allocated, reserved, device or external
-- :provenance choice = any -- measured, simulated, imported or any
-- :limit integer = 50 -- how many
SELECT
  series.provenance, workloads.recipe, workloads.device, creeps.delta_bytes, creeps.commits, creeps.changes,
  creeps.largest_bytes, begins.key AS first, ends.key AS last, substr(ends.committed, 1, 10) AS until, series.workload
FROM creeps
JOIN series ON series.id = creeps.series
JOIN workloads ON workloads.id = series.workload
JOIN points AS begins ON begins.id = creeps.first
JOIN points AS ends ON ends.id = creeps.last
WHERE creeps.metric = :metric AND creeps.delta_bytes > 0 AND (:provenance = 'any' OR series.provenance = :provenance)
ORDER BY creeps.delta_bytes DESC
LIMIT :limit
