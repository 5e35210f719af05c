locals {
  # Regions in the order of their ordinals. The names of a map are sorted, so without ordinals a new region named "ap" would
  # become the first and take the founder's place.
  order = [for key in sort([for name, r in var.regions : format("%03d %s", r.ordinal, name)]) : split(" ", key)[1]]

  # Ordinals of the nodes of each region, ascending. The padding sorts 10 behind 9.
  ordinals = {
    for name, r in var.regions : name => r.nodes == null ? range(1, r.count + 1) : [
      for key in sort([for k in keys(r.nodes) : format("%03d", tonumber(k))]) : tonumber(key)
    ]
  }

  nodes = merge([
    for region in local.order : {
      for ordinal in local.ordinals[region] : "${region}-${ordinal}" => {
        region   = region
        ordinal  = ordinal
        place    = coalesce(var.regions[region].place, region)
        location = var.regions[region].location
        zone = (var.regions[region].nodes == null
          ? var.regions[region].zones[(ordinal - 1) % length(var.regions[region].zones)]
          : var.regions[region].nodes[tostring(ordinal)].zone
        )
        instance = try(coalesce(try(var.regions[region].nodes[tostring(ordinal)].instance, null), var.regions[region].instance), null)
        disk_gib = try(coalesce(try(var.regions[region].nodes[tostring(ordinal)].disk_gib, null), var.regions[region].disk_gib), null)
        memory   = try(coalesce(try(var.regions[region].nodes[tostring(ordinal)].memory, null), var.regions[region].memory), null)
      }
    }
  ]...)

  first_nodes = { for region in local.order : region => "${region}-${local.ordinals[region][0]}" }
  founder     = coalesce(var.founder, local.first_nodes[local.order[0]])

  # A node joins nodes that are older than itself: the first nodes of up to three earlier regions, and up to two nodes before it
  # in its own region. So a new region or node changes the list of no other node. The founder has no older node. It lists the next
  # two of its region, so that a founder that was installed again finds the cluster instead of creating a second one.
  joins = {
    for name, n in local.nodes : name => distinct([
      for other in concat(
        slice([for r in local.order : local.first_nodes[r] if var.regions[r].ordinal < var.regions[n.region].ordinal], 0,
        min(3, length([for r in local.order : r if var.regions[r].ordinal < var.regions[n.region].ordinal]))),
        [for i, ordinal in local.ordinals[n.region] : "${n.region}-${ordinal}" if i < 2 && ordinal < n.ordinal],
        name == local.founder ? [for i, ordinal in local.ordinals[n.region] : "${n.region}-${ordinal}" if i < 3 && ordinal > n.ordinal] : [],
        # A founder that the operator chose is older than every other node.
        var.founder == null ? [] : [local.founder],
      ) : other if other != name
    ])
  }

  # An IPv6 address needs brackets before a port.
  endpoints = {
    for name, a in var.addresses : name => format("%s:%d", strcontains(a.advertise, ":") ? "[${a.advertise}]" : a.advertise, var.ports.main)
  }
  seeds = { for name, others in local.joins : name => concat([for other in others : local.endpoints[other]], var.extra_seeds) }

  # The rule of the metadata group: five voters for five regions or more, three for three nodes or more, otherwise one. The cluster
  # chooses and replaces the voters; this number is for capacity and alarms.
  voters = length(var.regions) >= 5 && length(local.nodes) >= 5 ? 5 : length(local.nodes) >= 3 ? 3 : 1

  # How many regions may fail before the metadata group loses its majority, if the voters are spread evenly.
  voters_per_region  = ceil(local.voters / length(var.regions))
  regions_may_fail   = floor(((local.voters - 1) / 2) / local.voters_per_region)
  zones_used         = { for region in local.order : region => distinct([for n in values(local.nodes) : n.zone if n.region == region]) }
  regions_short_zone = [for region in local.order : region if length(local.zones_used[region]) < var.replicas]
}

# Checks warn and do not stop a plan: a test cluster in one zone is legitimate.
check "zones" {
  assert {
    condition     = length(local.regions_short_zone) == 0
    error_message = "${join(", ", local.regions_short_zone)}: fewer zones than the ${var.replicas} replicas of a range, so the failure of one zone takes several replicas."
  }
}

check "regions" {
  assert {
    condition     = local.regions_may_fail >= 1
    error_message = "The cluster does not survive the loss of a region: it has ${length(var.regions)} regions and ${local.voters} voters of the metadata. Three regions survive the loss of one."
  }
}

check "clients" {
  assert {
    condition     = !contains(var.clients, "0.0.0.0/0") && !contains(var.clients, "::/0")
    error_message = "clients: the main port is open to the whole internet. Clients still need a certificate or password, but every host can try."
  }
}
