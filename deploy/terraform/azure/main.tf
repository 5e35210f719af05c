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
  addresses = { for name, ip in azurerm_public_ip.node : name => { advertise = ip.ip_address } }
}

locals {
  # A rule takes several networks but not of both families. Priorities follow the names of all rules that core can make, so that a rule that appears later renumbers
  # no other.
  priorities = {
    clients-main    = 240
    operators-main  = 250
    operators-admin = 260
    operators-ssh   = 270
  }
  rules = merge([
    for region in module.core.order : merge([
      for name, rule in module.core.firewall : {
        for family in ["4", "6"] : "${region}/${name}-ipv${family}" => {
          region   = region
          name     = "${name}-ipv${family}"
          protocol = title(rule.protocol)
          port     = rule.port
          networks = [for n in values(rule.networks) : n if strcontains(n, ":") == (family == "6")]
          priority = local.priorities[name] + tonumber(family)
        } if length([for n in keys(rule.networks) : n if strcontains(n, ":") == (family == "6")]) > 0
      } if rule.to == "node" && rule.from != "peers"
    ]...)
  ]...)

  # What peers may reach: ports by protocol. All rules of peers have the same networks.
  peer_ports = {
    for protocol in ["tcp", "udp"] : protocol => sort(distinct([
      for rule in values(module.core.firewall) : tostring(rule.port) if rule.to == "node" && rule.from == "peers" && rule.protocol == protocol
    ]))
  }
  # One rule for each region, node and protocol, so that a node that goes takes its own rules with it and changes no other: each rule is only created and
  # destroyed. A rule with all nodes would have to change after a node has left, and to go after its region has, and Terraform has one order for
  # both. The priority is that of the node, by its ordinals.
  peers = merge(flatten([
    for region in module.core.order : [
      for protocol, ports in local.peer_ports : {
        for node, network in module.core.firewall["peers-main"].networks : "${region}/${node}-${protocol}" => {
          region   = region
          name     = "peer-${node}-${protocol}"
          protocol = title(protocol)
          ports    = ports
          network  = network
          priority = 300 + 2 * ((module.core.regions[module.core.nodes[node].region].ordinal - 1) * 60 + module.core.nodes[node].ordinal - 1) + (protocol == "udp" ? 1 : 0)
        }
      }
    ]
  ])...)
}

resource "azurerm_resource_group" "region" {
  for_each = module.core.regions
  name     = "${var.name}-${each.key}"
  location = each.value.place
}

resource "azurerm_virtual_network" "region" {
  for_each            = module.core.regions
  name                = "rhumb"
  resource_group_name = azurerm_resource_group.region[each.key].name
  location            = each.value.place
  address_space       = [cidrsubnet("10.0.0.0/8", 8, each.value.ordinal)]
}

resource "azurerm_subnet" "region" {
  for_each             = module.core.regions
  name                 = "nodes"
  resource_group_name  = azurerm_resource_group.region[each.key].name
  virtual_network_name = azurerm_virtual_network.region[each.key].name
  address_prefixes     = [cidrsubnet(cidrsubnet("10.0.0.0/8", 8, each.value.ordinal), 4, 0)]
}

resource "azurerm_network_security_group" "node" {
  for_each            = module.core.regions
  name                = "rhumb-node"
  resource_group_name = azurerm_resource_group.region[each.key].name
  location            = each.value.place
}

resource "azurerm_network_security_rule" "node" {
  for_each                    = local.rules
  name                        = each.value.name
  resource_group_name         = azurerm_resource_group.region[each.value.region].name
  network_security_group_name = azurerm_network_security_group.node[each.value.region].name
  priority                    = each.value.priority
  direction                   = "Inbound"
  access                      = "Allow"
  protocol                    = each.value.protocol
  source_port_range           = "*"
  destination_port_range      = tostring(each.value.port)
  source_address_prefixes     = each.value.networks
  destination_address_prefix  = "*"
}

# Nodes have IPv4 addresses here.
resource "azurerm_network_security_rule" "peer" {
  for_each                    = local.peers
  name                        = each.value.name
  resource_group_name         = azurerm_resource_group.region[each.value.region].name
  network_security_group_name = azurerm_network_security_group.node[each.value.region].name
  priority                    = each.value.priority
  direction                   = "Inbound"
  access                      = "Allow"
  protocol                    = each.value.protocol
  source_port_range           = "*"
  destination_port_ranges     = each.value.ports
  source_address_prefix       = each.value.network
  destination_address_prefix  = "*"
}

# The default rules of a security group admit the whole virtual network.
resource "azurerm_network_security_rule" "nothing_else" {
  for_each                    = module.core.regions
  name                        = "nothing-else"
  resource_group_name         = azurerm_resource_group.region[each.key].name
  network_security_group_name = azurerm_network_security_group.node[each.key].name
  priority                    = 4096
  direction                   = "Inbound"
  access                      = "Deny"
  protocol                    = "*"
  source_port_range           = "*"
  destination_port_range      = "*"
  source_address_prefix       = "*"
  destination_address_prefix  = "*"
}

resource "azurerm_subnet_network_security_group_association" "region" {
  for_each                  = module.core.regions
  subnet_id                 = azurerm_subnet.region[each.key].id
  network_security_group_id = azurerm_network_security_group.node[each.key].id
}

# Addresses exist before machines, because the files of a machine contain addresses of others.
resource "azurerm_public_ip" "node" {
  for_each            = module.core.nodes
  name                = each.key
  resource_group_name = azurerm_resource_group.region[each.value.region].name
  location            = each.value.place
  allocation_method   = "Static"
  sku                 = "Standard"
  zones               = [each.value.zone]
}

resource "azurerm_network_interface" "node" {
  for_each            = module.core.nodes
  name                = each.key
  resource_group_name = azurerm_resource_group.region[each.value.region].name
  location            = each.value.place
  ip_configuration {
    name                          = "node"
    subnet_id                     = azurerm_subnet.region[each.value.region].id
    private_ip_address_allocation = "Dynamic"
    public_ip_address_id          = azurerm_public_ip.node[each.key].id
  }
}

resource "azurerm_linux_virtual_machine" "node" {
  for_each              = module.core.nodes
  name                  = each.key
  resource_group_name   = azurerm_resource_group.region[each.value.region].name
  location              = each.value.place
  zone                  = each.value.zone
  size                  = coalesce(each.value.instance, var.instance)
  admin_username        = "rhumb-admin"
  network_interface_ids = [azurerm_network_interface.node[each.key].id]
  custom_data           = base64encode(module.core.cloud_init[each.key])

  admin_ssh_key {
    username   = "rhumb-admin"
    public_key = var.public_key
  }

  # Data is on this disk: the provider attaches others only after the machine has started, when cloud-init has already looked.
  os_disk {
    caching              = "ReadOnly"
    storage_account_type = "Premium_LRS"
    disk_size_gb         = coalesce(each.value.disk_gib, var.disk_gib)
  }

  source_image_reference {
    publisher = "Debian"
    offer     = "debian-12"
    sku       = "12-gen2"
    version   = "latest"
  }

  # A newer image or other user data must not replace a machine with data.
  lifecycle {
    ignore_changes = [custom_data, source_image_reference]
  }
}

# Nodes and regions leave the cluster before their machines go, and before the rules that admit them. The group of a region and its association
# with the subnet count too: without them nothing is admitted.
module "leave" {
  source    = "../leave"
  nodes     = keys(module.core.nodes)
  regions   = keys(module.core.regions)
  endpoints = values(module.core.endpoints)
  operator  = var.operator
  depends_on = [
    azurerm_linux_virtual_machine.node, azurerm_network_security_rule.peer, azurerm_network_security_rule.node,
    azurerm_network_security_rule.nothing_else, azurerm_subnet_network_security_group_association.region,
  ]
}
