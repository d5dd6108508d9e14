package child

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
)

// sealed encrypts a layer.
func sealed(t *testing.T, plain []byte) ([]byte, *Secret) {
	t.Helper()
	data, key, nonce, mac, err := imagetest.Encrypt(plain)
	if err != nil {
		t.Fatal(err)
	}
	return data, &Secret{Key: key, Nonce: nonce, MAC: mac}
}

func TestDecrypter(t *testing.T) {
	plain := []byte(strings.Repeat("some plain text; ", 10_000))
	data, secret := sealed(t, plain)
	flip := func(at int) []byte {
		changed := bytes.Clone(data)
		changed[at] ^= 1
		return changed
	}
	for name, c := range map[string]struct {
		data []byte
		good bool
	}{
		"whole":        {data, true},
		"first byte":   {flip(0), false},
		"last byte":    {flip(len(data) - 1), false},
		"truncated":    {data[:len(data)-1], false},
		"empty":        {nil, false},
		"with a trail": {append(bytes.Clone(data), 0), false},
	} {
		for how, wrap := range map[string]func(io.Reader) io.Reader{
			"at once": func(r io.Reader) io.Reader { return r }, "in halves": iotest.HalfReader, "with the end": iotest.DataErrReader,
		} {
			d, err := newDecrypter(wrap(bytes.NewReader(c.data)), secret)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(d)
			if c.good && (err != nil || !bytes.Equal(got, plain) || d.authentic() != nil) {
				t.Errorf("%s, %s: %d bytes, %v, %v", name, how, len(got), err, d.authentic())
			}
			if !c.good && (!errors.Is(err, errs.Invalid) || !errors.Is(d.authentic(), errs.Invalid)) {
				t.Errorf("%s, %s: %v, %v", name, how, err, d.authentic())
			}
		}
	}
	// What nobody has read is part of the layer, too.
	d, err := newDecrypter(bytes.NewReader(flip(len(data)-1)), secret)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(d, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if err := d.authentic(); !errors.Is(err, errs.Invalid) {
		t.Errorf("a layer that is not read to its end: %v", err)
	}
	for _, wrong := range []Secret{
		{Nonce: secret.Nonce, MAC: secret.MAC},
		{Key: secret.Key, MAC: secret.MAC},
		{Key: secret.Key, Nonce: secret.Nonce},
		{Key: secret.Key[:16], Nonce: secret.Nonce, MAC: secret.MAC},
	} {
		if _, err := newDecrypter(bytes.NewReader(data), &wrong); !errors.Is(err, errs.Invalid) {
			t.Errorf("an incomplete secret: %v", err)
		}
	}
}
