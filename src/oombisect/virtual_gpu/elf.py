"""Reading what a shared library or an object file defines and needs, without `nm`.

Source of the format: System V ABI (gABI chapter 4 and 5) and the GNU symbol versioning extension. x86-64 only.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path

from oombisect.errors import OombisectError

_ET_REL = 1
_SHT_SYMTAB, _SHT_DYNAMIC, _SHT_DYNSYM, _SHT_GNU_VERDEF = 2, 6, 11, 0x6FFFFFFD
_STB_LOCAL, _STV_DEFAULT = 0, 0
_DT_NEEDED, _DT_SONAME = 1, 14
_STT_FUNC, _STT_GNU_IFUNC, _SHN_UNDEF = 2, 10, 0


@dataclass(frozen=True)
class Library:
    """The public symbols of one shared library or object file.

    Attributes:
        soname: the name it is loaded by ("" if it has none).
        needed: sonames it asks for.
        functions: functions it defines.
        undefined: symbols it takes from elsewhere.
        versions: symbol versions it defines, e.g. `libcudart.so.13`; the first one, its own name, left out.
    """

    soname: str = ""
    needed: tuple[str, ...] = ()
    functions: frozenset[str] = field(default_factory=frozenset)
    undefined: frozenset[str] = field(default_factory=frozenset)
    versions: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int
    entry_size: int


def _text(data: mmap.mmap, table: _Section, offset: int) -> str:
    start = table.offset + offset
    return data[start : data.find(b"\0", start)].decode("ascii", "replace")


def read_library(path: Path) -> Library:
    """The dynamic symbols of `path`.

    Raises:
        OombisectError: the file cannot be read or is not a 64-bit little-endian ELF library.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(data)
    except (OSError, ValueError, struct.error) as error:
        raise OombisectError(
            f"{path} cannot be read as a shared library ({error})", "Reinstall torch there."
        ) from error


def _read(data: mmap.mmap) -> Library:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not 64-bit little-endian ELF")
    (file_type,) = struct.unpack_from("<H", data, 0x10)
    symbol_table = _SHT_SYMTAB if file_type == _ET_REL else _SHT_DYNSYM
    (section_offset,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    sections: list[_Section] = []
    for index in range(count):
        fields = struct.unpack_from("<IIQQQQIIQQ", data, section_offset + index * entry_size)
        sections.append(
            _Section(kind=fields[1], offset=fields[4], size=fields[5], link=fields[6], entry_size=fields[9])
        )
    soname, needed, versions = "", [], []
    functions: set[str] = set()
    undefined: set[str] = set()
    for section in sections:
        if section.kind == _SHT_DYNAMIC:
            for offset in range(section.offset, section.offset + section.size, 16):
                tag, value = struct.unpack_from("<QQ", data, offset)
                if tag == _DT_NEEDED:
                    needed.append(_text(data, sections[section.link], value))
                elif tag == _DT_SONAME:
                    soname = _text(data, sections[section.link], value)
        elif section.kind == symbol_table:
            for offset in range(section.offset, section.offset + section.size, 24):
                name, info, visibility, index = struct.unpack_from("<IBBH", data, offset)
                if not name or info >> 4 == _STB_LOCAL or visibility & 3 != _STV_DEFAULT:
                    continue
                if index == _SHN_UNDEF:
                    undefined.add(_text(data, sections[section.link], name))
                elif info & 15 in (_STT_FUNC, _STT_GNU_IFUNC):
                    functions.add(_text(data, sections[section.link], name))
        elif section.kind == _SHT_GNU_VERDEF:
            versions = _version_definitions(data, section, sections[section.link])
    return Library(soname, tuple(needed), frozenset(functions), frozenset(undefined), tuple(versions))


def _version_definitions(data: mmap.mmap, section: _Section, strings: _Section) -> list[str]:
    names: list[str] = []
    offset = section.offset
    while True:
        _, flags, _, _, _, first, following = struct.unpack_from("<HHHHIII", data, offset)
        (name,) = struct.unpack_from("<I", data, offset + first)
        if not flags & 1:  # VER_FLG_BASE: the file itself
            names.append(_text(data, strings, name))
        if not following:
            return names
        offset += following
