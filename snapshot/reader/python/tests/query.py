"""query.py DIR: the commands of reader/c/query.c, by the Python reader."""

import datetime
import sys

import numpy as np

import rhumb_snapshot as rs


def crc32c(data, table=[]):
    if not table:
        for i in range(256):
            for _ in range(8):
                i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
            table.append(i)
    c = 0xFFFFFFFF
    for b in data:
        c = c >> 8 ^ table[(c ^ b) & 255]
    return c ^ 0xFFFFFFFF


def line(it, distance=False):
    key = str(it.key) if isinstance(it.key, int) else ("s:" if it.shard_key else "n:") + it.key.hex()
    box = "-"
    if it.box is not None:
        south, west, north, east = (round(x * 1e7) for x in it.box)
        box = f"{west},{south},{east},{north}"
    text = f"{key} version={it.version} hlc={it.hlc} expiry={it.expiry} box={box} value={len(it.value)}:{crc32c(it.value):08x}"
    return text + f" distance={it.distance:.2f}" if distance else text


def key_of(text):
    if text[1:2] == ":":
        return bytes.fromhex(text[2:]), text[0] == "s"
    return int(text), False


def mget(table, words):
    """The batch gives values without the rest: it must agree with what single reads give."""
    keys = [key_of(w) for w in words]
    items = [table.item(k, shard_key=s) for k, s in keys]
    for shard in (False, True):
        some = [i for i, (_, s) in enumerate(keys) if s == shard]
        if not some:
            continue
        ids = [keys[i][0] for i in some]
        buffer, offsets, found = table.mget(np.array(ids, dtype=np.uint64)) if table.numbered else table.mget(ids, shard_keys=shard)
        for n, i in enumerate(some):
            value = buffer[offsets[n] : offsets[n + 1]].tobytes()
            if found[n] != (items[i] is not None) or found[n] and value != items[i].value:
                return ["mget differs from item"]
    return ["-" if it is None else line(it) for it in items]


EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def field(table, key, name):
    k, shard = key_of(key)
    record = table.record(k, shard_key=shard)
    value = None if record is None else record.get(name)
    match value:
        case None:
            return "-"
        case bool():
            return f"bool {int(value)}"
        case int():
            return f"int64 {value}"
        case float():
            return f"float64 {value:.17g}"
        case str():
            return "string " + value.encode().hex()
        case bytes():
            return "bytes " + value.hex()
        case datetime.datetime():
            return f"timestamp {(value - EPOCH) // datetime.timedelta(microseconds=1)}"
    return ("point " if len(value) == 2 else "box ") + " ".join(f"{x:.17g}" for x in value)


def query(view, w):
    if w[0] == "tables":
        flags = lambda t: 2 * t.ordered | 4 * t.spatial | 8 * t.summed
        return [f"{t.name} id={t.id} kind={int(not t.numbered)} flags={flags(t)} shards={t.shards} location={t.location_field}" for t in map(view.__getitem__, view)]
    if w[0] == "commit":
        c = view.commit()
        return [f"version={c.version} closed={c.closed} event={c.event} records={c.records}"]
    if w[0] == "position":
        p = view.position(int(w[1]), int(w[2]))
        return ["-" if p is None else f"epoch={p.epoch} seq={p.seq} hlc={p.hlc}"]
    if w[1] not in view:
        return ["! not found"]
    table = view[w[1]]
    if w[0] == "get":
        k, shard = key_of(w[2])
        it = table.item(k, shard_key=shard)
        return ["-" if it is None else line(it)]
    if w[0] == "mget":
        return mget(table, w[2:])
    if w[0] == "field":
        return [field(table, w[2], w[3])]
    if w[0] == "scan":
        return [line(it) for it in table.scan(bytes.fromhex(w[2]) if len(w) > 2 else b"")]
    if w[0] == "polygon":
        corners, *holes = [np.array(ring.split(), dtype=float).reshape(-1, 2) for ring in " ".join(w[2:]).split("/")]
        return [line(it) for it in table.polygon(corners, holes)]
    x = [float(s) for s in w[2:]]
    if w[0] == "bbox":
        return [line(it) for it in table.bbox(*x)]
    if w[0] == "radius":
        return [line(it, True) for it in table.radius(*x)]
    return [line(it, True) for it in table.nearest(x[0], x[1], int(x[2]), metres=x[3])]


def main():
    view = None
    with rs.attach(sys.argv[1], verify=len(sys.argv) == 2) as client:
        for text in sys.stdin:
            w = text.split()
            try:
                if w[0] == "lock":
                    if view is not None:
                        view.unlock()
                    view = client.lock_closed() if w[1] == "closed" else client.lock_version(int(w[2])) if w[1] == "version" else client.lock()
                    answer = [f"version={view.version} closed={view.closed}"]
                else:
                    answer = query(view, w)
            except rs.Error as e:
                answer = ["! " + str(e).split(":")[0]]
            print("\n".join(answer + ["."]), flush=True)
        view.unlock()


main()
