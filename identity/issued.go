package identity

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"time"
)

// The validity of a certificate starts before its issue, for machines whose clocks are slow. So the start of the
// validity does not say whether the certificate was issued before or after a revocation of its bearer. Rhumb's
// authority writes the time of issue into the extension privateKeyUsagePeriod (RFC 3280, section 4.2.1.4), which
// other software ignores. Certificates of other authorities count as issued when they become valid. A revocation
// then also covers certificates that are issued shortly after it, which errs on the safe side.

// issuedID is the number of the extension privateKeyUsagePeriod.
var issuedID = asn1.ObjectIdentifier{2, 5, 29, 16}

// backdateMax bounds the time between the start of the validity and the time of issue that is believed. An authority
// that copies extensions from requests would otherwise let the bearer choose a time after every revocation.
const backdateMax = 2 * time.Hour

// usagePeriod is the part of the extension that matters here.
type usagePeriod struct {
	NotBefore time.Time `asn1:"optional,tag:0,generalized"`
}

// IssuedExtension returns the extension that says when a certificate is issued.
func IssuedExtension(at time.Time) (pkix.Extension, error) {
	value, err := asn1.Marshal(usagePeriod{at.UTC().Truncate(time.Second)})
	return pkix.Extension{Id: issuedID, Value: value}, err
}

// IssuedAt returns when a certificate was issued, in whole seconds, as far as the certificate says so.
func IssuedAt(cert *x509.Certificate) time.Time {
	for _, e := range cert.Extensions {
		var p usagePeriod
		if !e.Id.Equal(issuedID) {
			continue
		}
		if _, err := asn1.Unmarshal(e.Value, &p); err == nil && !p.NotBefore.Before(cert.NotBefore) && p.NotBefore.Sub(cert.NotBefore) <= backdateMax {
			return p.NotBefore
		}
	}
	return cert.NotBefore
}
