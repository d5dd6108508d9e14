//go:build integration

package unpack

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
)

// decrypt unpacks an encrypted layer.
func (b *bench) decrypt(data []byte, secret *Secret) (Result, error) {
	b.t.Helper()
	return b.runJob(data, Job{Secret: secret})
}

// TestEncryptedLayer: the child decrypts a layer, and refuses one that was changed, whatever the tar or the gzip stream in
// it makes of the change.
func TestEncryptedLayer(t *testing.T) {
	b := newBench(t)
	plain := b.tar(imagetest.Layer{{Path: "f", Content: []byte(strings.Repeat("secret", 1000))}})
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, layer := range map[string][]byte{"tar": plain, "gzip": zipped.Bytes(), "zstd": compressed(t, plain, 0)} {
		data, secret := sealed(t, layer)
		b = newBench(t)
		result, err := b.decrypt(data, secret)
		if err != nil || name != "zstd" && result.DiffID != digest.FromBytes(plain).String() {
			t.Errorf("%s: %+v, %v", name, result, err)
		}
		if content, err := os.ReadFile(b.path("upper", "f")); err != nil || !strings.HasPrefix(string(content), "secretsecret") {
			t.Errorf("%s: %.20q, %v", name, content, err)
		}
		changed := map[string][]byte{"truncated": data[:len(data)-1]}
		for _, at := range []int{0, 5, len(data) / 2, len(data) - 1} {
			flipped := bytes.Clone(data)
			flipped[at] ^= 0x40
			changed[fmt.Sprint("byte ", at)] = flipped
		}
		for how, data := range changed {
			b = newBench(t)
			if _, err := b.decrypt(data, secret); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "HMAC") {
				t.Errorf("%s, %s: %v", name, how, err)
			}
		}
		secret.Nonce[0] ^= 1
		b = newBench(t)
		if _, err := b.decrypt(data, secret); !errors.Is(err, errs.Invalid) || strings.Contains(err.Error(), "HMAC") {
			t.Errorf("%s, with another nonce, which the HMAC is not of: %v", name, err)
		}
		secret.Nonce[0] ^= 1
		secret.MAC[0] ^= 1
		b = newBench(t)
		if _, err := b.decrypt(data, secret); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "HMAC") {
			t.Errorf("%s, with a wrong HMAC: %v", name, err)
		}
	}
}

// sealed encrypts a layer.
func sealed(t *testing.T, plain []byte) ([]byte, *Secret) {
	t.Helper()
	data, key, nonce, mac, err := imagetest.Encrypt(plain)
	if err != nil {
		t.Fatal(err)
	}
	return data, &Secret{Key: key, Nonce: nonce, MAC: mac}
}

// TestSecretIsNoArgument: every user of a host can read the arguments of a process.
func TestSecretIsNoArgument(t *testing.T) {
	b := newBench(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, secret := sealed(t, b.tar(imagetest.Layer{{Path: "f"}}))
	done := make(chan error, 1)
	go func() {
		_, err := b.runner.Run(context.Background(), Job{Upper: b.path("upper"), LowerRoot: b.root, MaxBytes: 1 << 30, Secret: secret}, r, nil)
		done <- err
	}()
	pid := b.pid()
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !bytes.Contains(args, []byte("maxBytes")) || bytes.Contains(args, []byte(base64.StdEncoding.EncodeToString(secret.Key))) {
		t.Errorf("arguments %q, %v", args, err)
	}
	if _, err := w.Write(data); err != nil {
		t.Error(err)
	}
	w.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// pid waits for the child, and returns its process id.
func (b *bench) pid() int {
	b.t.Helper()
	for deadline := time.Now().Add(require.Patience(10 * time.Second)); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, pid := range b.processes() {
			if confined(b.t, pid) {
				return pid
			}
		}
	}
	b.t.Fatal("there is no child")
	return 0
}
