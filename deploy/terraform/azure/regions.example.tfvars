regions = {
  frankfurt = { ordinal = 1, place = "germanywestcentral", location = { lat = 50.11, lon = 8.68 }, count = 3, zones = ["1", "2", "3"] }
  virginia  = { ordinal = 2, place = "eastus", location = { lat = 39.04, lon = -77.49 }, count = 3, zones = ["1", "2", "3"] }
  singapore = { ordinal = 3, place = "southeastasia", location = { lat = 1.29, lon = 103.85 }, count = 3, zones = ["1", "2", "3"] }
}
operators  = ["192.0.2.0/24"]
public_key = "ssh-ed25519 AAAA... operators"
