"""import_all.py MEGATRON_LM SOURCE...: imports each source's training code and builds its recipes, on the CPU.

One process imports torch and megatron-core; each source is then imported in a fork of it. Prints one JSON object:
source -> null, or the error.
"""

import importlib
import json
import os
import sys
import warnings

warnings.filterwarnings("ignore")
sys.modules["transformer_engine"] = None  # local layers only: an installed stub of it must not answer
sys.path.insert(0, sys.argv[1])
importlib.import_module("megatron.core.models.gpt")
importlib.import_module("megatron.core.optimizer")
importlib.import_module("megatron.core.pipeline_parallel")


def check(source: str) -> None:
    sys.path.insert(0, f"{source}/src")
    importlib.invalidate_caches()
    for module in ("pretrain", "finetune", "setup", "train", "gpt_step", "utils.omegaconf_utils"):
        importlib.import_module(f"megatron.bridge.training.{module}")
    recipes = importlib.import_module("megatron.bridge.recipes.petrel")
    for name in recipes.__all__:
        getattr(recipes, name)().validate()


def error_of(source: str) -> str | None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        text = ""
        try:
            check(source)
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    return text or None


print(json.dumps({source: error_of(source) for source in sys.argv[2:]}))
