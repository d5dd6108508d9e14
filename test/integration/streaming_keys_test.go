//go:build integration

package integration

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/sessions"
)

// streamPort is the daemon's own port in the network namespace of its host.
const streamPort = 10010

// TestStreamingKeys: the configuration of the streaming server, for both protocols: a fixed port,
// TLS with files, an authority for client certificates, an idle timeout.
func TestStreamingKeys(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	chain, key := certificate(t, "berth", x509.ExtKeyUsageServerAuth)
	clients, clientKey := certificate(t, "kubelet", x509.ExtKeyUsageClientAuth)
	b := harness.Start(t, harness.Options{Config: fmt.Sprintf(`
[stream]
port = %d
idle_timeout = "4s"
tls = "files"
tls_cert = %q
tls_key = %q
tls_client_ca = %q
tls_min_version = "1.3"
`, streamPort, file("crt", chain), file("key", key), file("ca", clients))})
	pod := b.RunPod("stream-keys", "sleep 100000")
	trusted := rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: chain, CertData: clients, KeyData: clientKey}}
	for name, c := range both(b) {
		var out bytes.Buffer
		c.Config = trusted
		code, err := c.Exec(b.Ctx(), pod.Container, sessions.Streams{Stdout: &out}, "/bin/sh", "-c", "echo secret; exit 5")
		if err != nil || code != 5 || out.String() != "secret\n" {
			t.Errorf("%s: code %d, %q, %v", name, code, out.String(), err)
		}
		for who, config := range map[string]rest.TLSClientConfig{
			"without a certificate":         {CAData: chain},
			"that trusts another authority": {CAData: clients, CertData: clients, KeyData: clientKey},
		} {
			c.Config = rest.Config{TLSClientConfig: config}
			if _, err := c.Exec(b.Ctx(), pod.Container, sessions.Streams{Stdout: &out}, "true"); err == nil {
				t.Errorf("%s: a client %s is let in", name, who)
			}
		}
		// Without traffic the session ends long before its command would. It also ends before the
		// client sends the first of its pings, one every five seconds.
		c.Config = trusted
		ctx, cancel := context.WithTimeout(b.Ctx(), require.Patience(time.Minute))
		_, err = c.Exec(ctx, pod.Container, sessions.Streams{Stdout: &out}, "sleep", "100000")
		if ctx.Err() != nil {
			t.Errorf("%s: an idle session goes on: %v", name, err)
		}
		cancel()
	}
	listening, err := b.InHost("cat", "/proc/net/tcp").Output()
	if want := fmt.Sprintf("0100007F:%04X 00000000:0000 0A", streamPort); err != nil || !strings.Contains(string(listening), want) {
		t.Errorf("nobody listens on 127.0.0.1:%d: %s, %v", streamPort, listening, err)
	}
	b.RemovePod(pod.Sandbox)
}

// certificate is one that is its own authority.
func certificate(t *testing.T, name string, usage x509.ExtKeyUsage) (chain, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(24 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{usage}, IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded})
}
