package child

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/berthrun/berth/internal/errs"
)

// Secret decrypts one layer. The private key that has opened it stays in the daemon.
type Secret struct {
	// Key is that of AES-256 in counter mode: 32 bytes. Nonce is the first value of the counter: 16 bytes.
	Key   []byte `json:"key"`
	Nonce []byte `json:"nonce"`
	// MAC is the HMAC-SHA256 of the encrypted layer, with Key: 32 bytes.
	MAC []byte `json:"mac"`
}

// Check returns Invalid for a secret whose parts have wrong sizes.
func (s *Secret) Check() error {
	for _, part := range []struct {
		name      string
		has, want int
	}{{"key", len(s.Key), 32}, {"nonce", len(s.Nonce), aes.BlockSize}, {"HMAC", len(s.MAC), sha256.Size}} {
		if part.has != part.want {
			return fmt.Errorf("its %s has %d bytes, want %d: %w", part.name, part.has, part.want, errs.Invalid)
		}
	}
	return nil
}

// secretEnv is the variable with a job's secret. Arguments can be read by every user of the host. The environment can be
// read by those who may trace the process, and so could read its memory as well.
const secretEnv = "BERTH_LAYER_SECRET"

// Environment is that of the child.
func (j *Job) Environment() ([]string, error) {
	if j.Secret == nil {
		return []string{}, nil
	}
	data, err := json.Marshal(j.Secret)
	if err != nil {
		return nil, fmt.Errorf("cannot marshal the secret of a layer: %w", err)
	}
	return []string{secretEnv + "=" + string(data)}, nil
}

// readSecret is the other half of Environment.
func (j *Job) readSecret() error {
	text, ok := os.LookupEnv(secretEnv)
	if !ok {
		return nil
	}
	j.Secret = &Secret{}
	if err := json.Unmarshal([]byte(text), j.Secret); err != nil {
		return errors.New("cannot read the secret of the layer") // the cause may have a part of it
	}
	return nil
}

// decrypter reads an encrypted layer. What it returns is authentic only when authentic says so: a layer is unpacked while
// it is decrypted, and is used after that.
type decrypter struct {
	from   io.Reader
	stream cipher.Stream
	mac    hash.Hash
	want   []byte
	// err is the error of the last read: io.EOF for a layer that was read to its end and is authentic.
	err error
}

func newDecrypter(from io.Reader, s *Secret) (*decrypter, error) {
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("cannot decrypt the layer: %w", err)
	}
	block, err := aes.NewCipher(s.Key)
	if err != nil {
		return nil, fmt.Errorf("cannot decrypt the layer: %w", err)
	}
	return &decrypter{from: from, stream: cipher.NewCTR(block, s.Nonce), mac: hmac.New(sha256.New, s.Key), want: s.MAC}, nil
}

// Read implements io.Reader. At the end of a layer that is not authentic its error is Invalid, and not io.EOF.
func (d *decrypter) Read(p []byte) (int, error) {
	if d.err != nil {
		return 0, d.err
	}
	n, err := d.from.Read(p)
	d.mac.Write(p[:n])
	d.stream.XORKeyStream(p[:n], p[:n])
	if errors.Is(err, io.EOF) && !hmac.Equal(d.mac.Sum(nil), d.want) {
		err = fmt.Errorf("the encrypted layer does not have the HMAC that its manifest says, so the two do not belong together: %w", errs.Invalid)
	}
	d.err = err
	return n, err
}

// authentic returns nil for a layer that was read to its end and has the right HMAC.
func (d *decrypter) authentic() error {
	// A decompressor may stop before the end.
	if _, err := io.Copy(io.Discard, d); err != nil {
		return err
	}
	return nil
}
