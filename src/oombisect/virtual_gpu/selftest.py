"""Runs in the target interpreter on the freshly built virtual GPU and prints one JSON object.

Standard library and torch only. `failed` is None or says which check failed and how.
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    """Run every check; the last line of standard output is the result."""
    started = time.perf_counter()
    checks = []
    failed = None
    import torch

    def check(name: str, condition: object, detail: object = "") -> None:
        nonlocal failed
        checks.append(name)
        if not condition and failed is None:
            failed = f"{name} ({detail})"

    device = torch.cuda.get_device_properties(0)
    check("a device is there", torch.cuda.is_available() and torch.cuda.device_count() == 1, device)
    before = torch.cuda.memory_allocated()
    block = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    check(
        "an allocation is counted", torch.cuda.memory_allocated() - before == 100 << 20, torch.cuda.memory_allocated()
    )
    del block
    check("a free is counted", torch.cuda.memory_allocated() == before, torch.cuda.memory_allocated())
    weight = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    loss = (weight @ weight).float().sum()
    loss.backward()
    check("a product and its gradient run", weight.grad is not None and weight.grad.shape == weight.shape)
    check("a value copied from the device is zero", loss.item() == 0, loss.item())
    free, total = torch.cuda.mem_get_info()
    check("the total is the profile's", total == device.total_memory, (total, device.total_memory))
    text = ""
    try:
        torch.empty(total, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        text = str(error)
    check("too large an allocation fails as on a card", "Tried to allocate" in text and "total capacity" in text, text)
    print(json.dumps({"failed": failed, "checks": checks, "seconds": round(time.perf_counter() - started, 3)}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
