package session

import (
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/node/gate"
)

// certified are credentials of a server whose listener is a gate.
type certified struct {
	credentials.TransportCredentials
}

// Certified returns credentials that report the bearer of a certificate to the gate after the handshake, and not with
// the first call.
//
// Until its first call, a client would count as a stranger and be closed after some seconds. After a restart of a cluster,
// connections take longer than callers wait, so there may be no first call: clients would connect again and again, and
// most handshakes would be wasted.
func Certified(creds credentials.TransportCredentials) credentials.TransportCredentials {
	return certified{creds}
}

// ServerHandshake implements credentials.TransportCredentials.
func (c certified) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	if gc, ok := raw.(*gate.Conn); ok {
		// A client without a certificate has yet to log in. If the node has too many connections, the
		// first call is refused.
		if a, ok := info.(identity.AuthInfo); ok {
			if _, named := a.Conn.Peer(); named {
				_ = gc.Authenticated()
			}
		}
	}
	return conn, info, nil
}

// Clone implements credentials.TransportCredentials.
func (c certified) Clone() credentials.TransportCredentials {
	return certified{c.TransportCredentials.Clone()}
}
