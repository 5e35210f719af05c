package login

import (
	"errors"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"google.golang.org/grpc/credentials"
)

// LogIn logs a link in, before its hello. It returns the token for the hello, and when to log in again. A link is not renewed: another one, with a
// login of its own, takes its place. info identifies the connection.
func (a *Account) LogIn(c *link.Conn, info credentials.AuthInfo) (token string, renew time.Time, err error) {
	client, err := a.scram(time.Now())
	if err != nil {
		return "", renew, err
	}
	// A token of another connection would be refused, so each link has a login of its own. The keys of the password are remembered.
	s, err := exchangeOn(linkMessages{c}, info, client)
	if answer, ok := errors.AsType[*link.Answer](err); ok {
		// As a status, the error counts as the word of the node.
		err = api.Status(answer.Err, api.Hint{})
	}
	if err := a.judge(client, err); err != nil {
		return "", renew, err
	}
	return strings.TrimPrefix(s.token, bearer), s.renew, nil
}

// linkMessages are the messages of an exchange on a link. They are bounded by the frames before a hello, and their time by the opening of
// the link.
type linkMessages struct{ c *link.Conn }

// Send implements messages.
func (m linkMessages) Send(q *rhumbpb.AuthenticateRequest) error {
	return m.c.WriteProto(link.KindLogin, q)
}

// Recv implements messages.
func (m linkMessages) Recv() (*rhumbpb.AuthenticateResponse, error) {
	r := new(rhumbpb.AuthenticateResponse)
	return r, m.c.ReadProto(link.KindLogin, r)
}
