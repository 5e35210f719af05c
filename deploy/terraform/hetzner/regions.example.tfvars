regions = {
  falkenstein = { ordinal = 1, place = "fsn1", location = { lat = 50.48, lon = 12.37 }, count = 3 }
  ashburn     = { ordinal = 2, place = "ash", location = { lat = 39.04, lon = -77.49 }, count = 3 }
  singapore   = { ordinal = 3, place = "sin", location = { lat = 1.29, lon = 103.85 }, count = 3 }
}
operators  = ["192.0.2.0/24"]
public_key = "ssh-ed25519 AAAA... operators"
