regions = {
  eu = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3 }
  us = { ordinal = 2, location = { lat = 39.04, lon = -77.49 }, count = 3 }
  ap = { ordinal = 3, location = { lat = 1.29, lon = 103.85 }, count = 3 }
}
