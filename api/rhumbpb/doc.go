// Package rhumbpb is the wire form of the API, generated from api/*.proto by api/generate.sh. Package api converts
// between it and the vocabulary; nothing else needs to know both.
package rhumbpb
