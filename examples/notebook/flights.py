"""Plot the flights in the image in shared memory. The cells (# %%) run one by one in an editor or in Jupyter (jupytext), or
all at once: python flights.py [IMAGE] [PICTURE]."""

# %% The image: the first argument, or the image of the running demo with the most flights.
import glob
import json
import os
import pathlib
import sys

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

import rhumb_snapshot


def images():
    state = pathlib.Path(os.environ.get("XDG_STATE_HOME") or pathlib.Path.home() / ".local/state")
    layout = json.loads(pathlib.Path(os.environ.get("RHUMB_DEMO") or state / "rhumb/demo.json").read_text())
    return glob.glob(os.path.join(layout["snapshot_dir"], layout["cluster_id"], "*"))


def flights_in(image):
    with rhumb_snapshot.attach(image) as client, client.lock() as view:
        return view["flights"].live if "flights" in view else 0


arguments = [a for a in sys.argv[1:] if "ipykernel" not in a]
image = arguments[0] if arguments else max(images(), key=flights_in)
picture = arguments[1] if len(arguments) > 1 else "flights.png"

# %% One view: all flights at one version. The results are copies, so the view can end here.
with rhumb_snapshot.attach(image) as client, client.lock() as view:
    version, table = view.version, view["flights"]
    flights = table.bbox(-90, -180, 90, 180, limit=100_000)
    airports = view["airports"].bbox(-90, -180, 90, 180, values=False, limit=100_000).boxes if "airports" in view else np.empty((0, 4))
print(f"version {version} of {image}: {len(flights)} flights, {len(airports)} airports")

# %% Columns. The boxes are an array already; the other fields are decoded from the records.
lat, lon = flights.boxes[:, 0], flights.boxes[:, 1]
records = [f.record() for f in flights]
altitude = np.array([r.get("alt_ft", np.nan) for r in records], dtype=float)
speed = np.array([r.get("gs", np.nan) for r in records], dtype=float)
heading = np.radians([r.get("heading", 0) for r in records])
flying = np.isfinite(altitude)
if flying.any():
    print(f"altitude: median {np.nanmedian(altitude):.0f} ft; ground speed: median {np.nanmedian(speed):.0f} kn")

# %% Altitudes and positions.
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(1, 2), constrained_layout=True)
left.hist(altitude[flying] / 1000, bins=np.arange(0, 46, 2), color="#5b7fa6", edgecolor="white")
left.set(xlabel="altitude, 1000 ft", ylabel="flights", title="How high they fly")
right.scatter(airports[:, 1], airports[:, 0], s=1, color="#d8d2c6", label="airports")
dots = right.scatter(lon, lat, s=9, c=altitude / 1000, cmap="viridis", vmin=0, vmax=45)
right.quiver(lon, lat, np.sin(heading), np.cos(heading), color="#444", scale=60, width=0.0015)
right.set(xlim=(-180, 180), ylim=(-75, 80), xlabel="longitude", ylabel="latitude", title=f"{len(flights)} flights at version {version}")
figure.colorbar(dots, ax=right, label="altitude, 1000 ft")
figure.savefig(picture, dpi=90)
print("drawn to", picture)
if matplotlib.get_backend().lower() != "agg":
    plt.show()
