module "core" {
  source    = "../core"
  regions   = var.regions
  replicas  = var.replicas
  operators = var.operators
  clients   = var.clients
  package   = var.package
  tokens    = var.tokens
  founded   = var.founded
  enrolled  = var.enrolled
  data_disk = { device = "/dev/disk/by-id/google-rhumb" }
  addresses = { for name, ip in google_compute_address.node : name => { advertise = ip.address } }
}

locals {
  # The networks of one rule are of one family; nodes have IPv4 addresses here.
  rules = merge([
    for name, rule in module.core.firewall : {
      for family in ["4", "6"] : "${name}-ipv${family}" => merge(rule, {
        networks = rule.from == "peers" ? values(rule.networks) : [for n in values(rule.networks) : n if strcontains(n, ":") == (family == "6")]
      }) if rule.from == "peers" ? family == "4" : length([for n in keys(rule.networks) : n if strcontains(n, ":") == (family == "6")]) > 0
    } if rule.to == "node"
  ]...)
}

resource "google_compute_network" "rhumb" {
  name                    = "rhumb"
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "region" {
  for_each      = module.core.regions
  name          = "rhumb-${each.key}"
  network       = google_compute_network.rhumb.id
  region        = each.value.place
  ip_cidr_range = cidrsubnet("10.0.0.0/8", 8, each.value.ordinal)
}

resource "google_compute_firewall" "node" {
  depends_on    = [module.leave]
  for_each      = local.rules
  name          = "rhumb-${each.key}"
  network       = google_compute_network.rhumb.id
  direction     = "INGRESS"
  source_ranges = each.value.networks
  target_tags   = ["rhumb-node"]
  allow {
    protocol = each.value.protocol
    ports    = [tostring(each.value.port)]
  }
}

# Addresses exist before machines, because the files of a machine contain addresses of others.
resource "google_compute_address" "node" {
  for_each = module.core.nodes
  name     = "rhumb-${each.key}"
  region   = each.value.place
}

# The disk outlives its machine.
resource "google_compute_disk" "node" {
  for_each = module.core.nodes
  name     = "rhumb-${each.key}"
  zone     = each.value.zone
  type     = "pd-ssd"
  size     = coalesce(each.value.disk_gib, var.disk_gib)
}

resource "google_compute_instance" "node" {
  for_each     = module.core.nodes
  name         = "rhumb-${each.key}"
  zone         = each.value.zone
  machine_type = coalesce(each.value.instance, var.instance)
  tags         = ["rhumb-node"]

  boot_disk {
    initialize_params {
      image = var.image
    }
  }

  attached_disk {
    source      = google_compute_disk.node[each.key].id
    device_name = "rhumb"
  }

  network_interface {
    subnetwork = google_compute_subnetwork.region[each.value.region].id
    access_config {
      nat_ip = google_compute_address.node[each.key].address
    }
  }

  metadata = {
    user-data              = module.core.cloud_init[each.key]
    ssh-keys               = "rhumb-admin:${var.public_key}"
    block-project-ssh-keys = "true"
  }

  shielded_instance_config {
    enable_secure_boot = true
  }

  # A newer image or other user data must not replace a machine with data.
  lifecycle {
    ignore_changes = [boot_disk, metadata["user-data"]]
  }
}

# Nodes and regions leave the cluster before their machines go. Firewalls depend on it: their rules are those of all nodes.
module "leave" {
  source     = "../leave"
  nodes      = keys(module.core.nodes)
  regions    = keys(module.core.regions)
  endpoints  = values(module.core.endpoints)
  operator   = var.operator
  depends_on = [google_compute_instance.node]
}
