-- How much of each GPU every recipe would leave free, by its newest reading; at least: a lower bound.
-- :recipe recipe = any -- one recipe, or any
-- :provenance choice = any -- measured, simulated, imported or any
-- :limit integer = 500 -- how many
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
  series.at_least, gpus.capacity_bytes, gpus.capacity_bytes - series.latest_bytes AS headroom_bytes,
  CASE
    WHEN NOT series.at_least AND series.latest_bytes <= gpus.capacity_bytes THEN 'fits'
    WHEN series.latest_bytes > gpus.capacity_bytes THEN 'more than it has'
    ELSE 'not known'
  END AS verdict,
  points.key AS point, series.workload
FROM newest AS series
JOIN gpus
JOIN workloads ON workloads.id = series.workload
JOIN points ON points.id = series.latest_point
WHERE series.choice = 1 AND (:recipe = 'any' OR workloads.recipe = :recipe)
  AND (:provenance = 'any' OR series.provenance = :provenance)
ORDER BY workloads.recipe, series.workload, gpus.capacity_bytes
LIMIT :limit
