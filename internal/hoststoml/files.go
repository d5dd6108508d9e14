package hoststoml

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"path/filepath"
)

// CheckFiles adds a fault to each endpoint for each file that it names and that cannot be used. dir is that of the hosts.toml.
// read returns fs.ErrNotExist for a file that does not exist.
func (d *Description) CheckFiles(dir string, read func(path string) ([]byte, error)) {
	for i := range d.Endpoints {
		e := &d.Endpoints[i]
		for _, name := range e.CA {
			data, ok := e.open("ca", dir, name, read)
			if ok && !x509.NewCertPool().AppendCertsFromPEM(data) {
				e.fault("ca", "ca: names %s, which has no certificate in PEM", inDir(dir, name))
			}
		}
		for _, pair := range e.Client {
			cert, ok := e.open("client", dir, pair[0], read)
			secret, secretOK := cert, ok
			if pair[1] != "" {
				secret, secretOK = e.open("client", dir, pair[1], read)
			}
			if !ok || !secretOK {
				continue
			}
			if _, err := tls.X509KeyPair(cert, secret); err != nil {
				e.fault("client", "client: %s is not a certificate with its key: %v", inDir(dir, pair[0]), err)
			}
		}
	}
}

// open reads a file that a key names. It returns false after it has noted a fault.
func (e *Endpoint) open(name, dir, file string, read func(string) ([]byte, error)) ([]byte, bool) {
	path := inDir(dir, file)
	data, err := read(path)
	var why *fs.PathError
	switch {
	case err == nil:
		return data, true
	case errors.Is(err, fs.ErrNotExist):
		e.fault(name, "%s: names %s, which is not there", name, path)
	case errors.As(err, &why):
		e.fault(name, "%s: names %s, which cannot be read: %v", name, path, why.Err)
	default:
		e.fault(name, "%s: names %s, which cannot be read: %v", name, path, err)
	}
	e.Faults[len(e.Faults)-1].File = path
	return nil, false
}

func inDir(dir, file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(dir, file)
}
