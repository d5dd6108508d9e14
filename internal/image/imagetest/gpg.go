package imagetest

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/opencontainers/go-digest"
)

// GPG makes simple signatures.
type GPG struct{ key *openpgp.Entity }

// NewGPG makes a key of a day ago.
func NewGPG() *GPG { return NewGPGFor(0) }

// NewGPGFor makes a key of a day ago, which expires after some time; never if 0.
func NewGPGFor(life time.Duration) *GPG {
	key, err := openpgp.NewEntity("test", "", "test@example.com", &packet.Config{
		Algorithm: packet.PubKeyAlgoEdDSA, Time: func() time.Time { return time.Now().Add(-24 * time.Hour) }, KeyLifetimeSecs: uint32(life.Seconds()),
	})
	if err != nil {
		panic(err)
	}
	return &GPG{key}
}

// PublicKey returns the public key in its binary form.
func (g *GPG) PublicKey() []byte {
	var data bytes.Buffer
	if err := g.key.Serialize(&data); err != nil {
		panic(err)
	}
	return data.Bytes()
}

// ArmoredKey returns the public key in ASCII armor.
func (g *GPG) ArmoredKey() []byte {
	var data bytes.Buffer
	w, err := armor.Encode(&data, openpgp.PublicKeyType, nil)
	if err != nil {
		panic(err)
	}
	write(w, g.PublicKey())
	return data.Bytes()
}

// Sign returns a signed message with a claim in it. The signature is of an hour ago, and expires after some time; never if
// 0.
func (g *GPG) Sign(claim []byte, life time.Duration) []byte {
	var data bytes.Buffer
	w, err := openpgp.Sign(&data, g.key, nil, &packet.Config{
		Time: func() time.Time { return time.Now().Add(-time.Hour) }, SigLifetimeSecs: uint32(life.Seconds()),
	})
	if err != nil {
		panic(err)
	}
	write(w, claim)
	return data.Bytes()
}

// Unsigned returns a message with a claim that nobody has signed.
func Unsigned(claim []byte) []byte {
	var data bytes.Buffer
	w, err := packet.SerializeLiteral(nopCloser{&data}, true, "", 0)
	if err != nil {
		panic(err)
	}
	write(w, claim)
	return data.Bytes()
}

// Compressed returns a message with packets in one compressed packet, as GPG writes them.
func Compressed(packets ...[]byte) []byte {
	var data bytes.Buffer
	w, err := packet.SerializeCompressed(nopCloser{&data}, packet.CompressionZIP, nil)
	if err != nil {
		panic(err)
	}
	write(w, bytes.Join(packets, nil))
	return data.Bytes()
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func write(w io.WriteCloser, data []byte) {
	if _, err := w.Write(data); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
}

// SimpleClaim is what a simple signature of an image of the name signs.
func SimpleClaim(name string, dgst digest.Digest) []byte {
	return fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":"atomic container signature"},"optional":{"creator":"test"}}`, name, dgst)
}
