"""Out-of-memory messages of PyTorch, CUDA's libraries, other frameworks and the host, as typed records.

`parse_message` reads one text, `read_messages` a whole log; nothing here reads files or raises on what they hold.
"""

from oombisect.memory.oom_messages.reader import parse_message, read_messages
from oombisect.memory.oom_messages.records import Certainty, Found, LookAlike, Memory, OomRecord, ProcessUse, Source
from oombisect.memory.oom_messages.sizes import Size

__all__ = [
    "Certainty", "Found", "LookAlike", "Memory", "OomRecord", "ProcessUse", "Size", "Source", "parse_message",
    "read_messages",
]  # fmt: skip
