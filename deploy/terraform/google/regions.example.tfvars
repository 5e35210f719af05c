project = "example"
regions = {
  frankfurt = { ordinal = 1, place = "europe-west3", location = { lat = 50.11, lon = 8.68 }, count = 3, zones = ["europe-west3-a", "europe-west3-b", "europe-west3-c"] }
  virginia  = { ordinal = 2, place = "us-east4", location = { lat = 39.04, lon = -77.49 }, count = 3, zones = ["us-east4-a", "us-east4-b", "us-east4-c"] }
  singapore = { ordinal = 3, place = "asia-southeast1", location = { lat = 1.29, lon = 103.85 }, count = 3, zones = ["asia-southeast1-a", "asia-southeast1-b", "asia-southeast1-c"] }
}
operators  = ["192.0.2.0/24"]
public_key = "ssh-ed25519 AAAA... operators"
