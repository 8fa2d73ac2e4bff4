"""Outlook mails (.msg) for tests: a compound file (MS-CFB) with the properties of a message (MS-OXMSG)."""

import struct
from collections.abc import Mapping

_SECTOR, _SMALL, _CUTOFF = 512, 64, 4096
_END, _FREE, _FAT = 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFD
_INTEGER, _LETTERS, _UNICODE, _BINARY = 0x0003, 0x001E, 0x001F, 0x0102
_ROOT_HEADER, _ATTACHMENT_HEADER = 32, 8


class Letters(bytes):
    """A text of one byte a letter."""


Properties = Mapping[int, str | bytes | int]
"""Values by the numbers of their properties."""


def msg(
    properties: Properties, attachments: tuple[Properties, ...] = (), recipients: tuple[Properties, ...] = ()
) -> bytes:
    """A mail of these properties; subject 0x37, body 0x1000, HTML 0x1013, headers 0x7D, file name 0x3707.

    A recipient's name is 0x3001, the address 0x39FE, the kind 0xC15.
    """
    tree: dict[str, object] = _storage(properties, _ROOT_HEADER, len(attachments))
    for number, attachment in enumerate(attachments):
        tree[f"__attach_version1.0_#{number:08X}"] = _storage(attachment, _ATTACHMENT_HEADER, 0)
    for number, recipient in enumerate(recipients):
        tree[f"__recip_version1.0_#{number:08X}"] = _storage(recipient, _ATTACHMENT_HEADER, 0)
    return _compound(tree)


def _storage(properties: Properties, header: int, attachments: int) -> dict[str, object]:
    streams: dict[str, object] = {}
    table = bytearray(header)
    if header == _ROOT_HEADER:
        struct.pack_into("<8x4I", table, 0, 0, attachments, 0, attachments)
    for number, value in properties.items():
        if isinstance(value, int):
            table += struct.pack("<HHIII", _INTEGER, number, 6, value, 0)
            continue
        kind = _UNICODE if isinstance(value, str) else _LETTERS if isinstance(value, Letters) else _BINARY
        data = value.encode("utf-16-le") if isinstance(value, str) else value
        streams[f"__substg1.0_{number:04X}{kind:04X}"] = data
        table += struct.pack("<HHII4x", kind, number, 6, len(data) + (2 if kind == _UNICODE else 0))
    streams["__properties_version1.0"] = bytes(table)
    return streams


def _compound(tree: Mapping[str, object]) -> bytes:
    """Write a compound file of version 3; all its streams are smaller than 4 KiB, or padded sectors."""
    entries: list[dict[str, object]] = [{"name": "Root Entry", "kind": 5, "child": _FREE}]
    small, large = bytearray(), list[bytes]()
    fat_small: list[int] = []
    pending: list[tuple[int, bytes]] = []

    def add(children: Mapping[str, object]) -> int:
        first = _FREE
        for name, value in children.items():  # a chain of right siblings is a search tree
            entry: dict[str, object] = {"name": name, "right": first, "child": _FREE}
            if isinstance(value, Mapping):
                entry |= {"kind": 1, "child": add(value)}
            else:
                assert isinstance(value, bytes)
                entry |= {"kind": 2, "size": len(value)}
                pending.append((len(entries), value))
            entries.append(entry)
            first = len(entries) - 1
        return first

    entries[0]["child"] = add(tree)
    chains: list[list[int]] = []
    for index, data in pending:
        if len(data) < _CUTOFF:
            count = -(-len(data) // _SMALL)
            begin = len(fat_small)
            fat_small += [*range(begin + 1, begin + count), _END] if count else []
            small += data.ljust(count * _SMALL, b"\0")
            entries[index]["start"] = begin if count else _END
        else:
            large.append(data)
            entries[index]["large"] = len(large) - 1
    sectors: list[bytes] = []

    def put(data: bytes) -> int:
        begin, count = len(sectors), max(1, -(-len(data) // _SECTOR))
        sectors.extend(data[i * _SECTOR : (i + 1) * _SECTOR].ljust(_SECTOR, b"\0") for i in range(count))
        chains.append(list(range(begin, begin + count)))
        return begin

    for entry in entries:
        if "large" in entry:
            entry["start"] = put(large[int(str(entry["large"]))])
    entries[0] |= {"start": put(bytes(small)), "size": len(small)}
    mini = put(struct.pack(f"<{len(fat_small)}I", *fat_small).ljust(_SECTOR, b"\xff"))
    directory = put(b"".join(map(_entry, entries)))
    fat_at = len(sectors)
    fat = [_FREE] * (_SECTOR // 4)
    for chain in chains:
        for here, after in zip(chain, [*chain[1:], _END], strict=True):
            fat[here] = after
    fat[fat_at] = _FAT
    assert fat_at < len(fat), "one sector of the table is enough for a test"
    head = struct.pack(
        "<8s16sHHHHH6xIIIIIIIII",
        *(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", bytes(16), 0x3E, 3, 0xFFFE, 9, 6),
        *(0, 1, directory, 0, _CUTOFF, mini, 1, _END, 0),
    )
    difat = struct.pack("<109I", fat_at, *[_FREE] * 108)
    return head + difat + b"".join(sectors) + struct.pack("<128I", *fat)


def _entry(entry: Mapping[str, object]) -> bytes:
    name = str(entry["name"]).encode("utf-16-le") + b"\0\0"
    numbers = [int(str(entry.get(key, default))) for key, default in (("right", _FREE), ("child", _FREE))]
    start, size = (int(str(entry.get(key, 0))) for key in ("start", "size"))
    head = name.ljust(64, b"\0") + struct.pack("<HBB", len(name), int(str(entry["kind"])), 1)
    return head + struct.pack("<III36xIQ", _FREE, *numbers, start, size)
