// Package identity holds the names, certificates and trust of the members of a cluster, and the TLS
// that all ports use.
//
// Each certificate names its bearer in exactly one URI, "rhumb://<cluster>/<role>/<name>". The role
// in the URI and the extended key usage must agree, so that the certificate of a user never passes
// as the certificate of a node:
//
//	node       server and client   a node; its name is the operator's word for it, such as eu-1
//	user       client only         a database user; the metadata says what the user may do
//	operator   client only         full administration of the cluster, without metadata
//	authority  server only         the server that issues certificates to nodes
//
// # Trust
//
// A Verifier decides whether a chain of certificates is valid. It trusts the authorities in the CA
// file and those in the metadata, except authorities that the metadata distrusts, and rejects
// certificates that the metadata revokes, by authority and serial number. Host names and addresses in certificates are ignored: a
// node is identified by its name in the cluster, wherever it runs.
//
// # Source
//
// A Source loads the certificate, the key and the authorities of one member from files, loads them
// again when they change, and makes TLS configurations and gRPC credentials of them. It keeps a
// list of its open connections. When trust changes or a certificate expires, it closes the
// connections whose certificate became invalid; the other side then connects again with its
// newest certificate.
package identity
