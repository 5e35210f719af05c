variable "regions" {
  description = "The regions of the cluster; see ../core/variables.tf, which checks them. place is a location of Azure, and zones are 1, 2 and 3."
  type        = any
  validation {
    condition = alltrue([for r in values(var.regions) : r.ordinal <= 30 && alltrue([
      for ordinal in(try(r.count, null) == null ? keys(try(r.nodes, {})) : [r.count]) : tonumber(ordinal) <= 60
    ])])
    error_message = "regions: priorities of rules suffice for regions with ordinals up to 30 and nodes with ordinals up to 60."
  }
}

variable "replicas" {
  description = "Copies of each range that tables keep in their home region."
  type        = number
  default     = 3
}

variable "operators" {
  description = "Networks of operators, such as 192.0.2.0/24."
  type        = list(string)
  default     = []
}

variable "clients" {
  description = "Networks of clients."
  type        = list(string)
  default     = []
}

variable "package" {
  description = "Debian package of Rhumb: url and sha256. Null if the image contains Rhumb."
  type        = object({ url = string, sha256 = string })
  default     = null
}

variable "tokens" {
  description = "Tokens to put into the user data, by node. Empty to hand them over on another way."
  type        = map(string)
  default     = {}
  sensitive   = true
}

variable "founded" {
  description = "True once the cluster exists."
  type        = bool
  default     = false
}

variable "enrolled" {
  description = "Nodes that have their identity, or \"*\" for all."
  type        = set(string)
  default     = []
}

variable "instance" {
  description = "Machine type of nodes whose region names none."
  type        = string
  default     = "Standard_D2ads_v6"
}

variable "disk_gib" {
  description = "Size of the disk for data, of nodes whose region names none."
  type        = number
  default     = 128
}

variable "public_key" {
  description = "SSH key of the operators."
  type        = string
}

variable "name" {
  description = "Prefix of the names of resource groups."
  type        = string
  default     = "rhumb"
}

variable "operator" {
  description = "Paths on the machine that runs Terraform: the program rhumb, and the identity of an operator. With it, nodes and regions that are removed from the variables leave the cluster before their machines go. Null leaves that to people."
  type        = object({ rhumb = string, ca = string, cert = string, key = string })
  default     = null
}
