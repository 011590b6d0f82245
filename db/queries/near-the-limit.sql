-- Recipes whose newest reading comes near the memory of a GPU, or that ran out of it, the closest first.
-- :gpu gpu = h100-80gb -- a GPU of the table gpus, for readings of it and of any other device
-- :within real = 0.1 -- headroom of at most this part of the GPU's memory
-- :provenance choice = any -- measured, simulated, imported or any
-- :limit integer = 50 -- how many
WITH newest AS (
  SELECT
    series.*, metric <> 'device' OR latest_outcome = 'censored' AS at_least,
    row_number() OVER (
      PARTITION BY workload, provenance, repo
      ORDER BY CASE metric WHEN 'device' THEN 0 WHEN 'reserved' THEN 1 ELSE 2 END
    ) AS choice
  FROM series
  WHERE line = '' AND metric IN ('device', 'reserved', 'allocated') AND latest_bytes IS NOT NULL
)
SELECT
  series.provenance, workloads.recipe, workloads.device, gpus.name AS gpu, series.latest_bytes AS peak_device_bytes,
  series.at_least, gpus.capacity_bytes - series.latest_bytes AS headroom_bytes, series.latest_outcome AS outcome,
  points.key AS point, substr(points.committed, 1, 10) AS date, series.workload
FROM gpus
JOIN newest AS series ON series.choice = 1
JOIN workloads ON workloads.id = series.workload
JOIN points ON points.id = series.latest_point
WHERE gpus.name = :gpu
  AND (series.latest_outcome = 'censored' OR series.latest_bytes >= gpus.capacity_bytes * (1 - :within))
  AND (:provenance = 'any' OR series.provenance = :provenance)
ORDER BY headroom_bytes, workloads.recipe
LIMIT :limit
