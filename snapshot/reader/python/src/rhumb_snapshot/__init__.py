"""Reads the snapshot that a Rhumb node publishes in shared memory.

    with rhumb_snapshot.attach(dir) as client, client.lock() as view:
        cars = view["cars"]
        cars[42]                                    # bytes; KeyError without it
        buffer, offsets, found = cars.mget(keys)    # keys: a numpy array of uint64
        near = cars.radius(52.5, 13.4, 5000)        # Items: columns as numpy arrays

A view is the image at one version, whatever is committed meanwhile. Everything that reads return is copied out of the
image: it stays good after the view has been unlocked. Batch calls and queries release the interpreter's lock; a view
refuses to be unlocked while one is under way in another thread.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np

from . import _snap
from ._snap import CorruptError, Error, ExpiredError, UnavailableError, decode

__all__ = [
    "attach", "Client", "View", "Table", "Items", "Item", "Commit", "Position", "decode",
    "Error", "ExpiredError", "UnavailableError", "CorruptError",
]

_POPULATE, _HUGE, _VERIFY = 1, 2, 4
_ORDERED, _SPATIAL, _SUMMED = 2, 4, 8


def attach(dir, *, populate=False, huge_pages=False, verify=False, max_lock_age=60.0):
    """Attaches to the image in a directory, <shm>/rhumb/<cluster>/<node>."""
    flags = (_POPULATE if populate else 0) | (_HUGE if huge_pages else 0) | (_VERIFY if verify else 0)
    return Client(_snap.Client(dir, flags, int(max_lock_age * 1e9)))


class Client:
    """An attached image. Close it, or use it as a context."""

    def __init__(self, raw):
        self._raw = raw

    def lock(self):
        """A view of the newest version."""
        return View(self._raw.lock("newest"))

    def lock_closed(self):
        """A cut consistent across ranges, at the newest closed timestamp; UnavailableError without one."""
        return View(self._raw.lock("closed"))

    def lock_version(self, version):
        """A view of an earlier version, so that several processes can read the same one."""
        return View(self._raw.lock("version", version))

    def info(self):
        """The state of the publisher and of the mappings."""
        return self._raw.info()

    def close(self):
        """Unmaps the image. It fails while views are locked."""
        self._raw.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


@dataclasses.dataclass(frozen=True)
class Commit:
    """The commit that a view shows. Times are ns since 1970, closed and hlc are timestamps of Rhumb; 0 is unknown."""

    version: int
    closed: int
    event: int
    wall: int
    mono: int
    records: int


@dataclasses.dataclass(frozen=True)
class Position:
    """How far a view follows a range."""

    epoch: int
    seq: int
    hlc: int


class View:
    """The image at one version. Unlock it soon, or use it as a context: it keeps old generations in memory."""

    def __init__(self, raw):
        self._raw = raw
        self._tables = {row[1]: Table(self, row) for row in raw.tables()}

    version = property(lambda self: self._raw.about()[0], doc="The version that is read.")
    closed = property(lambda self: self._raw.about()[1], doc="The closed timestamp of lock_closed, else 0.")
    age = property(lambda self: self._raw.about()[2] / 1e9, doc="Seconds since it was locked.")
    locked = property(lambda self: self._raw.about()[3], doc="Whether it can be read.")

    def unlock(self):
        self._raw.unlock()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.unlock()

    def __getitem__(self, table):
        return self._tables[table]

    def __iter__(self):
        return iter(self._tables)

    def __len__(self):
        return len(self._tables)

    def __contains__(self, table):
        return table in self._tables

    def commit(self):
        """The commit, or None if the ring had dropped it before the view was locked."""
        row = self._raw.commit()
        return None if row is None else Commit(*row)

    def position(self, region, slot):
        """The log position of a range that the view covers, or None."""
        row = self._raw.position(region, slot)
        return None if row is None else Position(*row)


@dataclasses.dataclass(frozen=True)
class Item:
    """A record. box is (min_lat, min_lon, max_lat, max_lon) in degrees, or None; distance is in metres."""

    key: int | bytes
    shard_key: bool
    box: tuple | None
    version: int
    hlc: int
    expiry: int
    distance: float
    value: bytes

    def record(self):
        """The value decoded: a dict of a record's fields, or the bytes of an opaque value."""
        return decode(self.value)


class Items:
    """The result of a query, in columns.

    keys is an array of uint64, or of bytes objects; shard_keys marks the shard keys among them; boxes has a row
    (min_lat, min_lon, max_lat, max_lon) in degrees for each item, NaN if it has no box; value i is buffer[offsets[i]:offsets[i+1]].
    """

    _COLUMNS = ("keys", "shard_keys", "boxes", "has_box", "version", "hlc", "expiry", "distance", "buffer", "offsets")
    __slots__ = _COLUMNS

    def __init__(self, columns):
        for name, column in zip(self._COLUMNS, columns):
            setattr(self, name, column)
        if isinstance(self.keys, list):
            names, self.keys = self.keys, np.empty(len(self.keys), dtype=object)  # so that it takes a mask, as all columns do
            self.keys[:] = names

    def __len__(self):
        return len(self.version)

    def value(self, i):
        """The stored value of item i; empty if the query left values out."""
        return self.buffer[self.offsets[i] : self.offsets[i + 1]].tobytes()

    def __getitem__(self, i):
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        i %= len(self)
        key = self.keys[i]
        return Item(
            key if isinstance(key, bytes) else int(key), bool(self.shard_keys[i]), tuple(map(float, self.boxes[i])) if self.has_box[i] else None,
            int(self.version[i]), int(self.hlc[i]), int(self.expiry[i]), float(self.distance[i]), self.value(i),
        )

    def to_dict(self):
        """The columns by name."""
        return {name: getattr(self, name) for name in self._COLUMNS}

    def to_array(self):
        """A structured array of the columns of fixed size."""
        dtype = [("key", self.keys.dtype), ("min_lat", float), ("min_lon", float), ("max_lat", float), ("max_lon", float), ("version", np.uint64), ("distance", float)]
        out = np.empty(len(self), dtype=dtype)
        out["key"], out["version"], out["distance"] = self.keys, self.version, self.distance
        for i, name in enumerate(("min_lat", "min_lon", "max_lat", "max_lon")):
            out[name] = self.boxes[:, i]
        return out

    def geojson(self):
        """A FeatureCollection (RFC 7946) as a dict. A box is a polygon, cut in two where it crosses the antimeridian."""
        return {"type": "FeatureCollection", "features": [_feature(item) for item in self]}


def _feature(item):
    record = item.record()
    if isinstance(record, bytes):
        record = {"value": record}
    name = item.key if isinstance(item.key, int) else item.key.hex() if item.shard_key else item.key.decode("utf-8", "backslashreplace")
    return {"type": "Feature", "id": name, "geometry": _geometry(item.box), "properties": {k: _plain(v) for k, v in record.items()}}


def _geometry(box):
    if box is None:
        return None
    south, west, north, east = box
    if west == east and south == north:
        return {"type": "Point", "coordinates": [west, south]}

    def ring(w, e):
        return [[[w, south], [e, south], [e, north], [w, north], [w, south]]]

    if west <= east:
        return {"type": "Polygon", "coordinates": ring(west, east)}
    return {"type": "MultiPolygon", "coordinates": [ring(west, 180.0), ring(-180.0, east)]}


def _plain(value):
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return _geometry(value if len(value) == 4 else value * 2)
    return value.isoformat() if hasattr(value, "isoformat") else value


class Table:
    """A table of a view. It keeps the view alive, but not locked."""

    def __init__(self, view, row):
        self._raw = view._raw
        self._index, self.name, self.id, kind, flags, self.shards, self.live, self.location_field = row
        self.numbered = kind == 0
        self.ordered, self.spatial, self.summed = bool(flags & _ORDERED), bool(flags & _SPATIAL), bool(flags & _SUMMED)

    def __getitem__(self, key):
        """The stored value under a key: an int, or a str or bytes. KeyError if there is none."""
        value = self._raw.get(self._index, key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key):
        return self._raw.get(self._index, key) is not None

    def get(self, key, default=None, *, shard_key=False):
        """The stored value under a key, or the default."""
        value = self._raw.get(self._index, key, shard_key)
        return default if value is None else value

    def item(self, key, *, shard_key=False):
        """The whole record under a key, or None."""
        columns = self._raw.get(self._index, key, shard_key, True)
        return None if columns is None else Items(columns)[0]

    def record(self, key, *, shard_key=False):
        """The value under a key decoded, or None."""
        value = self._raw.get(self._index, key, shard_key)
        return None if value is None else decode(value)

    def mget(self, keys, *, shard_keys=False):
        """Many values at once: (buffer, offsets, found). Value i is buffer[offsets[i]:offsets[i+1]]."""
        if self.numbered:
            return self._raw.mget(self._index, np.asarray(keys, dtype=np.uint64))
        return self._raw.mget_names(self._index, keys, shard_keys)

    def _query(self, verb, numbers=(), prefix=b"", k=0, values=True, limit=0):
        return Items(self._raw.query(self._index, verb, np.asarray(numbers, dtype=float).ravel(), prefix, k, values, limit))

    def bbox(self, min_lat, min_lon, max_lat, max_lon, *, values=True, limit=0):
        """The records whose box touches a box in degrees, in no order; min_lon > max_lon crosses the antimeridian."""
        return self._query("bbox", (min_lat, min_lon, max_lat, max_lon), values=values, limit=limit)

    def radius(self, lat, lon, metres, *, values=True, limit=0):
        """The records whose box is within metres of a point, in no order."""
        return self._query("radius", (lat, lon, metres), values=values, limit=limit)

    def nearest(self, lat, lon, k, *, metres=float("inf"), values=True):
        """Up to k records nearest to a point, nearest first."""
        return self._query("nearest", (lat, lon, metres), k=k, values=values)

    def polygon(self, corners, holes=(), *, values=True, limit=0):
        """The records whose box touches a polygon of (lat, lon) corners, in no order. Holes are rings of such corners; a ring
        outside the polygon is a second part of it."""
        rings = [np.asarray(ring, dtype=float).ravel() for ring in (corners, *holes)]
        sizes = [len(ring) / 2 for ring in rings]
        return self._query("polygon", np.concatenate([sizes, *rings]), k=len(rings), values=values, limit=limit)

    def scan(self, prefix=b"", *, values=True, limit=0):
        """The records whose key begins with a prefix, in order. A number counts as its eight bytes, big-endian."""
        return self._query("scan", prefix=prefix.encode() if isinstance(prefix, str) else prefix, values=values, limit=limit)

    def geojson(self, min_lat, min_lon, max_lat, max_lon, *, limit=0):
        """The records in a box as the text of a FeatureCollection."""
        return json.dumps(self.bbox(min_lat, min_lon, max_lat, max_lon, limit=limit).geojson())
