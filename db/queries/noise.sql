-- How far readings of the same thing are apart, by recipe, the noisiest first.
-- :metric choice = allocated -- allocated, reserved, device or external
-- :provenance choice = any -- measured, simulated, imported or any
-- :limit integer = 100 -- how many
SELECT
  series.provenance, workloads.recipe, workloads.device, series.repeats, series.repeat_spread_bytes,
  series.noise_bytes AS assumed_noise_bytes, series.latest_bytes,
  round(100.0 * series.repeat_spread_bytes / series.highest_bytes, 3) AS spread_percent, series.workload
FROM series
JOIN workloads ON workloads.id = series.workload
WHERE series.metric = :metric AND (:provenance = 'any' OR series.provenance = :provenance)
ORDER BY series.repeat_spread_bytes DESC, series.noise_bytes DESC
LIMIT :limit
