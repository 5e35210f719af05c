# Inputs that are refused. Each run changes one input of a valid cluster and names the variable that refuses it.
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

run "region_name_begins_with_digit" {
  command = plan
  variables {
    regions = { "1eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3 } }
  }
  expect_failures = [var.regions]
}

run "region_name_in_capitals" {
  command = plan
  variables {
    regions = { "EU" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3 } }
  }
  expect_failures = [var.regions]
}

run "region_name_with_underscore" {
  command = plan
  variables {
    regions = { "eu_central" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3 } }
  }
  expect_failures = [var.regions]
}

run "region_name_ends_with_hyphen" {
  command = plan
  variables {
    regions = { "eu-" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3 } }
  }
  expect_failures = [var.regions]
}

run "region_name_too_long" {
  command = plan
  variables {
    regions = { "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3 } }
  }
  expect_failures = [var.regions]
}

run "region_name_empty" {
  command = plan
  variables {
    regions = { "" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3 } }
  }
  expect_failures = [var.regions]
}

run "no_region" {
  command = plan
  variables {
    regions = {}
  }
  expect_failures = [var.regions]
}

run "ordinal_zero" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 0, location = { lat = 50.11, lon = 8.68 }, count = 3 } }
  }
  expect_failures = [var.regions]
}

run "ordinal_fraction" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1.5, location = { lat = 50.11, lon = 8.68 }, count = 3 } }
  }
  expect_failures = [var.regions]
}

run "ordinal_too_large" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 251, location = { lat = 50.11, lon = 8.68 }, count = 3 } }
  }
  expect_failures = [var.regions]
}

run "ordinal_twice" {
  command = plan
  variables {
    regions = {
      eu = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3 }
      us = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3 }
    }
  }
  expect_failures = [var.regions]
}

run "latitude_too_large" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 91, lon = 0 }, count = 3 } }
  }
  expect_failures = [var.regions]
}

run "longitude_too_small" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 0, lon = -181 }, count = 3 } }
  }
  expect_failures = [var.regions]
}

run "neither_count_nor_nodes" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 } } }
  }
  expect_failures = [var.regions]
}

run "both_count_and_nodes" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3, nodes = { "1" = { zone = "a" } } } }
  }
  expect_failures = [var.regions]
}

run "count_zero" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 0 } }
  }
  expect_failures = [var.regions]
}

run "count_negative" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = -3 } }
  }
  expect_failures = [var.regions]
}

run "count_fraction" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3.5 } }
  }
  expect_failures = [var.regions]
}

run "count_too_large" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 1000 } }
  }
  expect_failures = [var.regions]
}

run "nodes_empty" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, nodes = {} } }
  }
  expect_failures = [var.regions]
}

run "node_ordinal_zero" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, nodes = { "0" = { zone = "a" }, "1" = { zone = "b" }, "2" = { zone = "c" } } } }
  }
  expect_failures = [var.regions]
}

run "node_ordinal_padded" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, nodes = { "01" = { zone = "a" }, "1" = { zone = "b" }, "2" = { zone = "c" } } } }
  }
  expect_failures = [var.regions]
}

run "node_ordinal_a_word" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, nodes = { "first" = { zone = "a" } } } }
  }
  expect_failures = [var.regions]
}

run "node_in_an_unknown_zone" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, nodes = { "1" = { zone = "a" }, "2" = { zone = "b" }, "3" = { zone = "z" } } } }
  }
  expect_failures = [var.regions]
}

run "no_zone" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3, zones = [] } }
  }
  expect_failures = [var.regions]
}

run "zone_twice" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3, zones = ["a", "b", "a"] } }
  }
  expect_failures = [var.regions]
}

run "zone_name_with_space" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3, zones = ["a b"] } }
  }
  expect_failures = [var.regions]
}

run "zone_name_empty" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3, zones = [""] } }
  }
  expect_failures = [var.regions]
}

run "disk_of_no_size" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3, disk_gib = 0 } }
  }
  expect_failures = [var.regions]
}

run "memory_without_unit" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3, memory = "4" } }
  }
  expect_failures = [var.regions]
}

run "memory_in_decimal_units" {
  command = plan
  variables {
    regions = { "eu" = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 3, memory = "4GB" } }
  }
  expect_failures = [var.regions]
}

run "too_many_nodes" {
  command = plan
  variables {
    regions = {
      eu = { ordinal = 1, location = { lat = 50.11, lon = 8.68 }, count = 999 }
      us = { ordinal = 2, location = { lat = 50.11, lon = 8.68 }, count = 26 }
    }
  }
  expect_failures = [var.regions]
}

run "fewer_nodes_than_replicas" {
  command = plan
  variables {
    replicas = 4
  }
  expect_failures = [var.replicas]
}

run "no_replica" {
  command = plan
  variables {
    replicas = 0
  }
  expect_failures = [var.replicas]
}

run "too_many_replicas" {
  command = plan
  variables {
    replicas = 8
  }
  expect_failures = [var.replicas]
}

run "founder_is_no_node" {
  command = plan
  variables {
    founder = "eu-9"
  }
  expect_failures = [var.founder]
}

run "address_missing" {
  command = plan
  variables {
    addresses = {
      eu-1 = { advertise = "10.77.1.1" }
      eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
      us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
      ap-1 = { advertise = "10.77.3.1" }, ap-2 = { advertise = "10.77.3.2" }
    }
  }
  expect_failures = [var.addresses]
}

run "address_of_no_node" {
  command = plan
  variables {
    addresses = { for n in ["eu-1", "eu-2", "eu-3", "us-1", "us-2", "us-3", "ap-1", "ap-2", "ap-3", "mars-1"] : n => { advertise = "h-${n}.example", sources = ["10.0.0.1"] } }
  }
  expect_failures = [var.addresses]
}

run "address_with_port" {
  command = plan
  variables {
    addresses = {
      eu-1 = { advertise = "10.77.1.1:7600" }
      eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
      us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
      ap-1 = { advertise = "10.77.3.1" }, ap-2 = { advertise = "10.77.3.2" }, ap-3 = { advertise = "10.77.3.3" }
    }
  }
  expect_failures = [var.addresses]
}

run "address_with_mask" {
  command = plan
  variables {
    addresses = {
      eu-1 = { advertise = "10.77.1.1/24" }
      eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
      us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
      ap-1 = { advertise = "10.77.3.1" }, ap-2 = { advertise = "10.77.3.2" }, ap-3 = { advertise = "10.77.3.3" }
    }
  }
  expect_failures = [var.addresses]
}

run "address_out_of_range" {
  command = plan
  variables {
    addresses = {
      eu-1 = { advertise = "300.77.1.1" }
      eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
      us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
      ap-1 = { advertise = "10.77.3.1" }, ap-2 = { advertise = "10.77.3.2" }, ap-3 = { advertise = "10.77.3.3" }
    }
  }
  expect_failures = [var.addresses]
}

run "address_empty" {
  command = plan
  variables {
    addresses = {
      eu-1 = { advertise = "" }
      eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
      us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
      ap-1 = { advertise = "10.77.3.1" }, ap-2 = { advertise = "10.77.3.2" }, ap-3 = { advertise = "10.77.3.3" }
    }
  }
  expect_failures = [var.addresses]
}

run "address_with_space" {
  command = plan
  variables {
    addresses = {
      eu-1 = { advertise = "host one" }
      eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
      us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
      ap-1 = { advertise = "10.77.3.1" }, ap-2 = { advertise = "10.77.3.2" }, ap-3 = { advertise = "10.77.3.3" }
    }
  }
  expect_failures = [var.addresses]
}

run "address_loopback" {
  command = plan
  variables {
    addresses = {
      eu-1 = { advertise = "127.0.0.1" }
      eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
      us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
      ap-1 = { advertise = "10.77.3.1" }, ap-2 = { advertise = "10.77.3.2" }, ap-3 = { advertise = "10.77.3.3" }
    }
  }
  expect_failures = [var.addresses]
}

run "address_unspecified" {
  command = plan
  variables {
    addresses = {
      eu-1 = { advertise = "0.0.0.0" }
      eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
      us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
      ap-1 = { advertise = "10.77.3.1" }, ap-2 = { advertise = "10.77.3.2" }, ap-3 = { advertise = "10.77.3.3" }
    }
  }
  expect_failures = [var.addresses]
}

run "address_twice" {
  command = plan
  variables {
    addresses = {
      eu-1 = { advertise = "10.77.1.2" }
      eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
      us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
      ap-1 = { advertise = "10.77.3.1" }, ap-2 = { advertise = "10.77.3.2" }, ap-3 = { advertise = "10.77.3.3" }
    }
  }
  expect_failures = [var.addresses]
}

run "name_without_source_address" {
  command = plan
  variables {
    addresses = {
      eu-1 = { advertise = "eu-1.example.com" }
      eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
      us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
      ap-1 = { advertise = "10.77.3.1" }, ap-2 = { advertise = "10.77.3.2" }, ap-3 = { advertise = "10.77.3.3" }
    }
  }
  expect_failures = [var.addresses]
}

run "source_that_is_a_network" {
  command = plan
  variables {
    addresses = {
      eu-1 = { advertise = "eu-1.example.com", sources = ["10.0.0.0/24"] }
      eu-2 = { advertise = "10.77.1.2" }, eu-3 = { advertise = "10.77.1.3" }
      us-1 = { advertise = "10.77.2.1" }, us-2 = { advertise = "10.77.2.2" }, us-3 = { advertise = "10.77.2.3" }
      ap-1 = { advertise = "10.77.3.1" }, ap-2 = { advertise = "10.77.3.2" }, ap-3 = { advertise = "10.77.3.3" }
    }
  }
  expect_failures = [var.addresses]
}

run "seed_with_scheme" {
  command = plan
  variables {
    extra_seeds = ["https://10.0.0.1:7600"]
  }
  expect_failures = [var.extra_seeds]
}

run "seed_with_bare_ipv6_address" {
  command = plan
  variables {
    extra_seeds = ["2001:db8::1:7600"]
  }
  expect_failures = [var.extra_seeds]
}

run "port_reserved" {
  command = plan
  variables {
    ports = { main = 443 }
  }
  expect_failures = [var.ports]
}

run "port_too_large" {
  command = plan
  variables {
    ports = { admin = 65536 }
  }
  expect_failures = [var.ports]
}

run "port_fraction" {
  command = plan
  variables {
    ports = { gossip = 7602.5 }
  }
  expect_failures = [var.ports]
}

run "port_twice" {
  command = plan
  variables {
    ports = { heartbeat = 7600 }
  }
  expect_failures = [var.ports]
}

run "client_network_without_mask" {
  command = plan
  variables {
    clients = ["192.0.2.1"]
  }
  expect_failures = [var.clients]
}

run "client_network_with_host_bits" {
  command = plan
  variables {
    clients = ["192.0.2.1/24"]
  }
  expect_failures = [var.clients]
}

run "client_network_mask_too_long" {
  command = plan
  variables {
    clients = ["192.0.2.0/33"]
  }
  expect_failures = [var.clients]
}

run "client_network_a_name" {
  command = plan
  variables {
    clients = ["office/24"]
  }
  expect_failures = [var.clients]
}

run "client_network_twice" {
  command = plan
  variables {
    clients = ["192.0.2.0/24", "192.0.2.0/24"]
  }
  expect_failures = [var.clients]
}

run "operators_everywhere" {
  command = plan
  variables {
    operators = ["0.0.0.0/0"]
  }
  expect_failures = [var.operators]
}

run "operators_everywhere_ipv6" {
  command = plan
  variables {
    operators = ["::/0"]
  }
  expect_failures = [var.operators]
}

run "operator_network_with_host_bits" {
  command = plan
  variables {
    operators = ["10.1.2.3/8"]
  }
  expect_failures = [var.operators]
}

run "operator_network_empty" {
  command = plan
  variables {
    operators = [""]
  }
  expect_failures = [var.operators]
}

run "token_of_no_node" {
  command = plan
  variables {
    tokens = { eu-7 = "rhumb1.AAAAAAAAAAAAAAAAAAAA" }
  }
  expect_failures = [var.tokens]
}

run "token_of_another_form" {
  command = plan
  variables {
    tokens = { eu-1 = "s3cret" }
  }
  expect_failures = [var.tokens]
}

run "token_of_another_version" {
  command = plan
  variables {
    tokens = { eu-1 = "rhumb2.AAAAAAAAAAAAAAAAAAAA" }
  }
  expect_failures = [var.tokens]
}

run "token_with_line_end" {
  command = plan
  variables {
    tokens = { eu-1 = "rhumb1.AAAAAAAAAAAAAAAAAAAA\n" }
  }
  expect_failures = [var.tokens]
}

run "token_twice" {
  command = plan
  variables {
    tokens = { eu-1 = "rhumb1.AAAAAAAAAAAAAAAAAAAA", eu-2 = "rhumb1.AAAAAAAAAAAAAAAAAAAA" }
  }
  expect_failures = [var.tokens]
}

run "enrolled_is_no_node" {
  command = plan
  variables {
    enrolled = ["eu-7"]
  }
  expect_failures = [var.enrolled]
}

run "package_without_tls" {
  command = plan
  variables {
    package = { url = "http://example.com/rhumb.deb", sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
  }
  expect_failures = [var.package]
}

run "package_that_is_no_deb" {
  command = plan
  variables {
    package = { url = "https://example.com/rhumb.rpm", sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
  }
  expect_failures = [var.package]
}

run "package_url_with_shell" {
  command = plan
  variables {
    package = { url = "https://example.com/$(id).deb", sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
  }
  expect_failures = [var.package]
}

run "package_sum_too_short" {
  command = plan
  variables {
    package = { url = "https://example.com/rhumb.deb", sha256 = "abc" }
  }
  expect_failures = [var.package]
}

run "disk_without_path" {
  command = plan
  variables {
    data_disk = { device = "nvme1n1" }
  }
  expect_failures = [var.data_disk]
}

run "disk_with_unknown_filesystem" {
  command = plan
  variables {
    data_disk = { device = "/dev/sdb", filesystem = "ntfs" }
  }
  expect_failures = [var.data_disk]
}

run "log_level_unknown" {
  command = plan
  variables {
    log_level = "verbose"
  }
  expect_failures = [var.log_level]
}
