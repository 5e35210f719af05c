// Package authority issues the certificates of a cluster. An authority is a directory: the signing
// key, the certificates that nodes trust, and the ledger of all tokens and certificates. The
// commands of `rhumb authority` and `rhumb token` work on the directory; Server offers enrolment
// and renewal to nodes over HTTPS. Neither needs the cluster, and the cluster runs without both
// until certificates expire.
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
// The key is stored in this directory and nowhere else. It is in no node's directory, not in the
// metadata and not in backups of nodes, so a node that is broken into cannot mint identities. A
// rotation replaces the key: the new certificate is signed with its own key and with the old one
// (cross.crt). Chains contain the cross-signed certificate, so a node that trusts only the old key
// accepts certificates of the new one.
//
// # Enrolment
//
// A node that has a token asks for its first certificate in three steps. It connects and checks
// that the server's chain contains the pinned key. It compares the Date of an answer with its own
// clock, because a certificate that is not valid yet would look like a broken cluster. Only then
// does it send the token with a certificate request. The authority takes the name of the node from
// the ledger: neither the token nor the request can ask for another name.
//
// The use of the token and the certificate are two records of one write to the ledger, which is
// synced before the answer leaves. If the answer is lost, the node sends the same request again.
// The ledger knows the hash of its key, so the same key gets another certificate and every other
// key is refused.
//
// # Renewal
//
// A node that has a certificate presents it to renew. A certificate that expired less than thirty
// days ago is accepted if it is the newest of its node: a node that was switched off for two weeks
// then starts without a person, while an old backup of its files is worthless.
//
// # Rotation
//
// Rotate generates a key and has its certificate signed twice: with the key itself, for nodes that
// fetch the new list of authorities, and with the old key, for nodes that have not fetched it yet.
// The chain of every certificate contains the second form. So the order in which nodes learn of a
// rotation does not matter, and neither does a token that pins the old key. The certificates are
// written before the key: if the process dies in between, the authority continues with the old key
// and trusts a certificate whose key does not exist.
//
// Retire removes an old key from the list. It refuses while the newest certificate of somebody was
// signed with that key, because their connections would end.
//
// # Stolen secrets
//
// A stolen token is worth one certificate, if the thief is faster than the node. The node then
// fails with an error that says so. A stolen key of a node is worth connections as that node until
// its certificate is revoked in the metadata and at the authority. A stolen directory of the
// authority is worth everything: rotate, retire the old key with force, and distrust it in the
// metadata.
//
// # Processes
//
// The server and any number of commands may use one directory at the same time. Each operation
// locks the ledger and reads the records that others appended. Keys and certificates are read again
// when their files change, so a rotation on the command line takes effect in the server without a
// restart.
//
// # Bounds
//
// The server accepts strangers, so everything about a connection is bounded: the number of
// connections in total and of each address, the time for the handshake, the header and the body,
// their sizes, and the number of refused requests of each address. Requests use HTTP/1, in which a
// connection carries one request at a time. The ledger grows by a record for each token and
// certificate, and refuses to grow beyond a gibibyte.
package authority
