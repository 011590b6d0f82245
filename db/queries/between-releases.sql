-- What changed between two points that were both read: two releases, two commits, or two versions of a package.
-- :old point -- the one before: a commit (7 digits or more), a tag of the repository, a version such as torch==2.9.1
-- :new point -- the one after
-- :metric choice = allocated -- allocated, reserved, device or external
-- :least size = 1MiB -- changes of at least this
-- :limit integer = 100 -- how many
WITH
  asked (side, point) AS (
    SELECT 'old', id FROM points
    WHERE key = :old OR (key >= :old AND key < :old || 'g' AND length(:old) >= 7 AND key NOT GLOB '*[^0-9a-f]*')
    UNION ALL
    SELECT 'new', id FROM points
    WHERE key = :new OR (key >= :new AND key < :new || 'g' AND length(:new) >= 7 AND key NOT GLOB '*[^0-9a-f]*')
  ),
  told (side, workload, provenance, outcome, bytes) AS (
    SELECT
      asked.side, probes.workload, CASE workloads.simulated WHEN 1 THEN 'simulated' ELSE 'measured' END,
      min(probes.outcome),
      max(CASE :metric WHEN 'reserved' THEN probes.peak_reserved WHEN 'device' THEN probes.peak_device
        WHEN 'external' THEN probes.external ELSE probes.peak_allocated END)
    FROM asked
    JOIN probes ON probes.point = asked.point
    JOIN workloads ON workloads.id = probes.workload
    WHERE probes.outcome IN ('exact', 'censored') AND probes.capacity_bytes IS NULL
      AND probes.request IN ('measure', 'remeasure', 'corner')
    GROUP BY asked.side, probes.workload
    UNION ALL
    SELECT
      asked.side, imported_readings.workload, 'imported', min(imported_readings.outcome),
      max(CASE :metric WHEN 'reserved' THEN imported_readings.peak_reserved
        WHEN 'device' THEN imported_readings.peak_device WHEN 'external' THEN imported_readings.external
        ELSE imported_readings.peak_allocated END)
    FROM asked JOIN imported_readings ON imported_readings.point = asked.point
    GROUP BY asked.side, imported_readings.workload
  )
SELECT
  new.provenance, workloads.recipe, workloads.device, old.bytes AS old_bytes, old.outcome AS old_outcome,
  new.bytes AS new_bytes, new.outcome AS new_outcome, new.bytes - old.bytes AS delta_bytes, new.workload
FROM told AS new
JOIN told AS old ON old.workload = new.workload AND old.side = 'old'
JOIN workloads ON workloads.id = new.workload
WHERE new.side = 'new' AND (abs(new.bytes - old.bytes) >= :least OR old.outcome <> new.outcome)
ORDER BY abs(new.bytes - old.bytes) DESC
LIMIT :limit
