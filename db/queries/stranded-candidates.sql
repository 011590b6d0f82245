-- Newest readings with the most memory in split blocks that nobody used: where fragmentation may be, unproven.
-- :provenance choice = any -- measured, simulated or any (imports do not tell)
-- :limit integer = 20 -- how many
SELECT
  series.provenance, workloads.recipe, workloads.device, points.key AS point, rank_readings.rank,
  max(rank_readings.peak_inactive_split) AS peak_inactive_split_bytes,
  rank_readings.peak_reserved - rank_readings.peak_allocated AS cached_bytes,
  rank_readings.peak_allocated AS peak_allocated_bytes, rank_readings.alloc_retries, series.workload
FROM series
JOIN rank_readings ON rank_readings.probe = series.latest_probe
JOIN workloads ON workloads.id = series.workload
JOIN points ON points.id = series.latest_point
WHERE series.metric = 'allocated' AND (:provenance = 'any' OR series.provenance = :provenance)
GROUP BY series.id
ORDER BY peak_inactive_split_bytes DESC
LIMIT :limit
