package innode

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/errs"
)

// renewal is the directory for new certificates, inside the directory of the old ones, so that a
// rename can replace them.
const renewal = ".renewal"

// certificates renews the certificates that name the addresses. It writes them to another
// directory, and replaces the old ones when all are there: a node whose kubeadm fails keeps its old
// ones.
func (n node) certificates(ctx context.Context) error {
	phases, err := n.phases()
	if err != nil || len(phases) == 0 {
		return err
	}
	text, err := os.ReadFile(n.path(KubeadmFile))
	if err != nil {
		return err
	}
	dir, aside, err := n.aside(text)
	if err != nil {
		return err
	}
	made := path.Join(dir, renewal)
	// Files of an interrupted start are for other addresses.
	if err := os.RemoveAll(n.path(made)); err != nil {
		return err
	}
	if err := n.authorities(dir, made); err != nil {
		return err
	}
	file := path.Join(made, "kubeadm.yaml")
	if err := os.WriteFile(n.path(file), aside, 0o600); err != nil {
		return err
	}
	for _, phase := range phases {
		cmd := exec.CommandContext(ctx, "kubeadm", "init", "phase", "certs", phase.name, "--config="+n.path(file))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("kubeadm init phase certs %s: %w: %s", phase.name, err, strings.TrimSpace(string(out)))
		}
	}
	if err := n.move(phases, made, dir); err != nil {
		return err
	}
	return os.RemoveAll(n.path(made))
}

// move replaces the old files by the new ones. If it is interrupted between a key and its
// certificate, the next start renews both.
func (n node) move(phases []phase, from, to string) error {
	var files []string
	for _, phase := range phases {
		for _, end := range []string{".key", ".crt"} {
			if _, err := os.Stat(n.path(path.Join(from, phase.file+end))); err != nil {
				return fmt.Errorf("kubeadm init phase certs %s has made no %s%s: %w", phase.name, phase.file, end, err)
			}
			files = append(files, phase.file+end)
		}
	}
	for _, file := range files {
		if err := os.Rename(n.path(path.Join(from, file)), n.path(path.Join(to, file))); err != nil {
			return err
		}
	}
	return nil
}

// phase is a part of `kubeadm init phase certs`, and the name of its files.
type phase struct{ name, file string }

// phases are the phases for what runs on the node, by its manifests: a missing certificate is
// created, too. A worker has none.
func (n node) phases() ([]phase, error) {
	var all []phase
	for _, of := range []struct {
		manifest string
		phases   []phase
	}{
		{"kube-apiserver.yaml", []phase{{"apiserver", "apiserver"}}},
		{"etcd.yaml", []phase{{"etcd-server", "etcd/server"}, {"etcd-peer", "etcd/peer"}}},
	} {
		_, err := os.Stat(n.path("etc/kubernetes/manifests/" + of.manifest))
		switch {
		case err == nil:
			all = append(all, of.phases...)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return all, nil
}

// aside is kubeadm's configuration with another certificate directory, inside the present one, dir.
// kubeadm accepts no flag for it together with a configuration file.
func (n node) aside(text []byte) (dir string, changed []byte, err error) {
	const kind = "ClusterConfiguration"
	docs := strings.Split(string(text), "\n---\n")
	for i, doc := range docs {
		var fields map[string]any
		if err := yaml.Unmarshal([]byte(doc), &fields); err != nil {
			return "", nil, fmt.Errorf("cannot read %s: %w: %w", KubeadmFile, errs.Invalid, err)
		}
		if fields["kind"] != kind {
			continue
		}
		set, _ := fields["certificatesDir"].(string)
		dir = cmp.Or(set, "/etc/kubernetes/pki")
		fields["certificatesDir"] = n.path(path.Join(dir, renewal))
		rendered, err := yaml.Marshal(fields)
		if err != nil {
			return "", nil, err
		}
		docs[i] = string(bytes.TrimSuffix(rendered, []byte("\n")))
		return dir, []byte(strings.Join(docs, "\n---\n")), nil
	}
	return "", nil, fmt.Errorf("%s has no %s: %w", KubeadmFile, kind, errs.Invalid)
}

// authorities copies the certificate authorities.
func (n node) authorities(from, to string) error {
	for _, name := range []string{"ca.crt", "ca.key", "etcd/ca.crt", "etcd/ca.key"} {
		text, err := os.ReadFile(n.path(path.Join(from, name)))
		if errors.Is(err, fs.ErrNotExist) {
			continue // kubeadm says so, if it needs it
		}
		if err != nil {
			return err
		}
		file := n.path(path.Join(to, name))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return err
		}
	}
	return os.MkdirAll(n.path(path.Join(to, "etcd")), 0o700)
}
