-- What others measured: read from goldens, snapshots, event files, logs and exports. It never becomes a probe.

-- One act of importing that brought something new.
CREATE TABLE imports (
  id INTEGER PRIMARY KEY,
  kind TEXT NOT NULL CHECK (kind IN ('goldens', 'snapshot', 'tensorboard', 'log', 'wandb', 'csv')),
  source TEXT NOT NULL, -- the file, folder or clone, as named
  sha256 TEXT, -- of the file; NULL: a clone, whose commit is in the options
  options TEXT NOT NULL, -- JSON object
  oombisect_version TEXT NOT NULL,
  imported TEXT NOT NULL
) STRICT;

-- The memory of one rank of one run, as its source tells it. A size is NULL where the source has none.
CREATE TABLE imported_readings (
  id INTEGER PRIMARY KEY,
  import INTEGER NOT NULL REFERENCES imports (id),
  workload INTEGER NOT NULL REFERENCES workloads (id), -- simulated 0; its settings have the key "imported": the kind
  point INTEGER NOT NULL REFERENCES points (id),
  position INTEGER, -- order along the source's history, where dates do not tell it; NULL: go by the date
  origin TEXT NOT NULL, -- where in the source
  identity TEXT NOT NULL UNIQUE CHECK (identity <> ''), -- equal: the same reading, imported once
  outcome TEXT NOT NULL CHECK (outcome IN ('exact', 'censored')), -- censored: sizes are lower bounds
  reason TEXT NOT NULL, -- why it is not exact; empty otherwise
  config INTEGER REFERENCES configs (id), -- what the source tells of the run's configuration
  rank INTEGER, -- NULL: not told
  world_size INTEGER,
  peak_allocated INTEGER,
  peak_reserved INTEGER,
  peak_device INTEGER,
  external INTEGER,
  CHECK ((outcome = 'exact') = (reason = ''))
) STRICT;
CREATE INDEX imported_readings_by_workload_and_point ON imported_readings (workload, point);
CREATE INDEX imported_readings_by_point ON imported_readings (point);
CREATE INDEX imported_readings_by_import ON imported_readings (import);

-- Sizes over the iterations of an imported reading: each holds until the next of its metric, the last one is its end.
CREATE TABLE imported_values (
  reading INTEGER NOT NULL REFERENCES imported_readings (id),
  metric TEXT NOT NULL, -- allocated, peak_allocated, reserved, peak_reserved, ..., else as the source names it
  iteration INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  PRIMARY KEY (reading, metric, iteration)
) STRICT, WITHOUT ROWID;

-- All that belongs into a series over commits, whoever measured it; provenance tells. No series mixes two of them.
-- Of probes only plain ones of plain commits: no enforced capacity, nothing reverted, no other Megatron-LM, no config.
CREATE VIEW measurements AS
SELECT
  CASE workloads.simulated WHEN 1 THEN 'simulated' ELSE 'measured' END AS provenance,
  probes.workload, points.repo, points.key AS point, points.subject, points.committed, NULL AS position,
  NULL AS rank, -- the worst of all ranks
  probes.outcome, probes.reason, probes.config, probes.world_size,
  probes.peak_allocated, probes.peak_reserved, probes.peak_device, probes.external,
  probes.id AS probe, NULL AS imported_reading
FROM probes
JOIN workloads ON workloads.id = probes.workload
JOIN points ON points.id = probes.point
WHERE probes.outcome IN ('exact', 'censored', 'unresolved') AND probes.capacity_bytes IS NULL
  AND probes.request IN ('measure', 'remeasure', 'corner')
  AND points.repo NOT IN ('config', 'package') AND points.key NOT GLOB '*[^0-9a-f]*'
UNION ALL
SELECT
  'imported',
  imported_readings.workload, points.repo, points.key, points.subject, points.committed, imported_readings.position,
  imported_readings.rank,
  imported_readings.outcome, imported_readings.reason, imported_readings.config, imported_readings.world_size,
  imported_readings.peak_allocated, imported_readings.peak_reserved, imported_readings.peak_device,
  imported_readings.external,
  NULL, imported_readings.id
FROM imported_readings
JOIN points ON points.id = imported_readings.point;

CREATE TRIGGER imports_no_update BEFORE UPDATE ON imports
BEGIN SELECT RAISE(ABORT, 'append-only: imports do not change'); END;
CREATE TRIGGER imports_no_delete BEFORE DELETE ON imports
BEGIN SELECT RAISE(ABORT, 'append-only: imports are not deleted'); END;
CREATE TRIGGER imported_readings_no_update BEFORE UPDATE ON imported_readings
BEGIN SELECT RAISE(ABORT, 'append-only: imported readings do not change'); END;
CREATE TRIGGER imported_readings_no_delete BEFORE DELETE ON imported_readings
BEGIN SELECT RAISE(ABORT, 'append-only: imported readings are not deleted'); END;
CREATE TRIGGER imported_values_no_update BEFORE UPDATE ON imported_values
BEGIN SELECT RAISE(ABORT, 'append-only: imported values do not change'); END;
CREATE TRIGGER imported_values_no_delete BEFORE DELETE ON imported_values
BEGIN SELECT RAISE(ABORT, 'append-only: imported values are not deleted'); END;
