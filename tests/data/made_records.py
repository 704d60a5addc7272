"""Files of records that tests make on the spot."""

import struct

from array_record.python.array_record_module import ArrayRecordWriter


def write(path, *records, options="group_size:1"):
    """A file of records, each a text or bytes."""
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record.encode() if isinstance(record, str) else record)
    writer.close()
    return str(path)


def field(number, content):
    """A field of a protocol buffer: bytes."""
    size, head = len(content), bytes([number << 3 | 2])
    while size > 127:
        head, size = head + bytes([size & 127 | 128]), size >> 7
    return head + bytes([size]) + content


def example(**features):
    """A serialised ``tf.train.Example``, by the letter of its definition."""
    entries = b""
    for name, value in features.items():
        values = value if isinstance(value, list) else [value]
        if all(isinstance(each, bytes) for each in values):
            feature = field(1, b"".join(field(1, each) for each in values))
        elif isinstance(values[0], float):
            feature = field(2, field(1, struct.pack("<f", values[0])))
        else:
            feature = field(3, field(1, bytes(values)))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)
