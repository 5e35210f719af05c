# Names, zones, seeds, founder, voters and ports of clusters of several shapes.
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

run "nine_nodes" {
  command = plan
  assert {
    condition     = output.nodes["us-2"].zone == "b" && output.nodes["us-2"].region == "us" && output.nodes["us-2"].ordinal == 2
    error_message = "us-2 is the second node of us, in zone b"
  }
  assert {
    condition     = join(" ", keys(output.nodes)) == "ap-1 ap-2 ap-3 eu-1 eu-2 eu-3 us-1 us-2 us-3"
    error_message = "nine nodes are named by region and ordinal"
  }
  assert {
    condition     = join(" ", output.order) == "eu us ap"
    error_message = "regions stand in the order of their ordinals, not of their names"
  }
  assert {
    condition     = output.founder == "eu-1"
    error_message = "the founder is the first node of the oldest region"
  }
  assert {
    condition     = output.voters.count == 3 && output.voters.regions_may_fail == 1
    error_message = "three regions have three voters and survive the loss of one"
  }
  assert {
    condition     = output.ports.main == 7600 && output.ports.heartbeat == 7601 && output.ports.gossip == 7602 && output.ports.admin == 7603 && output.ports.authority == 7605
    error_message = "the ports are those of the program"
  }
  assert {
    condition     = output.endpoints["ap-3"] == "10.77.3.3:7600"
    error_message = "an endpoint is an address and a port"
  }
}

run "joins" {
  command = plan
  assert {
    condition     = join(" ", output.joins["eu-1"]) == "eu-2 eu-3"
    error_message = "the founder looks for its cluster in its own region"
  }
  assert {
    condition     = join(" ", output.joins["eu-2"]) == "eu-1"
    error_message = "eu-2 joins the founder"
  }
  assert {
    condition     = join(" ", output.joins["eu-3"]) == "eu-1 eu-2"
    error_message = "eu-3 joins the two nodes before it"
  }
  assert {
    condition     = join(" ", output.joins["us-1"]) == "eu-1"
    error_message = "the first node of a region joins the first nodes of earlier regions"
  }
  assert {
    condition     = join(" ", output.joins["us-3"]) == "eu-1 us-1 us-2"
    error_message = "us-3 joins an earlier region and its own"
  }
  assert {
    condition     = join(" ", output.joins["ap-3"]) == "eu-1 us-1 ap-1 ap-2"
    error_message = "ap-3 joins two earlier regions and its own"
  }
  assert {
    condition     = alltrue([for name, others in output.joins : !contains(others, name)])
    error_message = "no node joins itself"
  }
  assert {
    condition     = alltrue([for name, others in output.joins : length(others) > 0])
    error_message = "every node knows another node"
  }
  assert {
    condition     = join(" ", output.seeds["ap-2"]) == "10.77.1.1:7600 10.77.2.1:7600 10.77.3.1:7600"
    error_message = "seeds are the addresses of the joins"
  }
}

# Ordinals may have gaps.
run "many_regions_bound_the_joins" {
  command = plan
  variables {
    regions   = { for i in range(1, 9) : "r${i}" => { ordinal = i * 10, location = { lat = i, lon = i }, count = 3 } }
    addresses = { for p in setproduct(range(1, 9), range(1, 4)) : "r${p[0]}-${p[1]}" => { advertise = "10.0.${p[0]}.${p[1]}" } }
  }
  assert {
    condition     = join(" ", output.joins["r8-3"]) == "r1-1 r2-1 r3-1 r8-1 r8-2"
    error_message = "a node joins at most three regions before its own, the oldest, and two nodes of its own"
  }
  assert {
    condition     = output.voters.count == 5 && output.voters.regions_may_fail == 2
    error_message = "eight regions have five voters and survive the loss of two"
  }
}

run "one_region_warns" {
  command = plan
  variables {
    regions   = { eu = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3 } }
    addresses = { eu-1 = { advertise = "10.77.1.1" }, eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" } }
  }
  expect_failures = [check.regions]
  assert {
    condition     = output.voters.regions_may_fail == 0
    error_message = "a cluster in one region does not survive its loss"
  }
}

run "two_zones_warn" {
  command = plan
  variables {
    regions = {
      eu = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3, zones = ["a", "b"] }
      us = { ordinal = 2, location = { lat = 39.04, lon = -77.49 }, count = 3 }
      ap = { ordinal = 3, location = { lat = 1.29, lon = 103.85 }, count = 3 }
    }
  }
  expect_failures = [check.zones]
  assert {
    condition     = output.nodes["eu-3"].zone == "a"
    error_message = "zones are used in turn"
  }
}

run "open_clients_warn" {
  command = plan
  variables {
    clients = ["0.0.0.0/0"]
  }
  expect_failures = [check.clients]
  assert {
    condition     = contains(keys(output.firewall["clients-main"].networks), "0.0.0.0/0")
    error_message = "clients may be open to everybody"
  }
}

run "one_node" {
  command = plan
  variables {
    regions   = { eu = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 1, zones = ["a"] } }
    addresses = { eu-1 = { advertise = "10.77.1.1" } }
    replicas  = 1
  }
  expect_failures = [check.regions]
  assert {
    condition     = output.voters.count == 1 && length(output.joins["eu-1"]) == 0
    error_message = "one node votes alone and joins nobody"
  }
  assert {
    condition     = !strcontains(output.config["eu-1"], "join:")
    error_message = "without seeds the configuration has no list"
  }
}

run "ten_nodes_in_order" {
  command = plan
  variables {
    regions = {
      eu = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 10 }
      us = { ordinal = 2, location = { lat = 39.04, lon = -77.49 }, count = 3 }
      ap = { ordinal = 3, location = { lat = 1.29, lon = 103.85 }, count = 3 }
    }
    addresses = merge({ for i in range(1, 11) : "eu-${i}" => { advertise = "10.77.1.${i}" } }, { for i in range(1, 4) : "us-${i}" => { advertise = "10.77.2.${i}" } }, { for i in range(1, 4) : "ap-${i}" => { advertise = "10.77.3.${i}" } })
  }
  assert {
    condition     = join(" ", output.joins["eu-10"]) == "eu-1 eu-2"
    error_message = "eu-10 comes after eu-9"
  }
  assert {
    condition     = output.nodes["eu-10"].zone == "a"
    error_message = "zones are used in turn"
  }
}

run "nodes_one_by_one" {
  command = plan
  variables {
    regions = {
      eu = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, instance = "small", disk_gib = 100, memory = "4GiB"
      nodes = { "1" = { zone = "a" }, "3" = { zone = "c", instance = "large", disk_gib = 500, memory = "16GiB" }, "4" = { zone = "b" }, "10" = { zone = "a" } } }
      us = { ordinal = 2, location = { lat = 39.04, lon = -77.49 }, count = 3, place = "us-east-1", zones = ["us-east-1a", "us-east-1b", "us-east-1c"] }
      ap = { ordinal = 3, location = { lat = 1.29, lon = 103.85 }, count = 3 }
    }
    addresses = merge({ for i in [1, 3, 4, 10] : "eu-${i}" => { advertise = "10.77.1.${i}" } }, { for i in range(1, 4) : "us-${i}" => { advertise = "10.77.2.${i}" } }, { for i in range(1, 4) : "ap-${i}" => { advertise = "10.77.3.${i}" } })
  }
  assert {
    condition     = join(" ", output.joins["eu-10"]) == "eu-1 eu-3"
    error_message = "ordinals may have gaps and sort as numbers"
  }
  assert {
    condition     = output.nodes["eu-1"].instance == "small" && output.nodes["eu-3"].instance == "large"
    error_message = "a node overrides the instance of its region"
  }
  assert {
    condition     = output.nodes["eu-4"].disk_gib == 100 && output.nodes["eu-3"].disk_gib == 500
    error_message = "a node overrides the disk of its region"
  }
  assert {
    condition     = strcontains(output.config["eu-3"], "memory: \"16GiB\"") && strcontains(output.config["eu-1"], "memory: \"4GiB\"")
    error_message = "the limit of memory is in the configuration"
  }
  assert {
    condition     = output.nodes["us-1"].place == "us-east-1" && output.nodes["ap-1"].place == "ap"
    error_message = "the place is the name of the region unless given"
  }
  assert {
    condition     = output.nodes["us-3"].zone == "us-east-1c" && output.nodes["us-1"].instance == null
    error_message = "zones may be those of the provider"
  }
}

run "chosen_founder" {
  command = plan
  variables {
    founder = "us-1"
  }
  assert {
    condition     = output.founder == "us-1" && output.tokens_needed["us-1"].founder && !output.tokens_needed["eu-1"].founder
    error_message = "the chosen node is the founder"
  }
  assert {
    condition     = contains(output.joins["eu-1"], "us-1")
    error_message = "older nodes join a chosen founder too"
  }
  assert {
    condition     = alltrue([for name, others in output.joins : name == "us-1" || contains(others, "us-1")])
    error_message = "every node knows the chosen founder"
  }
}

run "other_ports" {
  command = plan
  variables {
    ports = { main = 17600, heartbeat = 17601, gossip = 17602, admin = 17603, authority = 17605 }
  }
  assert {
    condition     = output.endpoints["eu-1"] == "10.77.1.1:17600" && output.seeds["eu-2"][0] == "10.77.1.1:17600"
    error_message = "endpoints and seeds carry another port"
  }
  assert {
    condition     = strcontains(output.config["eu-1"], "gossip_addr: \"0.0.0.0:17602\"")
    error_message = "nodes listen on the other ports"
  }
  assert {
    condition     = output.firewall["peers-probe"].port == 17602 && output.firewall["nodes-authority"].port == 17605
    error_message = "the firewall follows"
  }
}

run "ipv6" {
  command = plan
  variables {
    addresses = { for n in ["eu-1", "eu-2", "eu-3", "us-1", "us-2", "us-3", "ap-1", "ap-2", "ap-3"] : n => { advertise = "2001:db8::${substr(md5(n), 0, 4)}" } }
  }
  assert {
    condition     = startswith(output.endpoints["eu-1"], "[2001:db8::") && endswith(output.endpoints["eu-1"], "]:7600")
    error_message = "an IPv6 address stands in brackets"
  }
  assert {
    condition     = strcontains(output.config["eu-1"], "addr: \"[::]:7600\"")
    error_message = "a node with an IPv6 address listens on IPv6"
  }
  assert {
    condition     = alltrue([for n in values(output.firewall["peers-main"].networks) : endswith(n, "/128")])
    error_message = "sources are single addresses"
  }
}

run "names_with_sources" {
  command = plan
  variables {
    addresses = { for i, n in ["eu-1", "eu-2", "eu-3", "us-1", "us-2", "us-3", "ap-1", "ap-2", "ap-3"] : n => { advertise = "${n}.rhumb.example.com", sources = ["203.0.113.${i + 1}", "10.0.0.${i + 1}"] } }
  }
  assert {
    condition     = output.endpoints["us-1"] == "us-1.rhumb.example.com:7600"
    error_message = "a node may advertise a name"
  }
  assert {
    condition     = length(output.firewall["peers-main"].networks) == 18
    error_message = "every source is admitted"
  }
}

run "extra_seeds" {
  command = plan
  variables {
    extra_seeds = ["203.0.113.9", "[2001:db8::9]:17600"]
  }
  assert {
    condition     = alltrue([for s in values(output.seeds) : slice(reverse(s), 0, 2)[0] == "[2001:db8::9]:17600"])
    error_message = "every node gets the further seeds, last"
  }
}

run "regions" {
  command = plan
  assert {
    condition     = output.regions["us"].ordinal == 2 && output.regions["us"].place == "us" && join("", output.regions["us"].zones) == "abc"
    error_message = "layers get ordinal, place and zones of each region"
  }
}
