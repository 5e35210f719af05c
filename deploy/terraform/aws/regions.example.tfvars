regions = {
  frankfurt = { ordinal = 1, place = "eu-central-1", location = { lat = 50.11, lon = 8.68 }, count = 3, zones = ["eu-central-1a", "eu-central-1b", "eu-central-1c"] }
  virginia  = { ordinal = 2, place = "us-east-1", location = { lat = 39.04, lon = -77.49 }, count = 3, zones = ["us-east-1a", "us-east-1b", "us-east-1c"] }
  singapore = { ordinal = 3, place = "ap-southeast-1", location = { lat = 1.29, lon = 103.85 }, count = 3, zones = ["ap-southeast-1a", "ap-southeast-1b", "ap-southeast-1c"] }
}
operators  = ["192.0.2.0/24"]
public_key = "ssh-ed25519 AAAA... operators"
