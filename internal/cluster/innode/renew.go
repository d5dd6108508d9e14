package innode

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// renew makes the node's files follow its addresses, on engines that give a container
// others when it starts again.
func (n node) renew(ctx context.Context, now []netip.Addr) error {
	text, err := os.ReadFile(n.path(addressesFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot read the node's former addresses: %w", err)
	}
	var words []string
	for _, a := range now {
		words = append(words, a.String())
	}
	changed := changes(strings.Fields(string(text)), now)
	if len(changed) > 0 {
		if err := n.rewrite(changed); err != nil {
			return fmt.Errorf("cannot give the node's new addresses to its files: %w", err)
		}
		if err := n.certificates(ctx); err != nil {
			return fmt.Errorf("cannot make certificates for the node's new addresses: %w", err)
		}
	}
	return n.write(addressesFile, strings.Join(words, " ")+"\n")
}

// changes are the addresses that became others, by family.
func changes(before []string, now []netip.Addr) map[string]string {
	changed := map[string]string{}
	for _, word := range before {
		old, err := netip.ParseAddr(word)
		if err != nil {
			continue
		}
		for _, a := range now {
			if a.Is4() == old.Is4() {
				if a != old {
					changed[old.String()] = a.String()
				}
				break
			}
		}
	}
	return changed
}

// rewrite replaces addresses in what kubeadm wrote.
func (n node) rewrite(changed map[string]string) error {
	for _, pattern := range []string{
		"etc/kubernetes/manifests/*.yaml", "etc/kubernetes/*.conf", "var/lib/kubelet/kubeadm-flags.env", "var/lib/kubelet/config.yaml", KubeadmFile,
	} {
		files, err := filepath.Glob(n.path(pattern))
		if err != nil {
			return err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			info, err := os.Stat(file)
			if err != nil {
				return err
			}
			if err := os.WriteFile(file, []byte(replaced(string(text), changed)), info.Mode().Perm()); err != nil {
				return err
			}
		}
	}
	return nil
}

// replaced is a text with other addresses: 10.0.0.2 is none in 10.0.0.20, and stands in
// 10.0.0.2:6443. All are replaced at once, so that two that swap do not end as one.
func replaced(text string, changed map[string]string) string {
	return regexp.MustCompile(`[0-9A-Fa-f:.]+`).ReplaceAllStringFunc(text, func(word string) string {
		if now, found := changed[word]; found {
			return now
		}
		if host, port, cut := strings.Cut(word, ":"); cut && changed[host] != "" {
			return changed[host] + ":" + port
		}
		return word
	})
}

// certificates makes those anew that name the addresses.
func (n node) certificates(ctx context.Context) error {
	for phase, files := range map[string]string{
		"apiserver": "apiserver", "etcd-server": "etcd/server", "etcd-peer": "etcd/peer",
	} {
		base := n.path("etc/kubernetes/pki/" + files)
		if _, err := os.Stat(base + ".crt"); errors.Is(err, fs.ErrNotExist) {
			continue // a worker
		}
		for _, end := range []string{".crt", ".key"} {
			if err := os.Remove(base + end); err != nil {
				return err
			}
		}
		cmd := exec.CommandContext(ctx, "kubeadm", "init", "phase", "certs", phase, "--config="+KubeadmFile)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("kubeadm init phase certs %s: %w: %s", phase, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
