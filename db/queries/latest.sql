-- The newest reading of every recipe on every device, with what it has been.
-- :metric choice = allocated -- allocated, reserved, device or external
-- :recipe recipe = any -- one recipe, or any
-- :provenance choice = any -- measured, simulated, imported or any
-- :limit integer = 500 -- how many
SELECT
  series.provenance, workloads.recipe, workloads.device, series.latest_bytes, series.latest_outcome AS outcome,
  series.lowest_bytes, series.highest_bytes, points.key AS point, substr(points.committed, 1, 10) AS date,
  series.exact + series.censored AS read_points, series.line, series.workload
FROM series
JOIN workloads ON workloads.id = series.workload
LEFT JOIN points ON points.id = series.latest_point
WHERE series.metric = :metric AND (:recipe = 'any' OR workloads.recipe = :recipe)
  AND (:provenance = 'any' OR series.provenance = :provenance)
ORDER BY workloads.recipe, workloads.device, series.workload
LIMIT :limit
