package authority

import "time"

// The paths of the server. All answers are JSON, and their Date header is the time of the
// authority.
const (
	PathEnrol = "/v1/enroll"
	PathRenew = "/v1/renew"
	PathCheck = "/v1/check"
	PathLive  = "/livez"
)

// EnrolRequest asks for the first certificate of a node.
type EnrolRequest struct {
	// Token is the text of the token. It is a secret, so requests are never logged.
	Token string `json:"token"`
	// CSR is a certificate request in PEM. Only its public key is used.
	CSR string `json:"csr"`
}

// RenewRequest asks for another certificate. The client presents its current one.
type RenewRequest struct {
	CSR string `json:"csr"`
	// Head is the newest head that the node received.
	Head *SignedHead `json:"head,omitempty"`
}

// CheckRequest asks which authorities to trust. The client presents its current certificate.
type CheckRequest struct {
	Head *SignedHead `json:"head,omitempty"`
}

// Grant is the answer to enrolment and renewal.
type Grant struct {
	// Certificate is the chain of the node in PEM, without the authority itself.
	Certificate string `json:"certificate"`
	// Founder allows the node to create the cluster. The flag is not in the certificate: other
	// nodes have no use for it.
	Founder bool `json:"founder,omitempty"`
	Standing
}

// Standing holds the facts that a node needs about its authority.
type Standing struct {
	// CA holds the certificates to trust, in PEM.
	CA string `json:"ca"`
	// Addresses are those of the authority.
	Addresses []string `json:"addresses"`
	// Head is brought back with the next request.
	Head SignedHead `json:"head"`
	// Renew asks the node to renew now, because the authority signs with a newer key.
	Renew bool `json:"renew,omitempty"`
}

// SignedHead is the head of the ledger at a time, signed by the authority. A node that brings it
// back proves that the ledger held it.
type SignedHead struct {
	// Seq is the number of the newest record, Hash the head after it.
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
	// Time is the time of the signature. A head that is older than the newest gap proves nothing
	// new.
	Time time.Time `json:"time"`
	// Authority is the hash of the key that made Signature, which covers the cluster and the fields
	// above.
	Authority string `json:"authority"`
	Signature []byte `json:"signature"`
}

// ErrorDoc is the answer to a refused request.
type ErrorDoc struct {
	Error struct {
		// Kind is the name of a rhumb.Kind. Nodes decide by it whether they ask again.
		Kind string `json:"kind"`
		// Message is for people. It never contains a part of a token.
		Message string `json:"message"`
		// RetryAfterMillis is the wait that an overloaded server recommends.
		RetryAfterMillis int64 `json:"retry_after_ms,omitempty"`
	} `json:"error"`
}
