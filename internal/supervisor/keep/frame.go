package keep

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/berthrun/berth/internal/errs"
)

// A frame is one message between keeper and supervisor: eight fixed bytes and a
// payload, in one packet of a SOCK_SEQPACKET socket pair, with descriptors beside
// it. Every request gets its answers with the sequence number of the request.
// The payload is a key, an identity, an entry or a text; nothing is nested.
type frame struct {
	op      op
	code    code
	seq     uint32
	payload []byte
}

// op is the operation of a request. The numbers are the protocol: add, never change.
type op uint8

const (
	opHello   op = 1 // -> hello
	opHold    op = 2 // key, descriptors -> -
	opRelease op = 3 // key, or prefix that ends in "/" -> -
	opList    op = 4 // - -> one codeMore with descriptors per key, then codeOK
	opLookup  op = 5 // identity -> entry, or codeNotFound
	opForget  op = 6 // identity -> -
	opReady   op = 7 // - -> -
	opUpgrade op = 8 // - -> -, after the self-test
)

// code is how an answer ends its request.
type code uint8

const (
	codeOK          code = 0
	codeMore        code = 1
	codeInvalid     code = 2
	codeNotFound    code = 3
	codeExhausted   code = 4
	codeState       code = 5
	codeUnsupported code = 6
	codeInternal    code = 7
)

const (
	frameVersion = 1
	frameHead    = 8
	maxFrame     = 16 << 10
	// maxHold is how many descriptors one key can hold.
	maxHold = 64
	// maxKey leaves room for the index that the fd store's names carry.
	maxKey = 240
)

func (f frame) encode() []byte {
	b := make([]byte, frameHead, frameHead+len(f.payload))
	b[0], b[1], b[2] = frameVersion, byte(f.op), byte(f.code)
	binary.LittleEndian.PutUint32(b[4:], f.seq)
	return append(b, f.payload...)
}

func decodeFrame(b []byte) (frame, error) {
	if len(b) < frameHead {
		return frame{}, fmt.Errorf("frame of %d bytes: %w", len(b), errs.Invalid)
	}
	if b[0] > frameVersion+1 {
		return frame{}, fmt.Errorf("frame of version %d, this one speaks %d: %w", b[0], frameVersion, errs.Unsupported)
	}
	f := frame{op: op(b[1]), code: code(b[2]), seq: binary.LittleEndian.Uint32(b[4:])}
	f.payload = append(f.payload, b[frameHead:]...)
	return f, nil
}

// kindOf returns the kind of error of an answer's code.
func kindOf(c code) error {
	switch c {
	case codeInvalid:
		return errs.Invalid
	case codeNotFound:
		return errs.NotFound
	case codeExhausted:
		return errs.Exhausted
	case codeState:
		return errs.State
	case codeUnsupported:
		return errs.Unsupported
	}
	return nil
}

// codeOf returns the code of the kind of err.
func codeOf(err error) code {
	if err == nil {
		return codeOK
	}
	for c := codeInvalid; c < codeInternal; c++ {
		if errors.Is(err, kindOf(c)) {
			return c
		}
	}
	return codeInternal
}

// checkKey refuses a key that systemd would not take as the name of a stored descriptor.
func checkKey(key string) error {
	if key == "" || len(key) > maxKey {
		return fmt.Errorf("key of %d bytes, 1 to %d are allowed: %w", len(key), maxKey, errs.Invalid)
	}
	for _, c := range []byte(key) {
		if c <= ' ' || c >= 0x7f || c == ':' || c == '#' {
			return fmt.Errorf("key %q: character %q: %w", key, c, errs.Invalid)
		}
	}
	return nil
}

// identity identifies a process of this boot.
type identity struct {
	pid   int
	start uint64
}

const identitySize = 12

func (id identity) encode() []byte {
	b := make([]byte, identitySize)
	binary.LittleEndian.PutUint32(b, uint32(id.pid))
	binary.LittleEndian.PutUint64(b[4:], id.start)
	return b
}

func decodeIdentity(b []byte) (identity, error) {
	if len(b) != identitySize {
		return identity{}, fmt.Errorf("process identity of %d bytes: %w", len(b), errs.Invalid)
	}
	return identity{int(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint64(b[4:])}, nil
}
