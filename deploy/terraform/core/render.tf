locals {
  config = {
    for name, n in local.nodes : name => templatefile("${path.module}/templates/rhumb.yaml.tftpl", {
      name       = name
      region     = n.region
      ordinal    = n.ordinal
      location   = "${n.location.lat},${n.location.lon}"
      zone       = n.zone
      dir        = "/var/lib/rhumb"
      token_file = "/etc/rhumb/token" # read only if the node has no identity
      advertise  = var.addresses[name].advertise
      listen     = strcontains(var.addresses[name].advertise, ":") ? "[::]" : "0.0.0.0"
      ports      = var.ports
      seeds      = local.seeds[name]
      memory     = n.memory
      log_level  = var.log_level
    })
  }

  cloud_init = {
    for name, n in local.nodes : name => templatefile("${path.module}/templates/cloud-init.yaml.tftpl", {
      name      = name
      config    = local.config[name]
      token     = lookup(var.tokens, name, null)
      package   = var.package
      data_disk = var.data_disk
    })
  }

  # Nodes that start without an identity and without a token. The founder's token lets its node create the cluster.
  tokens_needed = {
    for name in keys(local.nodes) : name => {
      founder = name == local.founder && !var.founded
      create  = join(" ", concat(["rhumb token create --authority DIR --node ${name}"], name == local.founder && !var.founded ? ["--founder"] : []))
      # Reads the token from its standard input, on the host and as root.
      install = "install -m 0640 -o root -g rhumb /dev/stdin /etc/rhumb/token && systemctl start rhumb"
    } if !contains(var.enrolled, "*") && !contains(var.enrolled, name) && !contains(nonsensitive(keys(var.tokens)), name)
  }
}
