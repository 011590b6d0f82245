"""A small history of goldens, as Megatron-LM's: `python -m tests.imports.golden_repo FOLDER` makes one to look at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CASES = "tests/functional_tests/test_cases"
_DAY = 86_400
_START = 1_700_000_000


class GoldenRepo:
    """A repository whose commits are a day apart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._days = 0
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        when = f"{_START + self._days * _DAY} +0000"
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
            f"GIT_{role}_{key}": value
            for role in ("AUTHOR", "COMMITTER")
            for key, value in (("NAME", "toy"), ("EMAIL", "toy@localhost"), ("DATE", when))
        }
        env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(
            ["git", "-C", str(self.folder), *arguments], env=env, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def write(self, path: str, content: object) -> None:
        file = self.folder / CASES / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")

    def commit(self, subject: str) -> str:
        self._days += 1
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", subject)
        return self.git("rev-parse", "HEAD")


def golden(peak: int, *, allocated: int = 5, steps: int = 3) -> dict[str, object]:
    """A golden as of 2025 on: values by step, the first one not written."""
    return {
        "lm loss": metric({str(step): 10.5 for step in range(1, steps + 1)}),
        "mem-allocated-bytes": metric({str(step): float(allocated) for step in range(1, steps + 1)}),
        "mem-max-allocated-bytes": metric({"1": "nan", **{str(n): float(peak) for n in range(2, steps + 1)}}),
    }


def metric(values: object) -> dict[str, object]:
    return {"start_step": 1, "end_step": 3, "step_interval": 1, "values": values}


def make(folder: Path) -> tuple[GoldenRepo, dict[str, str]]:
    """The repository and its commits by what they do."""
    repo, made = GoldenRepo(folder), {}
    old, new = "gpt/gpt3_a_dgx_a100_1N8G", "gpt/gpt3_a"
    repo.write(f"{old}/golden_values.json", {"mem-allocated-bytes": metric([3, 4, 5]), "lm loss": metric([1.0])})
    made["lists"] = repo.commit("Goldens")
    repo.write(f"{old}/golden_values.json", golden(100))
    repo.write(f"{old}/model_config.yaml", "MODEL_ARGS:\n  --num-layers: 12\nENV_VARS: {A: 1}\nMETRICS: [x]\n")
    made["first"] = repo.commit("Log memory")
    (repo.folder / CASES / old / "golden_values.json").rename(repo.folder / CASES / old / "golden_values_dev.json")
    made["file moved"] = repo.commit("Name the environment")
    (repo.folder / CASES / old).rename(repo.folder / CASES / new)
    made["folder moved"] = repo.commit("Shorter names")
    repo.git("checkout", "-q", "-b", "topic")
    repo.write(f"{new}/golden_values_dev.json", golden(150))
    made["topic"] = repo.commit("Grow")
    repo.write(f"{new}/golden_values_dev.json", golden(200))
    repo.write(f"{new}/model_config.yaml", "MODEL_ARGS: {--num-layers: 24}\n")
    repo.commit("Grow more")
    repo.git("checkout", "-q", "main")
    repo.write("README.md", "unrelated")
    repo.commit("Unrelated")
    repo._days += 1
    repo.git("merge", "-q", "--no-ff", "-m", "Merge branch 'topic' into 'main'", "topic")
    made["merge"] = repo.git("rev-parse", "HEAD")
    repo.write(f"{new}/golden_values_dev_dgx_h100.json", golden(70))
    repo.write(f"{new}/golden_values_lts_dgxa100_dracooci-ord.json", golden(80))
    repo.write(
        "moe/inference/golden_values_dev_dgx_gb200_2nd.json", {"mem-max-allocated-bytes": 900, "throughput": [1]}
    )
    made["machines"] = repo.commit("Other machines")
    repo.write(f"{new}/golden_values_dev.json", "")
    repo.write(f"{new}/golden_values_dev_dgx_h100.json", {"mem-max-allocated-bytes": metric({"1": "many"})})
    made["broken"] = repo.commit("Broken")
    (repo.folder / CASES / new / "golden_values_dev.json").unlink()
    repo.write(f"{new}/golden_values_dev_dgx_h100.json", {"lm loss": metric({"1": 2.0})})
    made["removed"] = repo.commit("Remove")
    repo.write(f"{new}/golden_values_dev.json", golden(100))
    made["back"] = repo.commit("Bring back")
    return repo, made


if __name__ == "__main__":
    make(Path(sys.argv[1]))
