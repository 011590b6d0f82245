"""Probe: one short training run of a Megatron Bridge recipe, with Bridge's own `pretrain()` or `finetune()`.

    python bridge_train.py JOB.json

reads the job, trains a few iterations at full model size on synthetic data, and leaves `result-<rank>.json` in the
job's `out` folder, renamed into place. It exits 0 whenever that file is there. docs/probe.md describes both files.

Standard library, torch and megatron only: it runs in the target's environment, which knows nothing of oombisect. On a
real GPU (`process_group` "nccl", under torchrun) and on a virtual one (`process_group` "fake", one rank of a large
world in one process) it is the same program; what differs is marked where it does.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

_START = "OOMBISECT_PROBE_STARTED"
# The clock of the whole probe: a restart, which replaces this program by itself, goes on counting.
_STARTED = float(os.environ.setdefault(_START, repr(time.monotonic())))
_RESTARTED = "OOMBISECT_PROBE_RESTARTS"
_HASH_SEED = "0"
_RUN = "<run>"  # stands for this run's folder in a description
_job = ""  # the path of the job this process runs

from probe_support import bytecode  # noqa: E402
from probe_support.job import SCHEMA, Job  # noqa: E402
from probe_support.outcome import (  # noqa: E402
    Unresolved,
    is_out_of_memory,
    one_line,
    oom_record,
    traceback_text,
)


def main(arguments: list[str]) -> int:
    global _job
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    path = _job = arguments[0]
    raw = json.loads(Path(path).read_text())
    os.environ.update({name: str(value) for name, value in (raw.get("env") or {}).items()})
    fix_hash_seed([os.path.abspath(__file__), path])
    return run(path)


def run(path: str) -> int:
    """Runs the job at `path` in this process, its environment set already; returns the exit status."""
    global _job
    _job = path
    raw = json.loads(Path(path).read_text())
    out = Path(raw["out"])
    out.mkdir(parents=True, exist_ok=True)
    rank = int(os.environ.get("RANK", 0)) if raw.get("process_group") == "nccl" else int(raw.get("rank", 0))
    result = _blank(rank)
    probe: Any = None
    try:
        job = Job.from_json(raw)
        sys.path[:0] = [path for path in job.source_paths if path not in sys.path]
        bytecode.install(job.roots.values())
        probe = _Probe(job, rank, out, result)
        probe.run()
    except BaseException as error:  # what else ends a run is recorded too: SystemExit of a training loop, Ctrl-C
        _record_failure(result, error, probe)
    if probe is not None:
        probe.finish()
        if probe.should_restart():
            _restart()
    result["seconds"]["total"] = round(time.monotonic() - _STARTED, 2)
    result["seconds"]["cpu"] = round(time.process_time(), 2)
    _write(out / f"result-{rank}.json", result)
    return 0


def _blank(rank: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "outcome": "unresolved",
        "reason": None,
        "failed_phase": None,
        "traceback": None,
        "rank": rank,
        "world_size": None,
        "suggested_ranks": [],
        "parallel": {},
        "micro_batches": None,
        "micro_batch_size": None,
        "phases": {},
        "external": 0,
        "oom": None,
        "recipe_function": "",
        "config": None,
        "config_hash": "",
        "attention_backend": None,
        "versions": {},
        "imported": [],
        "allocator_settings": "",
        "environment": {},
        "snapshot": None,
        "trace_hash": None,
        "cold_compile": False,
        "notes": [],
        "host_peak_rss": 0,
        "seconds": {},
    }


class _Probe:
    """One run, from the job to the filled result."""

    def __init__(self, job: Job, rank: int, out: Path, result: dict[str, Any]) -> None:
        self.job = job
        self.rank = rank
        self.out = out
        self.result = result
        self.notes: list[str] = result["notes"]
        self.phases: Any = None
        self.history: Any = None
        self.finder: Any = None
        self.stand_in = False
        self.phase = "import"

    @property
    def fake(self) -> bool:
        return self.job.process_group == "fake"

    @property
    def unreal(self) -> bool:
        """Values do not reach the host: no other ranks, or a device that computes nothing."""
        return self.fake or self.job.simulated

    def run(self) -> None:
        job, result = self.job, self.result
        result["recipe_function"] = str(job.recipe)
        self._prepare_imports()
        from probe_support import configuration
        from probe_support.plain import canonical, config_hash

        self.phase = "recipe"
        config = configuration.build(job.recipe, self.notes)
        result["seconds"].update(
            {"import": round(time.monotonic() - _STARTED, 2), "import_cpu": round(time.process_time(), 2)}
        )
        self.phase = "config"
        if job.config_file:
            frozen = json.loads(Path(job.config_file).read_text())
            frozen = _with_host_paths(frozen, str(self.out))
            configuration.freeze(config, frozen, self.notes, job.config_complete)
        configuration.apply_overrides(config, job.overrides, self.notes)
        if job.describe:
            result["given"] = json.loads(canonical(self._described(config)))
        layout = configuration.layout(config, self._placed(), self.notes)
        count = configuration.micro_batches(config, layout, job.micro_batches)
        empty = self.out / "no-checkpoint"
        empty.mkdir(exist_ok=True)
        configuration.settle(config, job, layout, count, str(empty))
        result.update(
            world_size=layout.world_size,
            parallel={name: getattr(layout, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")},
            suggested_ranks=configuration.suggested_ranks(layout, config.model),
            micro_batches=count,
            micro_batch_size=int(config.train.micro_batch_size),
        )
        described = self._described(config)
        result.update(config=json.loads(canonical(described)), config_hash=config_hash(described))
        if job.describe:
            result["outcome"] = "described"
            return
        self._apply_environment(getattr(config, "env_vars", None) or {})
        self._start_device(layout.world_size)
        self._train(config, count)

    def _described(self, config: Any) -> dict[str, Any]:
        """The configuration as plain values that do not depend on where this run is."""
        from probe_support.plain import plain

        described = _without_host_paths(plain(config), {str(self.out): _RUN, os.getcwd(): _RUN})
        if isinstance(described.get("dist"), dict):
            described["dist"].pop("local_rank", None)  # who this rank is, not what is configured
        return dict(described)

    def _placed(self) -> Job:
        """The job with what torchrun decided, where it launched this process."""
        if self.fake or self.job.describe:
            return self.job
        from dataclasses import replace

        return replace(self.job, rank=self.rank, world_size=int(os.environ.get("WORLD_SIZE", 1)))

    def _prepare_imports(self) -> None:
        """What comes before the project's first import."""
        from probe_support import deep_ep_stand_in, hf_configs, preparation, te_attention

        prepared = preparation.prepare(self.job.simulated, self.job.transformer_engine)
        self.finder, self.stand_in = prepared.finder, prepared.stand_in
        import torch

        random.seed(self.job.seed)
        torch.manual_seed(self.job.seed)
        deep_ep_stand_in.Buffer.skew = self.job.moe_skew
        te_attention.watch()
        hf_configs.ModelConfigs(self.job.model_configs, self.out, self.notes).install()

    def _apply_environment(self, variables: dict[str, Any]) -> None:
        """Exports the recipe's variables; starts anew where they come too late, as Bridge's launcher always does."""
        import torch

        from probe_support import environment

        applied = environment.apply_variables(variables)
        self.result["environment"] = {name: os.environ[name] for name in sorted(variables)}
        if applied and (torch.cuda.is_initialized() or environment.read_at_import(applied)):
            _exec()

    def _start_device(self, world_size: int) -> None:
        """Brings up CUDA, the history and the process group; the first device memory is taken here."""
        import torch

        from probe_support import distributed, environment
        from probe_support.history import History
        from probe_support.phases import Phases

        if not torch.cuda.is_available():
            raise Unresolved("torch sees no CUDA device")
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) if not self.fake else 0)
        torch.cuda.init()
        if self.job.limit_bytes and not self.fake:
            environment.cap_memory(self.job.limit_bytes)
        self.history = History(self.out / f"snapshot-{self.rank}.pickle.gz", self.job.record_history)
        self.phases = Phases()
        self.result["allocator_settings"] = environment.allocator_settings()
        if self.fake:
            distributed.start_fake(self.rank, world_size)
        else:
            distributed.announce_alone()  # Bridge starts the real group itself
        if self.unreal:
            distributed.answer_locally()

    def _train(self, config: Any, count: int) -> None:
        from probe_support import bridge_hooks, configuration, data, deep_ep_stand_in, moe

        if self.unreal and getattr(config.model, "num_moe_experts", None):
            moe.declare(self.job.moe_skew)
            self.notes.append(f"expert token counts are declared: balanced, times {self.job.moe_skew:g} on this rank")
            if getattr(config.model, "moe_token_dispatcher_type", "") == "flex" and deep_ep_stand_in.installed():
                self.notes.append("DeepEP is a stand-in: its communication buffers, outside PyTorch, are not counted")
        packed = data.pack_size(config.dataset)
        if packed is not None:
            self.notes.append(f"packs of {packed} tokens are synthetic: {data.SEQUENCES_PER_PACK} equal sequences each")
            if self.job.simulated:
                data.declare_bounds(packed)
        hooks = bridge_hooks.Hooks(config, self.phases, count, self.unreal)
        hooks.install()
        from megatron.bridge.training.gpt_step import forward_step

        if configuration.is_finetuning(config):
            from megatron.bridge.training.finetune import finetune as train
        else:
            from megatron.bridge.training.pretrain import pretrain as train
        try:
            train(config, forward_step)
        except SystemExit as error:  # a training loop may end the process when it is done
            if hooks.steps < self.job.iterations:
                raise Unresolved(f"the training loop ended the process ({error}) after {hooks.steps} steps") from error
        if hooks.steps < self.job.iterations:
            raise Unresolved(f"the training loop ran {hooks.steps} of {self.job.iterations} steps")
        self._check_attention(config)
        self.result["outcome"] = "exact"

    def _check_attention(self, config: Any) -> None:
        """Refuses a run whose attention fell back to the unfused kernel untold (a stand-in's answer may err)."""
        from probe_support import te_attention

        asked = str(getattr(getattr(config.model, "attention_backend", None), "name", None) or "auto")
        if self.stand_in and te_attention.used["UnfusedDotProductAttention"] and asked not in ("unfused", "local"):
            raise Unresolved(
                f"attention ran unfused although attention_backend is {asked}: no fused or flash backend was found"
            )

    def finish(self) -> None:
        """Fills in what is known however the run ended. Never raises: a number already measured must reach its file."""
        from probe_support import environment, te_attention

        result = self.result
        if self.phases is not None:
            result.update(phases=self.phases.records, external=max(0, self.phases.external))
        if self.history is not None:
            try:
                result["snapshot"] = self.history.finish(result["oom"] is not None)
                result["trace_hash"] = self.history.trace_hash
            except Exception as error:
                self.notes.append(f"the allocation history could not be saved: {one_line(error)}")
        facts = {
            "attention_backend": te_attention.backend,
            "host_peak_rss": environment.peak_host_bytes,
            "cold_compile": environment.compiled_cold,
            "versions": lambda: environment.versions(self.stand_in),
            "imported": lambda: environment.imported(self.job.roots),
        }
        for name, fact in facts.items():
            try:
                result[name] = fact()
            except Exception as error:
                self.notes.append(f"{name} is not known: {one_line(error)}")
        if self.finder is not None and self.finder.used:
            self.notes.append(f"answered for packages that are not installed: {', '.join(sorted(self.finder.used))}")

    def should_restart(self) -> bool:
        """Whether to run once more in a warm compile cache: compiling allocates, and moves a reading by megabytes."""
        measured = self.result["outcome"] in ("exact", "censored")
        return self.fake and measured and self.result["cold_compile"] and not os.environ.get(_RESTARTED)


def _record_failure(result: dict[str, Any], error: BaseException, probe: _Probe | None) -> None:
    phases = probe.phases if probe is not None else None
    phase = phases.current if phases is not None else (probe.phase if probe is not None else "job")
    result.update(failed_phase=phase, traceback=traceback_text(error))
    if is_out_of_memory(error):
        history = probe.history if probe is not None else None
        result["outcome"] = "censored"
        result["oom"] = oom_record(error, phase, history.at_oom if history is not None else None)
        result["reason"] = f"out of device memory in {phase}"
    else:
        result["outcome"] = "infra" if isinstance(error, KeyboardInterrupt) else "unresolved"
        result["reason"] = one_line(error)
    if phases is not None:
        try:
            phases.close_failed()
        except Exception as second:
            result["notes"].append(f"the allocator's counters could not be read: {one_line(second)}")


def _without_host_paths(value: Any, names: dict[str, str]) -> Any:
    """Strings that start with a folder of `names`, with its name instead: a config must not depend on where it ran."""
    if isinstance(value, dict):
        return {key: _without_host_paths(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_host_paths(item, names) for item in value]
    if isinstance(value, str):
        for folder, name in names.items():
            if value == folder or value.startswith(folder + os.sep):
                return name + value[len(folder) :]
    return value


def _with_host_paths(value: Any, folder: str) -> Any:
    """The opposite of `_without_host_paths`: what was described by another run is of this one's folder."""
    return _without_host_paths(value, {_RUN: folder})


def run_forked(path: str) -> int:
    """Runs the job at `path` in a process that a worker forked off: `run` with a clock and variables of its own."""
    global _STARTED, _job
    _STARTED = time.monotonic()
    os.environ[_START] = repr(_STARTED)
    os.environ.pop(_RESTARTED, None)
    _job = path
    raw = json.loads(Path(path).read_text())
    variables = {name: str(value) for name, value in (raw.get("env") or {}).items()}
    os.environ.update(variables)
    from probe_support import environment

    prepared_for = raw.get("simulated", True) and raw.get("process_group", "fake") == "fake"
    read_before = environment.read_at_import(variables)
    if not prepared_for or raw.get("transformer_engine") or read_before or environment.in_bad_fork():
        _exec()
    return run(path)


def fix_hash_seed(command: list[str]) -> None:
    """Starts the Python program `command` in place of this one unless the hash seed, which orders sets, is fixed."""
    if os.environ.get("PYTHONHASHSEED") != _HASH_SEED:
        os.environ["PYTHONHASHSEED"] = _HASH_SEED
        os.execv(sys.executable, [sys.executable, *command])  # noqa: S606


def _restart() -> None:
    os.environ[_RESTARTED] = "1"
    _exec()


def _exec() -> None:
    """Replaces this process by a fresh one of the same job."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, os.path.abspath(__file__), _job])  # noqa: S606


def _write(path: Path, result: dict[str, Any]) -> None:
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(result, indent=1, sort_keys=False))
    temporary.replace(path)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Tearing down CUDA, process groups and a model of gigabytes serves nobody.
    os._exit(status)
