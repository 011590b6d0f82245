-- Where runs ran out of memory: recipe, device and phase, the most frequent first.
-- :recipe text = any -- one recipe, or any
-- :limit integer = 50 -- how many
SELECT
  CASE workloads.simulated WHEN 1 THEN 'simulated' ELSE 'measured' END AS provenance,
  workloads.recipe, workloads.device, ooms.phase, count(*) AS ooms, count(DISTINCT probes.point) AS points,
  max(ooms.requested) AS largest_request_bytes, max(ooms.reserved - ooms.allocated) AS most_unused_bytes,
  max(substr(probes.finished, 1, 10)) AS newest, workloads.id AS workload
FROM ooms
CROSS JOIN probes ON probes.id = ooms.probe
JOIN workloads ON workloads.id = probes.workload
WHERE probes.capacity_bytes IS NULL AND (:recipe = 'any' OR workloads.recipe = :recipe)
GROUP BY workloads.id, ooms.phase
ORDER BY ooms DESC, newest DESC
LIMIT :limit
