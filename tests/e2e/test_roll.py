"""Into a roll with the real allocator: the demo's repositories, and a commit of Megatron-LM that keeps memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oombisect.demo.repository import BRIDGE, MEGATRON, build_demo, find_megatron_core
from tests.repo.history import GITLINK, History

pytestmark = [pytest.mark.virtual_gpu, pytest.mark.slow]

MLP = "megatron/core/transformer/mlp.py"
KEEP = """

_forward = MLP.forward


def _keep_input(self, hidden_states, *args, **kwargs):
    self.kept = hidden_states.detach().clone()
    return _forward(self, hidden_states, *args, **kwargs)


MLP.forward = _keep_input
"""


def test_the_commit_of_megatron_lm_is_named_and_compared(cache_home: Path, tmp_path: Path) -> None:
    demo = build_demo(cache_home / "oombisect" / "demo", find_megatron_core(Path(sys.executable)))
    for name in (BRIDGE, MEGATRON):
        shutil.copytree(demo.path.parent / name, tmp_path / name, symlinks=True)
    megatron, bridge = History(tmp_path / MEGATRON), History(tmp_path / BRIDGE)
    source = megatron.git("show", f"main:{MLP}")
    megatron.commit("Comment", {"megatron/core/README.md": "one\n"})
    keeps = megatron.commit("Keep the input", {MLP: source + KEEP})
    last = megatron.commit("Another comment", {"megatron/core/README.md": "two\n"})
    roll = bridge.commit("Roll Megatron-LM", gitlinks={GITLINK: last})

    def oombisect(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = dict(os.environ, XDG_DATA_HOME=str(tmp_path / "data"), XDG_CACHE_HOME=str(cache_home))
        command = [sys.executable, "-c", "from oombisect.cli.main import main; main()", *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800, check=False)

    options = ["--repo", str(bridge.path), "--recipe", "petrel_1b_pretrain", "--gpu", demo.device]
    done = oombisect("run", f"{demo.bad}..{roll}", *options, "--json")
    assert done.returncode == 0, done.stderr
    (step,) = json.loads(done.stdout)["verdict"]["steps"]
    assert step["point"] == roll
    descent = step["evidence"]["descent"]
    (inside,) = descent["steps"]
    assert (inside["point"], inside["repo"], inside["class"]) == (keeps, "megatron-lm", "capacity")
    assert inside["confirmed"] == "yes" and inside["delta_bytes"] == step["delta_bytes"]
    assert descent["shares_bytes"]["megatron-lm"] == step["delta_bytes"]
    found = oombisect("compare", "last", "--json")
    assert found.returncode == 0, found.stderr
    assert "_keep_input" in found.stdout and "self.kept = hidden_states.detach().clone()" in found.stdout
