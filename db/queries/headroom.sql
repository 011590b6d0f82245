-- How much of each GPU every recipe would leave free, by its newest reading.
-- :recipe text = any -- one recipe, or any
-- :provenance choice = any -- measured, simulated, imported or any
-- :limit integer = 500 -- how many
SELECT
  series.provenance, workloads.recipe, workloads.device, gpus.name AS gpu, series.latest_bytes AS peak_device_bytes,
  gpus.capacity_bytes, gpus.capacity_bytes - series.latest_bytes AS headroom_bytes,
  CASE
    WHEN series.latest_outcome = 'exact' AND series.latest_bytes <= gpus.capacity_bytes THEN 'fits'
    WHEN series.latest_bytes > gpus.capacity_bytes THEN 'more than it has'
    ELSE 'not known'
  END AS verdict,
  points.key AS point, series.workload
FROM series
JOIN gpus
JOIN workloads ON workloads.id = series.workload
JOIN points ON points.id = series.latest_point
WHERE series.metric = 'device' AND series.line = '' AND (:recipe = 'any' OR workloads.recipe = :recipe)
  AND (:provenance = 'any' OR series.provenance = :provenance)
ORDER BY workloads.recipe, series.workload, gpus.capacity_bytes
LIMIT :limit
