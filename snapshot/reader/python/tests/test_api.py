"""test_api.py DIR: tests of the Python reader's interface on the golden image "appended"."""

import json
import sys
import threading
import time
import unittest

import numpy as np

import rhumb_snapshot as rs

DIR = sys.argv.pop(1)


class TestReader(unittest.TestCase):
    def setUp(self):
        self.client = rs.attach(DIR)
        self.view = self.client.lock()
        self.cars = self.view["cars"]

    def tearDown(self):
        self.view.unlock()
        self.client.close()

    def test_keys(self):
        self.assertEqual(self.cars.get(0), self.cars[0])
        self.assertIn(np.uint64(1), self.cars)
        self.assertNotIn(12345, self.cars)
        self.assertIsNone(self.cars.get(12345))
        self.assertEqual(self.cars.get(12345, b"x"), b"x")
        self.assertEqual(self.view["places"].record("odd/6"), self.view["places"].record(b"odd/6"))
        for bad, error in ((1.5, TypeError), ("x", rs.Error), (-1, OverflowError), (1 << 64, OverflowError)):
            with self.assertRaises(error):
                self.cars[bad]
        with self.assertRaises(KeyError):
            self.cars[12345]
        with self.assertRaises(KeyError):
            self.view["nothing"]

    def test_mget(self):
        keys = np.arange(200, dtype=np.uint64)
        buffer, offsets, found = self.cars.mget(keys)
        self.assertEqual(int(found.sum()), sum(int(k) in self.cars for k in keys))
        for i, k in enumerate(keys):
            value = buffer[offsets[i] : offsets[i + 1]].tobytes()
            self.assertEqual(value if found[i] else None, self.cars.get(int(k)))
        self.assertEqual(len(self.cars.mget(keys[::3])[2]), len(keys[::3]))  # not contiguous
        with self.assertRaises(ValueError):
            self.cars.mget(keys.reshape(10, 20))

    def test_queries(self):
        found = self.cars.bbox(52, 13, 54, 15)
        self.assertGreater(len(found), 20)
        self.assertEqual(found.to_array()["key"].tolist(), found.keys.tolist())
        self.assertEqual([it.key for it in found], found.keys.tolist())
        self.assertEqual(found[-1].value, self.cars[int(found.keys[-1])])
        self.assertEqual(len(self.cars.bbox(52, 13, 54, 15, limit=3)), 3)
        self.assertEqual(self.cars.bbox(52, 13, 54, 15, values=False).buffer.size, 0)
        near = self.cars.nearest(52.5, 13.5, 9)
        self.assertTrue((np.diff(near.distance) >= 0).all())
        self.assertEqual(len(near), 9)
        scanned = self.cars.scan()
        self.assertEqual(scanned.keys.tolist(), sorted(scanned.keys.tolist()))
        self.assertFalse(scanned.has_box.all())
        self.assertIsNone(scanned[int(np.argmin(scanned.has_box))].box)
        with self.assertRaises(rs.Error):
            self.view["blobs"].bbox(0, 0, 1, 1)

    def test_names(self):
        places = self.view["places"]
        near = places.nearest(52.5, 13.5, 20)
        closest = near.keys[near.distance <= near.distance[4]]
        self.assertEqual(closest.tolist(), [near[i].key for i in range(len(closest))])
        self.assertTrue(places.mget(closest)[2].all())
        self.assertEqual(near.to_array()["key"].tolist(), near.keys.tolist())
        self.assertEqual(len(places.scan("nothing begins so").keys), 0)

    def test_geojson(self):
        features = json.loads(self.view["places"].geojson(-90, -180, 90, 180))["features"]
        kinds = {f["geometry"]["type"] for f in features}
        self.assertEqual(kinds, {"Point", "Polygon", "MultiPolygon"})
        self.assertIn("Straße 6", {f["properties"].get("name") for f in features})

    def test_lifetimes(self):
        value, found = self.cars[0], self.cars.scan()
        self.view.unlock()
        self.view.unlock()
        self.assertFalse(self.view.locked)
        self.assertEqual(found[0].value, value)
        with self.assertRaises(rs.Error):
            self.cars[0]
        with self.client.lock() as view:
            with self.assertRaises(rs.Error):
                self.client.close()
            self.assertEqual(view["cars"][0], value)
        self.client.close()
        with self.assertRaises(ValueError):
            self.client.lock()

    def test_leash(self):
        with rs.attach(DIR, max_lock_age=0.05) as client, client.lock() as view:
            deadline = time.monotonic() + 20
            with self.assertRaises(rs.ExpiredError):
                while time.monotonic() < deadline:
                    view["cars"].get(0)

    def test_threads(self):
        """Queries of several threads on one view, with the interpreter's lock released."""
        want = len(self.cars.bbox(52, 13, 54, 15))
        got = []
        threads = [threading.Thread(target=lambda: got.extend(len(self.cars.bbox(52, 13, 54, 15)) for _ in range(50))) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(got, [want] * 200)

    def test_errors(self):
        with self.assertRaises(rs.UnavailableError) as caught:
            rs.attach("/nowhere")
        self.assertIn("cannot open /nowhere/root", str(caught.exception))
        self.assertEqual((caught.exception.status, caught.exception.file, caught.exception.offset), (-4, "root", 0))
        with self.assertRaises(rs.UnavailableError):
            self.client.lock_version(999)
        with self.assertRaises(rs.CorruptError):
            rs.decode(b"\x21\x05")
        self.assertEqual(rs.decode(b"\x11ab"), b"ab")
        self.assertEqual(self.client.info()["views"], 1)
        self.assertEqual(self.view.position(2, 17).epoch, 3)
        self.assertIsNone(self.view.position(9, 9))


unittest.main()
