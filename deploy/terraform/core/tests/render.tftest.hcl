# Files of the nodes. A Go test parses the golden files as YAML, checks them against the schema of cloud-init and runs `rhumb config check`.
variables {
  regions = {
    eu = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3 }
    us = { ordinal = 2, location = { lat = 39.04, lon = -77.49 }, count = 3 }
    ap = { ordinal = 3, location = { lat = 1.29, lon = 103.85 }, count = 3 }
  }
  addresses = {
    eu-1 = { advertise = "10.77.1.1" }, eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
    us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
    ap-1 = { advertise = "10.77.3.1" }, ap-2 = { advertise = "10.77.3.2" }, ap-3 = { advertise = "10.77.3.3" }
  }
  operators = ["192.0.2.0/24"]
  clients   = ["198.51.100.0/24", "2001:db8::/32"]
}

run "golden" {
  command = plan
  variables {
    tokens    = { eu-1 = "rhumb1.Zm91bmRlci10b2tlbi1vZi1ldS0x" }
    package   = { url = "https://example.com/rhumb_1.0.0_amd64.deb", sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
    data_disk = { device = "/dev/nvme1n1" }
  }
  assert {
    condition     = output.cloud_init["eu-1"] == file("tests/golden/eu-1.cloud-init.yaml")
    error_message = "cloud-init of eu-1 differs from tests/golden/eu-1.cloud-init.yaml"
  }
  assert {
    condition     = output.config["eu-1"] == file("tests/golden/eu-1.rhumb.yaml")
    error_message = "rhumb.yaml of eu-1 differs from tests/golden/eu-1.rhumb.yaml"
  }
  assert {
    condition     = output.config["ap-3"] == file("tests/golden/ap-3.rhumb.yaml")
    error_message = "rhumb.yaml of ap-3 differs from tests/golden/ap-3.rhumb.yaml"
  }
}

# Without package, disk and token.
run "golden_plain" {
  command = plan
  assert {
    condition     = output.cloud_init["ap-3"] == file("tests/golden/ap-3.cloud-init.yaml")
    error_message = "cloud-init of ap-3 differs from tests/golden/ap-3.cloud-init.yaml"
  }
}

run "every_file_is_yaml" {
  command = plan
  assert {
    condition     = alltrue([for c in values(output.cloud_init) : yamldecode(c).runcmd[0][1] == "enable" && startswith(c, "#cloud-config\n")])
    error_message = "cloud-init is YAML and begins with its mark"
  }
  assert {
    condition     = alltrue([for n, c in output.cloud_init : yamldecode(c).write_files[0].content == "${trimspace(output.config[n])}\n"])
    error_message = "cloud-init writes the configuration"
  }
  assert {
    condition     = alltrue([for n, c in output.config : yamldecode(c).advertise == var.addresses[n].advertise])
    error_message = "a node advertises its address"
  }
  assert {
    condition     = alltrue([for n, c in output.config : yamldecode(c).region == output.nodes[n].region && yamldecode(c).zone == output.nodes[n].zone])
    error_message = "a node knows its region and zone"
  }
  assert {
    condition     = alltrue([for n, c in output.config : try(yamldecode(c).join, []) == output.seeds[n]])
    error_message = "a node joins its seeds"
  }
  assert {
    condition     = !anytrue([for c in values(output.config) : strcontains(c, "insecure")])
    error_message = "no node is insecure"
  }
}

run "tokens" {
  command = plan
  variables {
    tokens = { eu-1 = "rhumb1.Zm91bmRlci10b2tlbi1vZi1ldS0x" }
  }
  assert {
    condition     = !contains(keys(output.tokens_needed), "eu-1") && length(output.tokens_needed) == 8
    error_message = "a node with a token needs none"
  }
  assert {
    condition     = output.tokens_needed["us-1"].create == "rhumb token create --authority DIR --node us-1"
    error_message = "the command names the node"
  }
  assert {
    condition     = length([for c in values(output.cloud_init) : c if strcontains(c, "Zm91bmRlci") && strcontains(c, "systemctl, start")]) == 1
    error_message = "a token is in the file of its node only"
  }
  assert {
    condition     = !anytrue([for c in values(output.config) : strcontains(c, "rhumb1.")])
    error_message = "no token is in the configuration"
  }
}

run "no_token" {
  command = plan
  assert {
    condition     = output.tokens_needed["eu-1"].create == "rhumb token create --authority DIR --node eu-1 --founder" && output.tokens_needed["eu-1"].founder
    error_message = "the token of the founder says so"
  }
  assert {
    condition     = length([for t in values(output.tokens_needed) : t if t.founder]) == 1
    error_message = "there is one founder"
  }
  assert {
    condition     = length(output.tokens_needed) == 9
    error_message = "every node needs a token"
  }
  assert {
    condition     = !anytrue([for c in values(output.cloud_init) : strcontains(c, "rhumb1.") || strcontains(c, "systemctl, start")])
    error_message = "no file has a token"
  }
}

run "some_enrolled" {
  command = plan
  variables {
    enrolled = ["eu-1", "eu-2"]
  }
  assert {
    condition     = length(output.tokens_needed) == 7
    error_message = "enrolled nodes need no token"
  }
}

run "founded" {
  command = plan
  variables {
    founded = true
  }
  assert {
    condition     = !anytrue([for t in values(output.tokens_needed) : t.founder])
    error_message = "once the cluster exists, nobody creates it"
  }
}

run "xfs" {
  command = plan
  variables {
    data_disk = { device = "/dev/disk/by-id/scsi-0HC_Volume_1", filesystem = "xfs" }
  }
  assert {
    condition     = alltrue([for c in values(output.cloud_init) : yamldecode(c).fs_setup[0].filesystem == "xfs" && !yamldecode(c).fs_setup[0].overwrite])
    error_message = "a disk with data is not formatted"
  }
}

run "log_level" {
  command = plan
  variables {
    log_level = "debug"
  }
  assert {
    condition     = alltrue([for c in values(output.config) : yamldecode(c).log_level == "debug"])
    error_message = "nodes log what was asked"
  }
}
