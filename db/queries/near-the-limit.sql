-- Recipes whose newest reading comes near the memory of a GPU, or that ran out of it, the closest first.
-- :gpu text = h100-80gb -- a GPU of the table gpus, for readings of it and of any other device
-- :within real = 0.1 -- headroom of at most this part of the GPU's memory
-- :provenance choice = any -- measured, simulated, imported or any
-- :limit integer = 50 -- how many
SELECT
  series.provenance, workloads.recipe, workloads.device, gpus.name AS gpu, series.latest_bytes AS peak_device_bytes,
  gpus.capacity_bytes - series.latest_bytes AS headroom_bytes, series.latest_outcome AS outcome,
  points.key AS point, substr(points.committed, 1, 10) AS date, series.workload
FROM gpus
JOIN series ON series.metric = 'device' AND series.line = ''
JOIN workloads ON workloads.id = series.workload
JOIN points ON points.id = series.latest_point
WHERE gpus.name = :gpu
  AND (series.latest_outcome = 'censored' OR series.latest_bytes >= gpus.capacity_bytes * (1 - :within))
  AND (:provenance = 'any' OR series.provenance = :provenance)
ORDER BY headroom_bytes, workloads.recipe
LIMIT :limit
