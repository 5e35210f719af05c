package peer

import (
	"bytes"
	"compress/lzw"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// memberlist believes who has a key of gossip, and each node has it. One node that was broken into must not stop the others, so packets
// are checked before memberlist sees them. It would expand one packet of 64 KiB to 40 MiB, and each of these again, and it panics on the
// padding of its oldest form of encryption.

// Types of messages of memberlist, the first byte of each.
const (
	gossipDead       = 5 // and all below it, from ping on
	gossipCompound   = 7
	gossipUser       = 8
	gossipCompressed = 9
	gossipEncrypted  = 10
	gossipNack       = 11
	gossipChecked    = 12 // a checksum of four bytes, then the packet
)

// Layout of an encrypted packet: the version of the encryption, a nonce, the ciphertext and its tag.
const (
	gossipSealVersion = 1
	gossipNonceSize   = 12
	gossipSealHead    = 1 + gossipNonceSize
)

// gossipChecksum is the length of a checksum with its type.
const gossipChecksum = 5

// gossipPacketBytes bounds a packet after it is expanded. Members send packets of at most 1,400 bytes before they compress them.
const gossipPacketBytes = 64 << 10

// Reasons to refuse a packet; the metric counts them.
var (
	errPacketSealed = errors.New("no key opens the packet")
	errPacketForm   = errors.New("no member sends such a packet")
	errPacketSize   = fmt.Errorf("the packet expands to more than %d bytes", gossipPacketBytes)
)

// openPacket decrypts a packet with the first of the keys that opens it. The packet does not change.
func openPacket(packet []byte, keys [][]byte) ([]byte, error) {
	if len(packet) < gossipSealHead || packet[0] != gossipSealVersion {
		return nil, errPacketSealed
	}
	for _, key := range keys {
		block, err := aes.NewCipher(key)
		if err != nil {
			continue
		}
		seal, err := cipher.NewGCM(block)
		if err != nil {
			continue
		}
		if plain, err := seal.Open(nil, packet[1:gossipSealHead], packet[gossipSealHead:], nil); err == nil {
			return plain, nil
		}
	}
	return nil, errPacketSealed
}

// checkPacket returns an error unless the decrypted packet has the form in which members send: one message or a compound of messages,
// compressed as a whole or not at all, after a checksum or none. memberlist itself accepts these forms within each other, to any depth.
func checkPacket(plain []byte) error {
	if len(plain) >= gossipChecksum && plain[0] == gossipChecked {
		plain = plain[gossipChecksum:] // memberlist compares it
	}
	if len(plain) > 0 && plain[0] == gossipCompressed {
		expanded, err := expandPacket(plain[1:])
		if err != nil {
			return err
		}
		plain = expanded
	}
	if len(plain) == 0 {
		return errPacketForm
	}
	if plain[0] != gossipCompound {
		return checkMessage(plain)
	}
	if len(plain) < 2 {
		return errPacketForm
	}
	count, rest := int(plain[1]), plain[2:]
	if len(rest) < 2*count {
		return errPacketForm
	}
	sizes, rest := rest[:2*count], rest[2*count:]
	for ; len(sizes) > 0; sizes = sizes[2:] {
		size := int(binary.BigEndian.Uint16(sizes))
		if size > len(rest) {
			return errPacketForm
		}
		if err := checkMessage(rest[:size]); err != nil {
			return err
		}
		rest = rest[size:]
	}
	return nil
}

// checkMessage returns an error unless the type of the message is one that is complete in itself.
func checkMessage(message []byte) error {
	if len(message) == 0 || message[0] > gossipDead && message[0] != gossipUser && message[0] != gossipNack {
		return errPacketForm
	}
	return nil
}

// expandPacket returns what a compressed message contains.
func expandPacket(message []byte) ([]byte, error) {
	var compressed struct {
		Algo uint8 // 0, the only one
		Buf  []byte
	}
	if codec.NewDecoderBytes(message, &codec.MsgpackHandle{}).Decode(&compressed) != nil || compressed.Algo != 0 {
		return nil, errPacketForm
	}
	r := lzw.NewReader(bytes.NewReader(compressed.Buf), lzw.LSB, 8)
	defer r.Close()
	expanded, err := io.ReadAll(io.LimitReader(r, gossipPacketBytes+1))
	switch {
	case err != nil:
		return nil, errPacketForm
	case len(expanded) > gossipPacketBytes:
		return nil, errPacketSize
	}
	return expanded, nil
}
