// Package tlsfiles has the certificates of berth's HTTP servers. They are files, which are read again
// when they change, so that a renewal needs no reload.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/berthrun/berth/internal/errs"
)

// Files are a server's certificate, and which clients it accepts.
type Files struct {
	// CertFile and KeyFile are PEM files; both empty for a certificate that the
	// server makes itself, which no client trusts.
	CertFile, KeyFile string
	// ClientCAFile, if not empty, holds the authorities that must have signed the
	// certificate of each client.
	ClientCAFile string
	// MinVersion is a version of crypto/tls; 0 is TLS 1.2.
	MinVersion uint16
	// CipherSuites are those of TLS 1.2, nil for crypto/tls's own choice. TLS 1.3 has
	// none to choose from.
	CipherSuites []uint16
}

// Check returns what is wrong with the certificate, with its key, and with the authorities, each nil for a file that can be
// used or is not named.
func (f Files) Check() (cert, key, authorities error) {
	if f.CertFile != "" && f.KeyFile != "" {
		var chain, secret []byte
		chain, cert = os.ReadFile(f.CertFile)
		secret, key = os.ReadFile(f.KeyFile)
		if cert == nil && key == nil {
			if _, err := tls.X509KeyPair(chain, secret); err != nil {
				cert = fmt.Errorf("cannot be used with key %s: %w", f.KeyFile, err)
			}
		}
	}
	if f.ClientCAFile != "" {
		var data []byte
		if data, authorities = os.ReadFile(f.ClientCAFile); authorities == nil && !x509.NewCertPool().AppendCertsFromPEM(data) {
			authorities = fmt.Errorf("it holds no certificate: %w", errs.Invalid)
		}
	}
	return cert, key, authorities
}

// selfSigned is the validity of a self-signed certificate: longer than any daemon
// runs.
const selfSigned = 10 * 365 * 24 * time.Hour

// Certificates are those of one server.
type Certificates struct {
	files Files
	// server is what logs and errors call the server.
	server string
	log    *slog.Logger

	mu sync.Mutex
	// stamp identifies the files that config was made from, and tried those that were read
	// last.
	stamp, tried string
	config       *tls.Config
}

// New reads the files, or makes a certificate for the host. server is what logs and errors call the
// server: "the streaming server". An error is of kind Invalid.
func New(files Files, server, host string, log *slog.Logger) (*Certificates, error) {
	if files.MinVersion == 0 {
		files.MinVersion = tls.VersionTLS12
	}
	c := &Certificates{files: files, server: server, log: log}
	if files.CertFile == "" {
		chain, key, err := cert.GenerateSelfSignedCertKeyWithOptions(cert.SelfSignedCertKeyOptions{
			Host: host, AlternateDNS: []string{"localhost"}, MaxAge: selfSigned,
		})
		if err != nil {
			return nil, fmt.Errorf("cannot make a certificate for %s: %w", server, err)
		}
		pair, err := tls.X509KeyPair(chain, key)
		if err != nil {
			return nil, fmt.Errorf("cannot make a certificate for %s: %w", server, err)
		}
		c.config = c.base(pair)
	}
	if err := c.refresh(); err != nil {
		return nil, fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	return c, nil
}

// Listen makes a listener that speaks TLS on one that does not.
func (c *Certificates) Listen(plain net.Listener) net.Listener {
	return tls.NewListener(plain, &tls.Config{
		MinVersion:         c.files.MinVersion,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current(), nil },
	})
}

// current returns the configuration for the next client. Files that cannot be used, perhaps in
// the middle of a renewal, do not change it.
func (c *Certificates) current() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refresh(); err != nil {
		c.log.Warn("cannot read the certificates of "+c.server+" again; keeping the old ones", "error", err)
	}
	return c.config
}

// refresh reads files that have changed since they were read. It logs a fault once.
func (c *Certificates) refresh() error {
	stamp, err := c.stampOf()
	if err != nil {
		stamp = err.Error()
	}
	if stamp == c.tried && c.config != nil {
		return nil
	}
	c.tried = stamp
	if err != nil {
		return err
	}
	fresh, err := c.read()
	if err != nil {
		return err
	}
	if c.stamp != "" {
		c.log.Info("read the certificates of " + c.server + " again")
	}
	c.stamp, c.config = stamp, fresh
	return nil
}

// stampOf changes when a file does.
func (c *Certificates) stampOf() (string, error) {
	stamp := "files"
	for _, file := range []string{c.files.CertFile, c.files.KeyFile, c.files.ClientCAFile} {
		if file == "" {
			continue
		}
		info, err := os.Stat(file)
		if err != nil {
			return "", fmt.Errorf("cannot read certificates: %w", err)
		}
		stamp += fmt.Sprintf(" %s %d %d", file, info.Size(), info.ModTime().UnixNano())
	}
	return stamp, nil
}

func (c *Certificates) read() (*tls.Config, error) {
	fresh := c.config
	if c.files.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.files.CertFile, c.files.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cannot use certificate %s with key %s: %w", c.files.CertFile, c.files.KeyFile, err)
		}
		fresh = c.base(pair)
	}
	if c.files.ClientCAFile == "" {
		return fresh, nil
	}
	data, err := os.ReadFile(c.files.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read certificates: %w", err)
	}
	fresh = fresh.Clone()
	fresh.ClientAuth, fresh.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if !fresh.ClientCAs.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("cannot use %s: it holds no certificate", c.files.ClientCAFile)
	}
	return fresh, nil
}

// base is HTTP/1.1 only: a connection of HTTP/2 cannot be upgraded.
func (c *Certificates) base(pair tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion:   c.files.MinVersion,
		CipherSuites: c.files.CipherSuites,
		Certificates: []tls.Certificate{pair},
		NextProtos:   []string{"http/1.1"},
	}
}
