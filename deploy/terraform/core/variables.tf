variable "regions" {
  description = <<-EOT
    The regions of the cluster, by name. This is the variable that grows: a further region or node is one more line.

    ordinal   position in the history of the cluster, 1 to 250. Give a new region the next number. Never change or reuse one:
              the first nodes of earlier regions are the seeds of later ones, and layers derive networks from the number.
    location  latitude and longitude, which decide the distances between regions.
    zones     failure domains in the order in which `count` uses them. Append only: another order would move nodes.
    count     number of nodes, named <region>-1 and so on, spread over the zones in turn; or
    nodes     the nodes one by one, by ordinal, each with its zone. Use it when a node in the middle goes away.
    place     the name of the region at the provider, such as eu-central-1.
    instance  machine type, disk_gib size of the data disk, memory the limit of a node such as 4GiB; a node may override them.
  EOT
  nullable    = false
  type = map(object({
    ordinal  = number
    location = object({ lat = number, lon = number })
    zones    = optional(list(string), ["a", "b", "c"])
    count    = optional(number)
    nodes = optional(map(object({
      zone     = string
      instance = optional(string)
      disk_gib = optional(number)
      memory   = optional(string)
    })))
    place    = optional(string)
    instance = optional(string)
    disk_gib = optional(number)
    memory   = optional(string)
  }))

  validation {
    condition     = length(var.regions) >= 1 && length(var.regions) <= 250
    error_message = "regions: there are ${length(var.regions)}, want 1 to 250."
  }
  validation {
    condition     = alltrue([for name in keys(var.regions) : can(regex("^[a-z]([a-z0-9-]{0,56}[a-z0-9])?$", name))])
    error_message = "regions: these names are not usable: ${join(", ", [for name in keys(var.regions) : "\"${name}\"" if !can(regex("^[a-z]([a-z0-9-]{0,56}[a-z0-9])?$", name))])}. A name has 1 to 58 characters of a-z, 0-9 and '-', begins with a letter and does not end with '-', because it begins the names of nodes in certificates."
  }
  validation {
    condition     = alltrue([for r in values(var.regions) : r.ordinal >= 1 && r.ordinal <= 250 && floor(r.ordinal) == r.ordinal])
    error_message = "regions: ${join(", ", [for name, r in var.regions : "${name} has ordinal ${r.ordinal}" if !(r.ordinal >= 1 && r.ordinal <= 250 && floor(r.ordinal) == r.ordinal)])}; an ordinal is a whole number from 1 to 250."
  }
  validation {
    condition     = length(distinct([for r in values(var.regions) : r.ordinal])) == length(var.regions)
    error_message = "regions: two regions have the same ordinal (${join(", ", [for name, r in var.regions : "${name} ${r.ordinal}"])}). Give the newer region the next free number."
  }
  validation {
    condition     = alltrue([for r in values(var.regions) : abs(r.location.lat) <= 90 && abs(r.location.lon) <= 180])
    error_message = "regions: ${join(", ", [for name, r in var.regions : "${name} is at ${r.location.lat},${r.location.lon}" if !(abs(r.location.lat) <= 90 && abs(r.location.lon) <= 180)])}; a latitude is -90 to 90 and a longitude -180 to 180."
  }
  validation {
    condition     = alltrue([for r in values(var.regions) : (r.count == null) != (r.nodes == null)])
    error_message = "regions: ${join(", ", [for name, r in var.regions : name if(r.count == null) == (r.nodes == null)])}: give either count or nodes, not both and not neither."
  }
  validation {
    condition     = alltrue([for r in values(var.regions) : r.count == null ? true : r.count >= 1 && r.count <= 999 && floor(r.count) == r.count])
    error_message = "regions: ${join(", ", [for name, r in var.regions : "${name} has count ${r.count}" if r.count == null ? false : !(r.count >= 1 && r.count <= 999 && floor(r.count) == r.count)])}; a count is a whole number from 1 to 999. To remove a region, remove its line."
  }
  validation {
    condition     = alltrue([for r in values(var.regions) : alltrue([for k in keys(coalesce(r.nodes, {})) : can(regex("^[1-9][0-9]{0,2}$", k))])])
    error_message = "regions: ${join(", ", flatten([for name, r in var.regions : [for k in keys(coalesce(r.nodes, {})) : "${name} has node \"${k}\"" if !can(regex("^[1-9][0-9]{0,2}$", k))]]))}; the keys of nodes are ordinals from 1 to 999, without leading zeros."
  }
  validation {
    condition     = alltrue([for r in values(var.regions) : r.nodes == null ? true : length(r.nodes) >= 1])
    error_message = "regions: ${join(", ", [for name, r in var.regions : name if r.nodes == null ? false : length(r.nodes) < 1])}: nodes is empty. To remove a region, remove its line."
  }
  validation {
    condition     = sum(concat([0], [for r in values(var.regions) : r.count == null ? length(coalesce(r.nodes, {})) : max(r.count, 0)])) <= 1024
    error_message = "regions: there are ${sum(concat([0], [for r in values(var.regions) : r.count == null ? length(coalesce(r.nodes, {})) : max(r.count, 0)]))} nodes; a cluster has at most 1024."
  }
  validation {
    condition     = alltrue([for r in values(var.regions) : length(r.zones) >= 1])
    error_message = "regions: ${join(", ", [for name, r in var.regions : name if length(r.zones) < 1])}: zones is empty; name at least one."
  }
  validation {
    condition     = alltrue([for r in values(var.regions) : length(distinct(r.zones)) == length(r.zones)])
    error_message = "regions: ${join(", ", [for name, r in var.regions : "${name} has zones ${join(" ", r.zones)}" if length(distinct(r.zones)) != length(r.zones)])}; each zone stands once, or replicas that should fail apart would share a zone."
  }
  validation {
    condition     = alltrue([for r in values(var.regions) : alltrue([for z in concat(r.zones, [for n in values(coalesce(r.nodes, {})) : n.zone]) : can(regex("^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$", z))])])
    error_message = "regions: ${join(", ", flatten([for name, r in var.regions : [for z in concat(r.zones, [for n in values(coalesce(r.nodes, {})) : n.zone]) : "${name} has zone \"${z}\"" if !can(regex("^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$", z))]]))}; a zone has 1 to 63 letters, digits, '_', '.' and '-', and begins with a letter or digit."
  }
  validation {
    condition     = alltrue([for r in values(var.regions) : alltrue([for n in values(coalesce(r.nodes, {})) : contains(r.zones, n.zone)])])
    error_message = "regions: ${join(", ", flatten([for name, r in var.regions : [for k, n in coalesce(r.nodes, {}) : "node ${k} of ${name} is in zone ${n.zone}" if !contains(r.zones, n.zone)]]))}, which the zones of the region do not list."
  }
  validation {
    condition     = alltrue(flatten([for r in values(var.regions) : [for d in concat([r.disk_gib], [for n in values(coalesce(r.nodes, {})) : n.disk_gib]) : d == null ? true : d >= 1 && d <= 65536 && floor(d) == d]]))
    error_message = "regions: a disk_gib is not a whole number from 1 to 65536."
  }
  validation {
    condition     = alltrue(flatten([for r in values(var.regions) : [for m in concat([r.memory], [for n in values(coalesce(r.nodes, {})) : n.memory]) : m == null ? true : can(regex("^[1-9][0-9]*(MiB|GiB|TiB)$", m))]]))
    error_message = "regions: a memory is not a whole number with MiB, GiB or TiB, such as 4GiB."
  }
}

variable "replicas" {
  description = "Copies of each range that the tables of this cluster keep. All copies are in one region, so every region needs at least as many nodes."
  type        = number
  default     = 3
  nullable    = false
  validation {
    condition     = var.replicas >= 1 && var.replicas <= 7 && floor(var.replicas) == var.replicas
    error_message = "replicas: ${var.replicas}, want a whole number from 1 to 7."
  }
  validation {
    condition     = alltrue([for r in values(var.regions) : (r.count == null ? length(coalesce(r.nodes, {})) : r.count) >= var.replicas])
    error_message = "replicas: tables keep ${var.replicas} copies in their home region, but ${join(", ", [for name, r in var.regions : "${name} has ${r.count == null ? length(coalesce(r.nodes, {})) : r.count} nodes" if(r.count == null ? length(coalesce(r.nodes, {})) : r.count) < var.replicas])}. Add nodes, or lower replicas and create tables with --replicas ${var.replicas == 1 ? 1 : var.replicas - 1}."
  }
}

variable "founder" {
  description = "Node that creates the cluster. Null means the first node of the region with the lowest ordinal."
  type        = string
  default     = null
  validation {
    condition     = var.founder == null ? true : contains(keys(local.nodes), var.founder)
    error_message = "founder: there is no node ${coalesce(var.founder, "-")}; the nodes are ${join(", ", keys(local.nodes))}."
  }
}

variable "founded" {
  description = "True once the cluster exists. From then on no node is asked to create it, so a founder that is installed again joins like any other node."
  type        = bool
  default     = false
  nullable    = false
}

variable "addresses" {
  description = <<-EOT
    Addresses of the nodes by name, given by the layer. advertise is the IP address or DNS name by which every other node and client
    reaches the node. sources lists the IP addresses from which the node sends, which firewalls admit; the default is advertise.
  EOT
  type = map(object({
    advertise = string
    sources   = optional(list(string))
  }))
  nullable = false
  validation {
    condition     = length(setsubtract(keys(local.nodes), keys(var.addresses))) == 0
    error_message = "addresses: missing for ${join(", ", sort(setsubtract(keys(local.nodes), keys(var.addresses))))}; the layer gives every node an address."
  }
  validation {
    condition     = length(setsubtract(keys(var.addresses), keys(local.nodes))) == 0
    error_message = "addresses: ${join(", ", sort(setsubtract(keys(var.addresses), keys(local.nodes))))} is not a node of any region."
  }
  validation {
    condition     = alltrue([for a in values(var.addresses) : can(cidrhost("${a.advertise}/32", 0)) || can(cidrhost("${a.advertise}/128", 0)) || can(regex("^([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\\.)*[A-Za-z]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$", a.advertise))])
    error_message = "addresses: ${join(", ", [for name, a in var.addresses : "${name} advertises \"${a.advertise}\"" if !(can(cidrhost("${a.advertise}/32", 0)) || can(cidrhost("${a.advertise}/128", 0)) || can(regex("^([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\\.)*[A-Za-z]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$", a.advertise)))])}; want an IP address or a DNS name, without a port."
  }
  validation {
    condition     = alltrue([for a in values(var.addresses) : !contains(["0.0.0.0", "::", "127.0.0.1", "::1", "localhost"], a.advertise)])
    error_message = "addresses: ${join(", ", [for name, a in var.addresses : "${name} advertises ${a.advertise}" if contains(["0.0.0.0", "::", "127.0.0.1", "::1", "localhost"], a.advertise)])}, which no other host can reach."
  }
  validation {
    condition     = length(distinct([for a in values(var.addresses) : a.advertise])) == length(var.addresses)
    error_message = "addresses: ${join(", ", sort([for name, a in var.addresses : "${name} (${a.advertise})" if length([for b in values(var.addresses) : b if b.advertise == a.advertise]) > 1]))} advertise the same address."
  }
  validation {
    condition     = alltrue(flatten([for a in values(var.addresses) : [for s in coalesce(a.sources, [a.advertise]) : can(cidrhost("${s}/32", 0)) || can(cidrhost("${s}/128", 0))]]))
    error_message = "addresses: firewalls need IP addresses, but ${join(", ", flatten([for name, a in var.addresses : [for s in coalesce(a.sources, [a.advertise]) : "${name} sends from \"${s}\"" if !(can(cidrhost("${s}/32", 0)) || can(cidrhost("${s}/128", 0)))]]))}. A node that advertises a DNS name needs sources."
  }
}

variable "extra_seeds" {
  description = "Further HOST[:PORT] that nodes may join, tried after the seeds. Needed only to install a host again while all its seeds are gone."
  type        = list(string)
  default     = []
  nullable    = false
  validation {
    condition     = alltrue([for s in var.extra_seeds : can(regex("^(\\[[0-9a-fA-F:.]+\\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?$", s))])
    error_message = "extra_seeds: ${join(", ", [for s in var.extra_seeds : "\"${s}\"" if !can(regex("^(\\[[0-9a-fA-F:.]+\\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?$", s))])}; want HOST or HOST:PORT, with an IPv6 address in brackets."
  }
}

variable "ports" {
  description = "Ports of every node, and of the authority."
  type = object({
    main      = optional(number, 7600)
    heartbeat = optional(number, 7601)
    gossip    = optional(number, 7602)
    admin     = optional(number, 7603)
    authority = optional(number, 7605)
  })
  default  = {}
  nullable = false
  validation {
    condition     = alltrue([for p in values(var.ports) : p >= 1024 && p <= 65535 && floor(p) == p])
    error_message = "ports: ${join(", ", [for name, p in var.ports : "${name} is ${p}" if !(p >= 1024 && p <= 65535 && floor(p) == p)])}; want a whole number from 1024 to 65535, because the service is no superuser."
  }
  validation {
    condition     = length(distinct(values(var.ports))) == length(values(var.ports))
    error_message = "ports: two of ${join(", ", [for name, p in var.ports : "${name} ${p}"])} are the same."
  }
}

variable "clients" {
  description = "Networks of clients in CIDR form. They reach the main port of every node. Nobody by default."
  type        = list(string)
  default     = []
  nullable    = false
  validation {
    condition     = alltrue([for c in var.clients : can(cidrhost(c, 0))])
    error_message = "clients: ${join(", ", [for c in var.clients : "\"${c}\"" if !can(cidrhost(c, 0))])}; want networks such as 192.0.2.0/24."
  }
  validation {
    condition     = alltrue([for c in var.clients : try(lower(cidrhost(c, 0)) == lower(split("/", c)[0]), true)])
    error_message = "clients: ${join(", ", [for c in var.clients : "${c} has bits outside its mask, write ${try(cidrhost(c, 0), "?")}/${split("/", c)[1]}" if !try(lower(cidrhost(c, 0)) == lower(split("/", c)[0]), true)])}."
  }
  validation {
    condition     = length(distinct(var.clients)) == length(var.clients)
    error_message = "clients: a network stands twice in ${join(", ", var.clients)}."
  }
}

variable "operators" {
  description = "Networks of operators in CIDR form. They reach the main port, the admin port and SSH of every node. Nobody by default."
  type        = list(string)
  default     = []
  nullable    = false
  validation {
    condition     = alltrue([for c in var.operators : can(cidrhost(c, 0))])
    error_message = "operators: ${join(", ", [for c in var.operators : "\"${c}\"" if !can(cidrhost(c, 0))])}; want networks such as 192.0.2.0/24."
  }
  validation {
    condition     = alltrue([for c in var.operators : try(lower(cidrhost(c, 0)) == lower(split("/", c)[0]), true)])
    error_message = "operators: ${join(", ", [for c in var.operators : "${c} has bits outside its mask, write ${try(cidrhost(c, 0), "?")}/${split("/", c)[1]}" if !try(lower(cidrhost(c, 0)) == lower(split("/", c)[0]), true)])}."
  }
  validation {
    condition     = alltrue([for c in var.operators : tonumber(try(split("/", c)[1], 32)) > 0])
    error_message = "operators: ${join(", ", [for c in var.operators : c if tonumber(try(split("/", c)[1], 32)) == 0])} is the whole internet. Name the networks from which operators work."
  }
  validation {
    condition     = length(distinct(var.operators)) == length(var.operators)
    error_message = "operators: a network stands twice in ${join(", ", var.operators)}."
  }
}

variable "tokens" {
  description = <<-EOT
    One-time tokens by node, from `rhumb token create`. A token that is given here becomes part of the cloud-init of its node, and so
    of the state and of the provider's metadata. Leave the map empty to hand tokens over on another way; see tokens_needed.
  EOT
  type        = map(string)
  default     = {}
  nullable    = false
  sensitive   = true
  validation {
    condition     = length(setsubtract(keys(var.tokens), keys(local.nodes))) == 0
    error_message = "tokens: ${join(", ", sort(setsubtract(nonsensitive(keys(var.tokens)), keys(local.nodes))))} is not a node of any region."
  }
  validation {
    condition     = alltrue([for t in values(var.tokens) : can(regex("^rhumb1\\.[A-Za-z0-9_-]{16,}$", t))])
    error_message = "tokens: a token does not look like the output of `rhumb token create`, which begins with rhumb1."
  }
  validation {
    condition     = length(distinct(values(var.tokens))) == length(var.tokens)
    error_message = "tokens: two nodes have the same token. A token enrols one node; create one for each."
  }
}

variable "enrolled" {
  description = "Nodes that have their identity, or \"*\" for all. They need no token; see tokens_needed."
  type        = set(string)
  default     = []
  nullable    = false
  validation {
    condition     = length(setsubtract(var.enrolled, concat(["*"], keys(local.nodes)))) == 0
    error_message = "enrolled: ${join(", ", sort(setsubtract(var.enrolled, concat(["*"], keys(local.nodes)))))} is not a node of any region."
  }
}

variable "package" {
  description = "Debian package of Rhumb that a host installs at its first start. Null if the machine image contains Rhumb."
  type        = object({ url = string, sha256 = string })
  default     = null
  validation {
    condition     = var.package == null ? true : can(regex("^https://[A-Za-z0-9.-]+(:[0-9]+)?/[A-Za-z0-9._~/%+-]+\\.deb$", var.package.url))
    error_message = "package: url is ${try(var.package.url, "null")}; want https://HOST/PATH.deb."
  }
  validation {
    condition     = var.package == null ? true : can(regex("^[0-9a-f]{64}$", var.package.sha256))
    error_message = "package: sha256 is not 64 hexadecimal digits in lower case. Hosts refuse a package with another sum."
  }
}

variable "data_disk" {
  description = "Block device for /var/lib/rhumb on every host. It is formatted if it is empty. Null keeps the data on the root disk."
  type = object({
    device     = string
    filesystem = optional(string, "ext4")
  })
  default = null
  validation {
    condition     = var.data_disk == null ? true : can(regex("^/dev/[A-Za-z0-9/_.:-]+$", var.data_disk.device))
    error_message = "data_disk: device is ${try(var.data_disk.device, "null")}; want a path such as /dev/nvme1n1."
  }
  validation {
    condition     = var.data_disk == null ? true : contains(["ext4", "xfs"], var.data_disk.filesystem)
    error_message = "data_disk: filesystem is ${try(var.data_disk.filesystem, "null")}; want ext4 or xfs."
  }
}

variable "log_level" {
  description = "What nodes log: debug, info, warn or error."
  type        = string
  default     = "info"
  nullable    = false
  validation {
    condition     = contains(["debug", "info", "warn", "error"], var.log_level)
    error_message = "log_level: ${var.log_level} is none of debug, info, warn, error."
  }
}
