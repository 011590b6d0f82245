-- Where runs ran out of memory: recipe, device and phase, the most frequent first.
-- :recipe recipe = any -- one recipe, or any
-- :provenance choice = any -- measured, simulated or any (imports do not tell)
-- :limit integer = 50 -- how many
SELECT
  CASE workloads.simulated WHEN 1 THEN 'simulated' ELSE 'measured' END AS provenance,
  workloads.recipe, workloads.device, oom_sites.phase, oom_sites.ooms, oom_sites.points,
  oom_sites.largest_request_bytes, oom_sites.most_unused_bytes, substr(oom_sites.newest, 1, 10) AS newest,
  oom_sites.workload
FROM oom_sites
JOIN workloads ON workloads.id = oom_sites.workload
WHERE (:recipe = 'any' OR workloads.recipe = :recipe)
  AND (:provenance = 'any' OR workloads.simulated = (:provenance = 'simulated'))
ORDER BY oom_sites.ooms DESC, oom_sites.newest DESC
LIMIT :limit
