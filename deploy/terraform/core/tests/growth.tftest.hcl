# A cluster grows. The files of the nodes that exist must not change, because providers replace a machine whose user data changes.
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

run "before" {
  command = apply
  assert {
    condition     = length(output.nodes) == 9
    error_message = "nine nodes"
  }
}

# The name of the new region sorts before all others.
run "a_region_is_added" {
  command = apply
  variables {
    regions = {
      eu = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3 }
      us = { ordinal = 2, location = { lat = 39.04, lon = -77.49 }, count = 3 }
      ap = { ordinal = 3, location = { lat = 1.29, lon = 103.85 }, count = 3 }
      af = { ordinal = 4, location = { lat = -33.92, lon = 18.42 }, count = 3 }
    }
    addresses = {
      eu-1 = { advertise = "10.77.1.1" }, eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
      us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
      ap-1 = { advertise = "10.77.3.1" }, ap-2 = { advertise = "10.77.3.2" }, ap-3 = { advertise = "10.77.3.3" }
      af-1 = { advertise = "10.77.4.1" }, af-2 = { advertise = "10.77.4.2" }, af-3 = { advertise = "10.77.4.3" }
    }
  }
  assert {
    condition     = alltrue([for n in keys(run.before.nodes) : output.config[n] == run.before.config[n]])
    error_message = "the configuration of a node that existed has changed"
  }
  assert {
    condition     = alltrue([for n in keys(run.before.nodes) : output.cloud_init[n] == run.before.cloud_init[n]])
    error_message = "the cloud-init of a node that existed has changed"
  }
  assert {
    condition     = alltrue([for n in keys(run.before.nodes) : output.nodes[n] == run.before.nodes[n]])
    error_message = "a node that existed has moved"
  }
  assert {
    condition     = alltrue([for n in keys(run.before.nodes) : output.joins[n] == run.before.joins[n]])
    error_message = "the seeds of a node that existed have changed"
  }
  assert {
    condition     = output.founder == run.before.founder
    error_message = "the founder has changed"
  }
  assert {
    condition     = length(setsubtract(keys(output.nodes), keys(run.before.nodes))) == 3
    error_message = "three nodes are new"
  }
  assert {
    condition     = join(" ", output.joins["af-1"]) == "eu-1 us-1 ap-1"
    error_message = "the new region joins the earlier ones"
  }
  assert {
    condition     = alltrue([for n, network in run.before.firewall["peers-main"].networks : output.firewall["peers-main"].networks[n] == network])
    error_message = "the firewall still admits every earlier node"
  }
  assert {
    condition     = length(output.firewall["peers-main"].networks) == 12
    error_message = "the firewall admits the new nodes"
  }
  assert {
    condition     = !output.tokens_needed["af-1"].founder
    error_message = "no node of the new region creates a cluster"
  }
}

run "a_node_is_added" {
  command = plan
  variables {
    regions = {
      eu = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 4 }
      us = { ordinal = 2, location = { lat = 39.04, lon = -77.49 }, count = 3 }
      ap = { ordinal = 3, location = { lat = 1.29, lon = 103.85 }, count = 3 }
    }
    addresses = {
      eu-1 = { advertise = "10.77.1.1" }, eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
      us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
      ap-1 = { advertise = "10.77.3.1" }, ap-2 = { advertise = "10.77.3.2" }, ap-3 = { advertise = "10.77.3.3" }
      eu-4 = { advertise = "10.77.1.4" }
    }
  }
  assert {
    condition     = alltrue([for n in keys(run.before.nodes) : output.config[n] == run.before.config[n]])
    error_message = "the configuration of a node that existed has changed"
  }
  assert {
    condition     = alltrue([for n in keys(run.before.nodes) : output.cloud_init[n] == run.before.cloud_init[n]])
    error_message = "the cloud-init of a node that existed has changed"
  }
  assert {
    condition     = alltrue([for n in keys(run.before.nodes) : output.nodes[n] == run.before.nodes[n]])
    error_message = "a node that existed has moved"
  }
  assert {
    condition     = alltrue([for n in keys(run.before.nodes) : output.joins[n] == run.before.joins[n]])
    error_message = "the seeds of a node that existed have changed"
  }
  assert {
    condition     = output.founder == run.before.founder
    error_message = "the founder has changed"
  }
  assert {
    condition     = output.nodes["eu-4"].zone == "a"
    error_message = "the new node is in the next zone"
  }
}

# From a count to nodes one by one, with a further zone.
run "zones_are_appended" {
  command = plan
  variables {
    regions = {
      eu = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, nodes = { "1" = { zone = "a" }, "2" = { zone = "b" }, "3" = { zone = "c" }, "4" = { zone = "d" } }, zones = ["a", "b", "c", "d"] }
      us = { ordinal = 2, location = { lat = 39.04, lon = -77.49 }, count = 3 }
      ap = { ordinal = 3, location = { lat = 1.29, lon = 103.85 }, count = 3 }
    }
    addresses = {
      eu-1 = { advertise = "10.77.1.1" }, eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
      us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
      ap-1 = { advertise = "10.77.3.1" }, ap-2 = { advertise = "10.77.3.2" }, ap-3 = { advertise = "10.77.3.3" }
      eu-4 = { advertise = "10.77.1.4" }
    }
  }
  assert {
    condition     = alltrue([for n in keys(run.before.nodes) : output.config[n] == run.before.config[n]])
    error_message = "the configuration of a node that existed has changed"
  }
  assert {
    condition     = alltrue([for n in keys(run.before.nodes) : output.cloud_init[n] == run.before.cloud_init[n]])
    error_message = "the cloud-init of a node that existed has changed"
  }
  assert {
    condition     = alltrue([for n in keys(run.before.nodes) : output.nodes[n] == run.before.nodes[n]])
    error_message = "a node that existed has moved"
  }
  assert {
    condition     = alltrue([for n in keys(run.before.nodes) : output.joins[n] == run.before.joins[n]])
    error_message = "the seeds of a node that existed have changed"
  }
  assert {
    condition     = output.founder == run.before.founder
    error_message = "the founder has changed"
  }
  assert {
    condition     = output.nodes["eu-4"].zone == "d"
    error_message = "the new node is in the new zone"
  }
}

# Two regions are left, which do not survive the loss of one: the check warns.
run "a_region_is_removed" {
  command = plan
  variables {
    regions = {
      eu = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3 }
      us = { ordinal = 2, location = { lat = 39.04, lon = -77.49 }, count = 3 }
    }
    addresses = {
      eu-1 = { advertise = "10.77.1.1" }, eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
      us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
    }
  }
  expect_failures = [check.regions]
  assert {
    condition     = alltrue([for n in keys(output.nodes) : output.config[n] == run.before.config[n]])
    error_message = "the configuration of a node that existed has changed"
  }
  assert {
    condition     = alltrue([for n in keys(output.nodes) : output.cloud_init[n] == run.before.cloud_init[n]])
    error_message = "the cloud-init of a node that existed has changed"
  }
  assert {
    condition     = alltrue([for n in keys(output.nodes) : output.nodes[n] == run.before.nodes[n]])
    error_message = "a node that existed has moved"
  }
  assert {
    condition     = alltrue([for n in keys(output.nodes) : output.joins[n] == run.before.joins[n]])
    error_message = "the seeds of a node that existed have changed"
  }
  assert {
    condition     = output.founder == run.before.founder
    error_message = "the founder has changed"
  }
}

run "the_cluster_exists" {
  command = plan
  variables {
    founded  = true
    enrolled = ["*"]
  }
  assert {
    condition     = alltrue([for n in keys(run.before.nodes) : output.config[n] == run.before.config[n]])
    error_message = "the configuration of a node that existed has changed"
  }
  assert {
    condition     = alltrue([for n in keys(run.before.nodes) : output.cloud_init[n] == run.before.cloud_init[n]])
    error_message = "the cloud-init of a node that existed has changed"
  }
  assert {
    condition     = alltrue([for n in keys(run.before.nodes) : output.nodes[n] == run.before.nodes[n]])
    error_message = "a node that existed has moved"
  }
  assert {
    condition     = alltrue([for n in keys(run.before.nodes) : output.joins[n] == run.before.joins[n]])
    error_message = "the seeds of a node that existed have changed"
  }
  assert {
    condition     = output.founder == run.before.founder
    error_message = "the founder has changed"
  }
  assert {
    condition     = length(output.tokens_needed) == 0
    error_message = "enrolled nodes need no token"
  }
}
