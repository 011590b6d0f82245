PRAGMA application_id = 1330597186;
BEGIN TRANSACTION;
CREATE TABLE configs (
  id INTEGER PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE,
  config TEXT NOT NULL -- JSON object
) STRICT;
INSERT INTO "configs" VALUES(1,'0000000000000000000000000000000000000000000000000000000000000000','{"model":{"dropout":0.1,"name":"\u00e9","rope":null,"seq_length":2048}}');
INSERT INTO "configs" VALUES(2,'3f2ae7ce4c0fa69b53134cf4717f27ff254f1c4720c47fc41b1afb470326cd6a','{"tp":2}');
CREATE TABLE creeps (
  series INTEGER NOT NULL REFERENCES series (id),
  position INTEGER NOT NULL,
  first INTEGER NOT NULL REFERENCES points (id),
  last INTEGER NOT NULL REFERENCES points (id),
  metric TEXT NOT NULL,
  delta_bytes INTEGER NOT NULL,
  commits INTEGER NOT NULL,
  changes INTEGER NOT NULL, -- single changes told apart in it; 0: it drifts evenly
  largest_bytes INTEGER NOT NULL, -- the largest of them
  PRIMARY KEY (series, position)
) STRICT, WITHOUT ROWID;
CREATE TABLE environments (
  id INTEGER PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE,
  versions TEXT NOT NULL -- JSON object, name -> version
) STRICT;
INSERT INTO "environments" VALUES(1,'4f4884378d3b61432b68283f07bcfb5746de3ea9d608e69e5026b5e16393dd3c','{"cuda":"13.0","torch":"2.9.0"}');
CREATE TABLE events (
  session TEXT NOT NULL REFERENCES sessions (id),
  seq INTEGER NOT NULL, -- 0, 1, 2, ...
  recorded TEXT NOT NULL,
  kind TEXT NOT NULL,
  payload TEXT NOT NULL, -- JSON object
  PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;
INSERT INTO "events" VALUES('20261130-1',0,'2026-11-30T12:00:13.000000Z','plan','{"points":["a"]}');
INSERT INTO "events" VALUES('20261130-1',1,'2026-11-30T12:00:14.000000Z','plan','{"probe":1}');
CREATE TABLE gpus (
  name TEXT PRIMARY KEY NOT NULL,
  capacity_bytes INTEGER NOT NULL
) STRICT;
CREATE TABLE import_sets (
  id INTEGER PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE,
  files TEXT NOT NULL -- JSON list of "repo:path"
) STRICT;
INSERT INTO "import_sets" VALUES(1,'a40791bc5761e7dc0a4cdb97dc6a8599e11fe1113a5dc9ba980b3559610b4f19','["bridge:src/a.py","megatron-lm:b.py"]');
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
INSERT INTO "imported_readings" VALUES(1,1,2,2,NULL,'train.log','039e847f118fbc072e87a61c19b993ab58841ff67287ba0f4d0830643cb46721','exact','',2,0,NULL,5,NULL,NULL,NULL);
INSERT INTO "imported_readings" VALUES(2,1,2,2,NULL,'train.log','36d619ea0fcd41c7a3c48d1fcd094025885f888982955aa31c614f243c607604','censored','out of memory',NULL,1,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE imported_values (
  reading INTEGER NOT NULL REFERENCES imported_readings (id),
  metric TEXT NOT NULL, -- allocated, peak_allocated, reserved, peak_reserved, ..., else as the source names it
  iteration INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  PRIMARY KEY (reading, metric, iteration)
) STRICT, WITHOUT ROWID;
INSERT INTO "imported_values" VALUES(2,'allocated',2,7);
INSERT INTO "imported_values" VALUES(2,'allocated',5,8);
CREATE TABLE imports (
  id INTEGER PRIMARY KEY,
  kind TEXT NOT NULL CHECK (kind IN ('goldens', 'snapshot', 'tensorboard', 'log', 'wandb', 'csv')),
  source TEXT NOT NULL, -- the file, folder or clone, as named
  sha256 TEXT, -- of the file; NULL: a clone, whose commit is in the options
  options TEXT NOT NULL, -- JSON object
  oombisect_version TEXT NOT NULL,
  imported TEXT NOT NULL
) STRICT;
INSERT INTO "imports" VALUES(1,'log','train.log','abababababababababababababababababababababababababababababababab','{"recipe":"\u00e9"}','0.1.0','2026-11-30T12:00:17.000000Z');
CREATE TABLE jobs (
  probe INTEGER PRIMARY KEY REFERENCES probes (id),
  job TEXT NOT NULL -- JSON object
) STRICT;
INSERT INTO "jobs" VALUES(1,'{"iterations":3,"schema":1}');
INSERT INTO "jobs" VALUES(2,'{"iterations":3,"schema":1}');
INSERT INTO "jobs" VALUES(3,'{"iterations":3,"schema":1}');
CREATE TABLE oom_sites (
  workload INTEGER NOT NULL REFERENCES workloads (id),
  phase TEXT NOT NULL,
  ooms INTEGER NOT NULL, -- ranks that died there
  points INTEGER NOT NULL, -- at how many points
  largest_request_bytes INTEGER, -- as the messages tell; NULL: none does
  most_unused_bytes INTEGER, -- the most that was reserved and not allocated
  newest TEXT NOT NULL, -- when the newest of these probes ended
  PRIMARY KEY (workload, phase)
) STRICT, WITHOUT ROWID;
CREATE TABLE ooms (
  probe INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  phase TEXT NOT NULL,
  message TEXT NOT NULL,
  requested INTEGER,
  capacity INTEGER,
  free INTEGER,
  allocated INTEGER,
  reserved INTEGER,
  PRIMARY KEY (probe, rank),
  FOREIGN KEY (probe, rank) REFERENCES rank_readings (probe, rank)
) STRICT, WITHOUT ROWID;
INSERT INTO "ooms" VALUES(1,7,'step_1','CUDA out of memory. é',1,2,3,4,NULL);
CREATE TABLE phase_metrics (
  probe INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  position INTEGER NOT NULL, -- order of the phases
  phase TEXT NOT NULL,
  allocated_peak INTEGER NOT NULL,
  allocated_end INTEGER NOT NULL,
  reserved_peak INTEGER NOT NULL,
  reserved_end INTEGER NOT NULL,
  active_peak INTEGER NOT NULL,
  requested_peak INTEGER NOT NULL,
  inactive_split_peak INTEGER NOT NULL,
  inactive_split_end INTEGER NOT NULL,
  allocations INTEGER NOT NULL,
  alloc_retries INTEGER NOT NULL,
  ooms INTEGER NOT NULL,
  device_used INTEGER, -- NVML, whole device, at the end of the phase; NULL: not known
  seconds REAL NOT NULL,
  PRIMARY KEY (probe, rank, position),
  FOREIGN KEY (probe, rank) REFERENCES rank_readings (probe, rank)
) STRICT, WITHOUT ROWID;
INSERT INTO "phase_metrics" VALUES(1,7,0,'setup',1,2,3,4,5,6,7,8,9,10,11,NULL,0.1);
INSERT INTO "phase_metrics" VALUES(1,7,1,'step_1',21,22,23,24,25,26,27,28,29,30,31,33,3.33333333333333314829e-01);
CREATE TABLE places (
  point INTEGER PRIMARY KEY REFERENCES points (id),
  line TEXT NOT NULL, -- '': the first-parent line of the main branch; else the branch that it lies on
  position INTEGER NOT NULL -- how many first parents it has
) STRICT;
CREATE TABLE points (
  id INTEGER PRIMARY KEY,
  repo TEXT NOT NULL, -- bridge, megatron-lm, config, package
  key TEXT NOT NULL, -- commit hash, or what identifies the point on its axis
  subject TEXT NOT NULL, -- commit subject, or a description
  committed TEXT, -- commit or release date; NULL: it has none
  UNIQUE (repo, key)
) STRICT;
INSERT INTO "points" VALUES(1,'bridge','cccccccccccccccccccccccccccccccccccccccc','Fuse the rope','2026-01-02T03:04:05.000000Z');
INSERT INTO "points" VALUES(2,'megatron-lm','dddddddddddddddddddddddddddddddddddddddd','',NULL);
CREATE TABLE probes (
  id INTEGER PRIMARY KEY,
  session TEXT NOT NULL REFERENCES sessions (id),
  workload INTEGER NOT NULL REFERENCES workloads (id),
  point INTEGER NOT NULL REFERENCES points (id),
  request TEXT NOT NULL, -- measure, remeasure, revert, ...
  signature TEXT NOT NULL CHECK (signature <> ''), -- equal signatures: the same measurement
  probe_version TEXT NOT NULL,
  capacity_bytes INTEGER, -- device memory that was enforced; NULL: the device's own, or none (virtual)
  started TEXT NOT NULL,
  finished TEXT, -- NULL: still running, or ended with its driver
  outcome TEXT CHECK (outcome IN ('exact', 'censored', 'unresolved', 'infra')),
  reusable INTEGER CHECK (reusable IN (0, 1)), -- 1: answers later requests of the same signature
  reason TEXT, -- why it is not exact; empty otherwise
  recipe_function TEXT, -- module:function(arguments) that the recipe name meant at this point
  config INTEGER REFERENCES configs (id),
  environment INTEGER REFERENCES environments (id),
  import_set INTEGER REFERENCES import_sets (id),
  world_size INTEGER,
  attention_backend TEXT,
  allocator_settings TEXT, -- PYTORCH_CUDA_ALLOC_CONF as the probe saw it
  notes TEXT, -- JSON list
  worst_rank INTEGER, -- the rank with the largest peak_allocated; NULL: nothing was measured
  peak_allocated INTEGER, -- the largest of all ranks, as are the next three
  peak_reserved INTEGER,
  peak_device INTEGER,
  external INTEGER,
  CHECK ((finished IS NULL) = (outcome IS NULL)),
  CHECK ((finished IS NULL) = (reusable IS NULL)),
  CHECK (NOT (outcome = 'infra' AND reusable = 1))
) STRICT;
INSERT INTO "probes" VALUES(1,'20261130-1',1,1,'measure','signature 0','1',NULL,'2026-11-30T12:00:06.000000Z','2026-11-30T12:00:07.000000Z','censored',1,'out of memory in step_1','bridge.recipes:f(a=''b'')',1,1,1,8,'FusedAttention','expandable_segments:True','["capped"]',7,21,23,535,512);
INSERT INTO "probes" VALUES(2,'20261130-1',1,1,'measure','signature 1','1',NULL,'2026-11-30T12:00:10.000000Z','2026-11-30T12:00:11.000000Z','unresolved',1,'ImportError: no module named x','',NULL,NULL,NULL,NULL,'','expandable_segments:True','[]',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "probes" VALUES(3,'20261130-1',1,1,'measure','signature 2','1',NULL,'2026-11-30T12:00:12.000000Z',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE rank_readings (
  probe INTEGER NOT NULL REFERENCES probes (id),
  rank INTEGER NOT NULL,
  position INTEGER NOT NULL, -- order in which the ranks were reported
  peak_allocated INTEGER NOT NULL,
  peak_reserved INTEGER NOT NULL,
  peak_active INTEGER NOT NULL,
  peak_requested INTEGER NOT NULL,
  peak_inactive_split INTEGER NOT NULL,
  peak_device INTEGER NOT NULL, -- peak_reserved + external
  external INTEGER NOT NULL, -- device memory outside PyTorch's allocator
  allocations INTEGER NOT NULL,
  alloc_retries INTEGER NOT NULL,
  ooms INTEGER NOT NULL,
  trace TEXT, -- hash of all the rank asked of the allocator: equal traces behave alike
  PRIMARY KEY (probe, rank)
) STRICT, WITHOUT ROWID;
INSERT INTO "rank_readings" VALUES(1,0,1,0,0,0,0,0,0,0,0,0,0,NULL);
INSERT INTO "rank_readings" VALUES(1,7,0,21,23,25,26,27,535,512,38,40,42,'5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f');
CREATE TABLE replays (
  id INTEGER PRIMARY KEY,
  probe INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  alloc_conf TEXT NOT NULL, -- the settings it was replayed under, as the allocator reported them to the probe
  model TEXT NOT NULL, -- the rules: which PyTorch's, and the version of the model
  limit_bytes INTEGER, -- what the allocator could take from the device; NULL: as much as it asked for
  survived INTEGER NOT NULL CHECK (survived IN (0, 1)), -- 0: it ran out of memory
  peak_allocated INTEGER NOT NULL, -- up to the end, or to the first out-of-memory error
  peak_reserved INTEGER NOT NULL,
  needed_bytes INTEGER, -- the smallest limit it survives; NULL: not looked for
  recorded TEXT NOT NULL,
  FOREIGN KEY (probe, rank) REFERENCES rank_readings (probe, rank)
) STRICT;
INSERT INTO "replays" VALUES(1,1,7,'','torch 2.14, 1',NULL,1,1,2,3,'2026-11-30T12:00:08.000000Z');
INSERT INTO "replays" VALUES(2,1,7,'','torch 2.14, 1',4096,0,1,2,NULL,'2026-11-30T12:00:09.000000Z');
CREATE TABLE schema_migrations (
  name TEXT PRIMARY KEY NOT NULL,
  oombisect_version TEXT NOT NULL, -- who applied it
  applied TEXT NOT NULL
) STRICT;
INSERT INTO "schema_migrations" VALUES('001_initial','0.1.0','2026-11-30T12:00:00.000000Z');
INSERT INTO "schema_migrations" VALUES('002_replays','0.1.0','2026-11-30T12:00:01.000000Z');
INSERT INTO "schema_migrations" VALUES('003_reopening','0.1.0','2026-11-30T12:00:02.000000Z');
INSERT INTO "schema_migrations" VALUES('004_imports','0.1.0','2026-11-30T12:00:03.000000Z');
INSERT INTO "schema_migrations" VALUES('005_series','0.1.0','2026-11-30T12:00:04.000000Z');
CREATE TABLE series (
  id INTEGER PRIMARY KEY,
  workload INTEGER NOT NULL REFERENCES workloads (id),
  provenance TEXT NOT NULL CHECK (provenance IN ('measured', 'simulated', 'imported')),
  repo TEXT NOT NULL,
  line TEXT NOT NULL, -- as in places; '' also where no repository was at hand
  metric TEXT NOT NULL, -- allocated, reserved, device, external
  ordered_by TEXT NOT NULL CHECK (ordered_by IN ('first-parent', 'source', 'date')),
  exact INTEGER NOT NULL, -- how many points were read so
  censored INTEGER NOT NULL,
  unresolved INTEGER NOT NULL,
  first_point INTEGER NOT NULL REFERENCES points (id),
  last_point INTEGER NOT NULL REFERENCES points (id),
  last_committed TEXT,
  last_measured TEXT NOT NULL, -- when the newest of its readings was taken, or imported
  lowest_bytes INTEGER, -- of the exact readings
  highest_bytes INTEGER,
  latest_bytes INTEGER, -- of the last point that is not unresolved
  latest_outcome TEXT, -- exact; or censored: latest_bytes is a lower bound
  latest_point INTEGER REFERENCES points (id),
  latest_probe INTEGER REFERENCES probes (id), -- one of these two, whose reading that is
  latest_imported_reading INTEGER REFERENCES imported_readings (id),
  noise_bytes INTEGER NOT NULL, -- a standard deviation: what the fit takes for noise
  repeats INTEGER NOT NULL, -- how many points were measured more than once under the same conditions
  repeat_spread_bytes INTEGER NOT NULL, -- the largest difference between readings of one of them
  UNIQUE (workload, provenance, repo, line, metric)
) STRICT;
CREATE TABLE sessions (
  id TEXT PRIMARY KEY NOT NULL, -- YYYYMMDD-n, n-th session of that day
  created TEXT NOT NULL,
  changed TEXT NOT NULL,
  kind TEXT NOT NULL, -- run, config, releases, demo, probe
  command TEXT NOT NULL, -- the command line as typed, JSON list
  arguments TEXT NOT NULL, -- the parsed arguments, JSON object
  repo TEXT NOT NULL, -- path or address of the repository
  recipe TEXT NOT NULL,
  device TEXT NOT NULL,
  limit_bytes INTEGER, -- the memory the run must fit in; NULL: the device's capacity
  good TEXT NOT NULL, -- range endpoints as resolved
  bad TEXT NOT NULL,
  oombisect_version TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('running', 'finished', 'interrupted')),
  exit_code INTEGER,
  verdict TEXT -- JSON object
) STRICT;
INSERT INTO "sessions" VALUES('20261130-1','2026-11-30T12:00:05.000000Z','2026-11-30T12:00:15.000000Z','run','["oombisect","run","a..b","--set","model.name=\u00e9"]','{"limit":null,"range":"a..b","set":["model.name=\u00e9"]}','/repos/bridge','qwen3_8b_lora','virtual:h100-80gb',85899345920,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb','0.1.0','finished',10,'{"kind":"none"}');
INSERT INTO "sessions" VALUES('20261130-2','2026-11-30T12:00:16.000000Z','2026-11-30T12:00:16.000000Z','run','["oombisect","run","a..b","--set","model.name=\u00e9"]','{"limit":null,"range":"a..b","set":["model.name=\u00e9"]}','/repos/bridge','qwen3_8b_lora','virtual:h100-80gb',85899345920,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb','0.1.0','running',NULL,NULL);
CREATE TABLE snapshots (
  probe INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  path TEXT NOT NULL, -- relative to the artifacts folder
  size_bytes INTEGER, -- NULL, as sha256: the file was not there when the probe was recorded
  sha256 TEXT,
  PRIMARY KEY (probe, rank),
  FOREIGN KEY (probe, rank) REFERENCES rank_readings (probe, rank)
) STRICT, WITHOUT ROWID;
INSERT INTO "snapshots" VALUES(1,7,'20261130-1/1/snapshot-7.gz',NULL,NULL);
CREATE TABLE steps (
  series INTEGER NOT NULL REFERENCES series (id),
  position INTEGER NOT NULL, -- order in the series
  point INTEGER NOT NULL REFERENCES points (id), -- the first reading of the new level
  previous INTEGER NOT NULL REFERENCES points (id), -- the last of the old one
  metric TEXT NOT NULL, -- of the series
  delta_bytes INTEGER NOT NULL,
  before_bytes INTEGER NOT NULL,
  after_bytes INTEGER NOT NULL,
  at_least INTEGER NOT NULL CHECK (at_least IN (0, 1)), -- 1: one side ran out of memory, sizes are lower bounds
  state TEXT NOT NULL CHECK (state IN ('in force', 'fixed', 'partly fixed')),
  left_bytes INTEGER NOT NULL, -- of delta_bytes: what later steps have not taken back
  taken_back_by INTEGER REFERENCES points (id),
  blurred INTEGER NOT NULL, -- commits between the two readings: any of them may have done it
  readings INTEGER NOT NULL, -- of the new level
  PRIMARY KEY (series, position)
) STRICT, WITHOUT ROWID;
CREATE TABLE workload_changes (
  workload INTEGER PRIMARY KEY REFERENCES workloads (id),
  changes INTEGER NOT NULL,
  fitted INTEGER NOT NULL DEFAULT 0 -- `changes` when its series were fitted
) STRICT;
INSERT INTO "workload_changes" VALUES(1,2,0);
INSERT INTO "workload_changes" VALUES(2,2,0);
CREATE TABLE workloads (
  id INTEGER PRIMARY KEY,
  recipe TEXT NOT NULL, -- as asked for; what it resolved to is probes.recipe_function
  device TEXT NOT NULL, -- cuda or virtual:<profile>
  simulated INTEGER NOT NULL CHECK (simulated IN (0, 1)),
  settings TEXT NOT NULL, -- overrides, iterations, ranks, ...: JSON object
  UNIQUE (recipe, device, simulated, settings)
) STRICT;
INSERT INTO "workloads" VALUES(1,'qwen3_8b_lora','virtual:h100-80gb',1,'{"iterations":3,"overrides":["model.seq_length=2048"]}');
INSERT INTO "workloads" VALUES(2,'é','dgx_h100',0,'{"imported":"log"}');
CREATE INDEX sessions_by_creation ON sessions (created);
CREATE INDEX points_by_date ON points (committed);
CREATE INDEX probes_by_signature ON probes (signature);
CREATE INDEX probes_by_session ON probes (session);
CREATE INDEX probes_by_workload_and_point ON probes (workload, point);
CREATE INDEX probes_by_point ON probes (point);
CREATE VIEW readings AS
SELECT
  probes.id AS probe, probes.session, points.repo, points.key AS point, points.subject, points.committed,
  workloads.recipe, workloads.device, workloads.simulated, workloads.settings,
  probes.request, probes.outcome, probes.reason, probes.capacity_bytes, probes.allocator_settings,
  probes.worst_rank, probes.peak_allocated, probes.peak_reserved, probes.peak_device, probes.external,
  probes.recipe_function, configs.hash AS config_hash, probes.world_size, probes.attention_backend,
  environments.versions, probes.signature, probes.started, probes.finished
FROM probes
JOIN workloads ON workloads.id = probes.workload
JOIN points ON points.id = probes.point
LEFT JOIN configs ON configs.id = probes.config
LEFT JOIN environments ON environments.id = probes.environment
WHERE probes.finished IS NOT NULL;
CREATE TRIGGER sessions_keep_identity BEFORE UPDATE OF
  id, created, kind, command, arguments, repo, recipe, device, limit_bytes, good, bad, oombisect_version ON sessions
BEGIN SELECT RAISE(ABORT, 'append-only: what a session was started with does not change'); END;
CREATE TRIGGER sessions_no_delete BEFORE DELETE ON sessions
BEGIN SELECT RAISE(ABORT, 'append-only: sessions are not deleted'); END;
CREATE TRIGGER probes_keep_identity BEFORE UPDATE OF
  id, session, workload, point, request, signature, probe_version, capacity_bytes, started ON probes
BEGIN SELECT RAISE(ABORT, 'append-only: what a probe was started with does not change'); END;
CREATE TRIGGER probes_keep_finished BEFORE UPDATE ON probes WHEN OLD.finished IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'append-only: a finished probe does not change'); END;
CREATE TRIGGER probes_no_delete BEFORE DELETE ON probes
BEGIN SELECT RAISE(ABORT, 'append-only: probes are not deleted'); END;
CREATE TRIGGER rank_readings_sealed BEFORE INSERT ON rank_readings
WHEN (SELECT finished FROM probes WHERE id = NEW.probe) IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'append-only: nothing is added to a finished probe'); END;
CREATE TRIGGER rank_readings_no_update BEFORE UPDATE ON rank_readings
BEGIN SELECT RAISE(ABORT, 'append-only: readings do not change'); END;
CREATE TRIGGER rank_readings_no_delete BEFORE DELETE ON rank_readings
BEGIN SELECT RAISE(ABORT, 'append-only: readings are not deleted'); END;
CREATE TRIGGER phase_metrics_sealed BEFORE INSERT ON phase_metrics
WHEN (SELECT finished FROM probes WHERE id = NEW.probe) IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'append-only: nothing is added to a finished probe'); END;
CREATE TRIGGER phase_metrics_no_update BEFORE UPDATE ON phase_metrics
BEGIN SELECT RAISE(ABORT, 'append-only: readings do not change'); END;
CREATE TRIGGER phase_metrics_no_delete BEFORE DELETE ON phase_metrics
BEGIN SELECT RAISE(ABORT, 'append-only: readings are not deleted'); END;
CREATE TRIGGER ooms_sealed BEFORE INSERT ON ooms
WHEN (SELECT finished FROM probes WHERE id = NEW.probe) IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'append-only: nothing is added to a finished probe'); END;
CREATE TRIGGER ooms_no_update BEFORE UPDATE ON ooms
BEGIN SELECT RAISE(ABORT, 'append-only: readings do not change'); END;
CREATE TRIGGER ooms_no_delete BEFORE DELETE ON ooms
BEGIN SELECT RAISE(ABORT, 'append-only: readings are not deleted'); END;
CREATE TRIGGER snapshots_sealed BEFORE INSERT ON snapshots
WHEN (SELECT finished FROM probes WHERE id = NEW.probe) IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'append-only: nothing is added to a finished probe'); END;
CREATE TRIGGER snapshots_no_update BEFORE UPDATE ON snapshots
BEGIN SELECT RAISE(ABORT, 'append-only: snapshots do not change'); END;
CREATE TRIGGER snapshots_no_delete BEFORE DELETE ON snapshots
BEGIN SELECT RAISE(ABORT, 'append-only: snapshots are not deleted'); END;
CREATE TRIGGER events_no_update BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'append-only: events do not change'); END;
CREATE TRIGGER events_no_delete BEFORE DELETE ON events
BEGIN SELECT RAISE(ABORT, 'append-only: events are not deleted'); END;
CREATE TRIGGER jobs_no_update BEFORE UPDATE ON jobs
BEGIN SELECT RAISE(ABORT, 'append-only: jobs do not change'); END;
CREATE TRIGGER jobs_no_delete BEFORE DELETE ON jobs
BEGIN SELECT RAISE(ABORT, 'append-only: jobs are not deleted'); END;
CREATE TRIGGER workloads_no_update BEFORE UPDATE ON workloads
BEGIN SELECT RAISE(ABORT, 'append-only: workloads do not change'); END;
CREATE TRIGGER workloads_no_delete BEFORE DELETE ON workloads
BEGIN SELECT RAISE(ABORT, 'append-only: workloads are not deleted'); END;
CREATE TRIGGER points_no_update BEFORE UPDATE ON points
BEGIN SELECT RAISE(ABORT, 'append-only: points do not change'); END;
CREATE TRIGGER points_no_delete BEFORE DELETE ON points
BEGIN SELECT RAISE(ABORT, 'append-only: points are not deleted'); END;
CREATE TRIGGER configs_no_update BEFORE UPDATE ON configs
BEGIN SELECT RAISE(ABORT, 'append-only: configs do not change'); END;
CREATE TRIGGER configs_no_delete BEFORE DELETE ON configs
BEGIN SELECT RAISE(ABORT, 'append-only: configs are not deleted'); END;
CREATE TRIGGER environments_no_update BEFORE UPDATE ON environments
BEGIN SELECT RAISE(ABORT, 'append-only: environments do not change'); END;
CREATE TRIGGER environments_no_delete BEFORE DELETE ON environments
BEGIN SELECT RAISE(ABORT, 'append-only: environments are not deleted'); END;
CREATE TRIGGER import_sets_no_update BEFORE UPDATE ON import_sets
BEGIN SELECT RAISE(ABORT, 'append-only: import sets do not change'); END;
CREATE TRIGGER import_sets_no_delete BEFORE DELETE ON import_sets
BEGIN SELECT RAISE(ABORT, 'append-only: import sets are not deleted'); END;
CREATE UNIQUE INDEX replays_once ON replays (probe, rank, alloc_conf, model, coalesce(limit_bytes, -1));
CREATE INDEX rank_readings_by_trace ON rank_readings (trace) WHERE trace IS NOT NULL;
CREATE TRIGGER replays_no_update BEFORE UPDATE ON replays
BEGIN SELECT RAISE(ABORT, 'append-only: replays do not change'); END;
CREATE TRIGGER replays_no_delete BEFORE DELETE ON replays
BEGIN SELECT RAISE(ABORT, 'append-only: replays are not deleted'); END;
CREATE TRIGGER sessions_keep_finished BEFORE UPDATE ON sessions
WHEN OLD.state = 'finished' AND NOT (
  NEW.state = 'running' AND NEW.exit_code IS NULL AND NEW.verdict IS NULL AND EXISTS (
    SELECT 1 FROM events
    WHERE events.session = OLD.id AND events.kind = 'reopened'
      AND events.seq = (SELECT max(seq) FROM events WHERE session = OLD.id)
      AND instr(events.payload, '"exit_code":' || coalesce(OLD.exit_code, 'null') || ',') > 0
      AND instr(events.payload, '"verdict":' || coalesce(OLD.verdict, 'null')) > 0
  )
)
BEGIN SELECT RAISE(ABORT, 'append-only: a finished session does not change'); END;
CREATE INDEX imported_readings_by_workload_and_point ON imported_readings (workload, point);
CREATE INDEX imported_readings_by_point ON imported_readings (point);
CREATE INDEX imported_readings_by_import ON imported_readings (import);
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
CREATE INDEX workload_changes_unfitted ON workload_changes (workload) WHERE fitted < changes;
CREATE TRIGGER probes_change_series AFTER UPDATE OF finished ON probes
BEGIN
  INSERT INTO workload_changes (workload, changes) VALUES (NEW.workload, 1)
  ON CONFLICT (workload) DO UPDATE SET changes = changes + 1;
END;
CREATE TRIGGER imported_readings_change_series AFTER INSERT ON imported_readings
BEGIN
  INSERT INTO workload_changes (workload, changes) VALUES (NEW.workload, 1)
  ON CONFLICT (workload) DO UPDATE SET changes = changes + 1;
END;
CREATE INDEX series_by_latest ON series (metric, latest_bytes);
CREATE INDEX steps_by_size ON steps (metric, delta_bytes);
CREATE INDEX steps_by_point ON steps (point);
COMMIT;
