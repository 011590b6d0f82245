-- The steps, up and down, that landed between two days, newest first.
-- :since date -- from this day on
-- :until date = 9999 -- up to this day
-- :metric choice = allocated -- allocated, reserved, device or external
-- :provenance choice = any -- measured, simulated, imported or any
-- :limit integer = 100 -- how many
SELECT
  series.provenance, substr(points.committed, 1, 10) AS date, points.key AS point, workloads.recipe, workloads.device,
  steps.delta_bytes, steps.at_least, steps.left_bytes, steps.state, steps.blurred, points.subject, series.workload
FROM points
CROSS JOIN steps ON steps.point = points.id
JOIN series ON series.id = steps.series
JOIN workloads ON workloads.id = series.workload
WHERE points.committed >= :since AND points.committed < :until || '~' AND steps.metric = :metric
  AND (:provenance = 'any' OR series.provenance = :provenance)
ORDER BY points.committed DESC, abs(steps.delta_bytes) DESC
LIMIT :limit
