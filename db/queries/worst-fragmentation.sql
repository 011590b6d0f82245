-- Newest readings whose allocator needs most beyond what is alive, as replays of their allocations showed.
-- :provenance choice = any -- measured, simulated or any (imports have no replays)
-- :limit integer = 20 -- how many
SELECT
  series.provenance, workloads.recipe, workloads.device, points.key AS point, replays.rank,
  max(replays.needed_bytes - replays.peak_allocated) AS fragmentation_bytes, replays.needed_bytes,
  replays.peak_allocated AS peak_allocated_bytes, replays.peak_reserved AS peak_reserved_bytes,
  rank_readings.peak_inactive_split AS peak_inactive_split_bytes, replays.alloc_conf, series.workload
FROM series
JOIN replays ON replays.probe = series.latest_probe AND replays.needed_bytes IS NOT NULL AND replays.limit_bytes IS NULL
JOIN rank_readings ON rank_readings.probe = replays.probe AND rank_readings.rank = replays.rank
JOIN probes ON probes.id = replays.probe
JOIN workloads ON workloads.id = series.workload
JOIN points ON points.id = series.latest_point
WHERE series.metric = 'allocated' AND (:provenance = 'any' OR series.provenance = :provenance)
GROUP BY series.id
ORDER BY fragmentation_bytes DESC
LIMIT :limit
