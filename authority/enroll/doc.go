// Package enroll gets the certificate of a node from its authority, and keeps it fresh.
//
// # Files
//
// The folder <first data directory>/identity holds
//
//	node.crt        the certificate of the node and the chain to the authority
//	node.key        its private key, made here; it never leaves the node
//	ca.crt          the certificates to trust
//	authority.json  where the authority is, and the newest signed head of its ledger
//	pending.key     the key of an enrolment that has no answer yet
//	next/           a new set of files that is complete but not yet in place
//	lock            locked while a process enrols
//
// # Order
//
// The key of an enrolment is on disk before the first request. A node that dies at any moment asks
// again with the same key, which is the only key that the used token works with. The files of an
// answer are written to another folder, which is renamed to next once it is complete, and then
// moved one after the other. If the process dies between two of them, the next start moves the
// others.
//
// # Who may start
//
// Ensure decides before anything else of the node starts. With a valid certificate it does nothing,
// and reads no token. With an expired one it renews, and uses a new token if the renewal fails and
// there is one. With none it enrols. Two processes cannot enrol in one folder at the same time. The
// folder belongs to one data directory: a node whose directory is lost has lost its identity too,
// and needs a new token.
//
// # Trust
//
// During enrolment the node trusts the pinned key of the token and nothing else. Afterwards it
// trusts the authorities in ca.crt. A server must have the role of an authority in the same
// cluster. Host names do not count, so the authority may move to another address without a new
// certificate, and several addresses may lead to it.
//
// # Failures
//
// An enrolment retries until its token expires, with growing pauses, as long as the authority does
// not answer or is overloaded. A refusal is final. A wrong clock is final too, because a node whose
// clock is wrong would not be accepted by other nodes either.
//
// A renewal begins at two thirds of the life of a certificate and retries until the certificate
// expires. Until then the node works as before, and only a warning and a counter show that the
// authority is away. A node that starts with an expired certificate asks once more and otherwise
// refuses to start: other nodes would refuse its connections.
//
// # Checks
//
// Every few minutes the node asks which authorities to trust. The answer brings the certificates of
// a rotated key before anyone presents one, new addresses of the authority, and the signed head of
// its ledger. The node sends the head back with the next question. In this way nodes notice that
// the directory of the authority was restored from a backup.
package enroll
