terraform {
  required_version = ">= 1.11"
  required_providers {
    hcloud = {
      source  = "hetznercloud/hcloud"
      version = "~> 1.58"
    }
  }
}

# The token of the account is in HCLOUD_TOKEN.
provider "hcloud" {}
