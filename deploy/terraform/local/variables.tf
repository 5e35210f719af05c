variable "regions" {
  description = "The regions of the cluster; see ../core/variables.tf, which checks them. The ordinal is the third octet of the addresses."
  type        = any
}

variable "replicas" {
  description = "Copies of each range that tables keep in their home region."
  type        = number
  default     = 3
}

variable "memory" {
  description = "Memory limit of a node whose region has none. The hosts share the memory of this machine."
  type        = string
  default     = "256MiB"
}

variable "network" {
  description = "Network of the hosts on this machine, of the form 10.N.0.0/16. This machine has its first address."
  type        = string
  default     = "10.77.0.0/16"
  validation {
    condition     = can(regex("^10\\.[0-9]{1,3}\\.0\\.0/16$", var.network)) && can(cidrhost(var.network, 0))
    error_message = "network: ${var.network}, want the form 10.N.0.0/16."
  }
}

variable "state_dir" {
  description = "Folder in which hostctl keeps the hosts."
  type        = string
  default     = "/var/lib/rhumb-hosts"
  validation {
    condition     = can(regex("^/[A-Za-z0-9/_.-]+$", var.state_dir))
    error_message = "state_dir: \"${var.state_dir}\" is not an absolute path of letters, digits, '/', '_', '.' and '-'."
  }
}

variable "operator_dir" {
  description = "Folder on this machine that receives the certificate and the key of the operator."
  type        = string
  validation {
    condition     = can(regex("^/[A-Za-z0-9/_.-]+$", var.operator_dir))
    error_message = "operator_dir: \"${var.operator_dir}\" is not an absolute path of letters, digits, '/', '_', '.' and '-'."
  }
}

variable "bin_dir" {
  description = "Folder with the programs rhumb and hostctl; see README.md for how to build them."
  type        = string
  validation {
    condition     = fileexists("${var.bin_dir}/rhumb") && fileexists("${var.bin_dir}/hostctl")
    error_message = "bin_dir: ${var.bin_dir} lacks rhumb or hostctl; README.md says how to build them."
  }
}

variable "clients" {
  description = "Networks of clients. Null means all hosts and this machine."
  type        = list(string)
  default     = null
}

variable "founded" {
  description = "True once the cluster exists."
  type        = bool
  default     = false
}
