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
// A client that connects and makes no call, because the caller has left, would be closed as a stranger and
// connect again. After a restart of a cluster, when connections take longer than calls wait, most handshakes would be
// in vain.
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
