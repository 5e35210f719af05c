// Package authority issues the certificates of a cluster. An authority is
// a directory: the signing key, the certificates that nodes trust, and the
// ledger of all tokens and certificates. The commands of `rhumb
// authority` and `rhumb token` work on the directory; Server offers
// enrolment and renewal to nodes over HTTPS. Neither needs the cluster,
// and the cluster runs without both until certificates expire.
//
// # Files
//
//	authority.key   private key, PKCS #8 in PEM, mode 0600
//	ca.crt          certificates of the authority that nodes trust, the current one first
//	cross.crt       certificates of newer keys signed by older ones; absent before a rotation
//	cluster         id of the cluster
//	addresses       where nodes reach the server, one HOST:PORT per line
//	ledger, mark    see package ledger
//	lock            locked while a process uses the ledger
//
// # Keys
//
// The key is stored in this directory and nowhere else. It is in no node's
// directory, not in the metadata and not in backups of nodes, so a node
// that is broken into cannot mint identities. A rotation replaces the key:
// the new certificate is signed with its own key and with the old one (cross.crt).
// Chains contain the cross-signed certificate, so a node that trusts only
// the old key accepts certificates of the new one.
package authority
