-- The steps that added most, largest first.
-- :metric choice = allocated -- allocated, reserved, device or external
-- :state choice = any -- in force, fixed, partly fixed or any
-- :provenance choice = any -- measured, simulated, imported or any
-- :since date = 0000 -- landed on this day or later
-- :limit integer = 20 -- how many
SELECT
  series.provenance, workloads.recipe, workloads.device, points.key AS point, steps.delta_bytes, steps.at_least,
  steps.left_bytes, steps.state, steps.before_bytes, steps.after_bytes, steps.blurred,
  substr(points.committed, 1, 10) AS date, points.subject, series.workload
FROM steps INDEXED BY steps_by_size
JOIN series ON series.id = steps.series
JOIN workloads ON workloads.id = series.workload
JOIN points ON points.id = steps.point
WHERE steps.metric = :metric AND steps.delta_bytes > 0
  AND (:state = 'any' OR steps.state = :state)
  AND (:provenance = 'any' OR series.provenance = :provenance)
  AND (points.committed >= :since OR (points.committed IS NULL AND :since = '0000'))
ORDER BY steps.delta_bytes DESC
LIMIT :limit
