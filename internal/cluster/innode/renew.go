package innode

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// renew updates the addresses in the node's files, on engines that give a container new addresses
// at a start. A node that is stopped in the middle repeats it at its next start: it records the new
// addresses when all is done, and until then a separate file has all addresses that the files may
// contain.
func (n node) renew(ctx context.Context, now []netip.Addr) error {
	recorded, _, err := n.addresses(addressesFile)
	if err != nil {
		return err
	}
	half, begun, err := n.addresses(halfFile)
	if err != nil {
		return err
	}
	before := append(recorded, half...)
	changed := changes(before, now)
	if len(changed) > 0 || begun {
		if err := n.replace(halfFile, words(append(before, now...))); err != nil {
			return err
		}
		if err := n.rewrite(changed); err != nil {
			return fmt.Errorf("cannot give the node's new addresses to its files: %w", err)
		}
		if err := n.certificates(ctx); err != nil {
			return fmt.Errorf("cannot make certificates for the node's new addresses: %w", err)
		}
	}
	if err := n.replace(addressesFile, words(now)); err != nil {
		return err
	}
	if err := errs.IgnoreNotExist(os.Remove(n.path(halfFile))); err != nil {
		return fmt.Errorf("cannot record the node's addresses: %w", err)
	}
	return nil
}

// addresses reads a file of addresses; there is false if it does not exist.
func (n node) addresses(file string) (all []netip.Addr, there bool, err error) {
	text, err := os.ReadFile(n.path(file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("cannot read the node's former addresses: %w", err)
	}
	for _, word := range strings.Fields(string(text)) {
		if a, err := netip.ParseAddr(word); err == nil {
			all = append(all, a)
		}
	}
	return all, true, nil
}

// words are addresses in a file's format.
func words(addresses []netip.Addr) []byte {
	var all []string
	for _, a := range addresses {
		if text := a.String(); !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return []byte(strings.Join(all, " ") + "\n")
}

// changes maps the node's old addresses to new ones: to one of the family that the node did not
// have before, else to its first.
func changes(before, now []netip.Addr) map[string]string {
	changed := map[string]string{}
	for _, old := range before {
		if slices.Contains(now, old) {
			continue
		}
		family := func(a netip.Addr) bool { return a.Is4() == old.Is4() }
		i := slices.IndexFunc(now, func(a netip.Addr) bool { return family(a) && !slices.Contains(before, a) })
		if i < 0 {
			i = slices.IndexFunc(now, family)
		}
		if i >= 0 {
			changed[old.String()] = now[i].String()
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
			now := replaced(string(text), changed)
			if now == string(text) {
				continue
			}
			info, err := os.Stat(file)
			if err != nil {
				return err
			}
			if err := replaceFile(file, []byte(now), info.Mode().Perm()); err != nil {
				return err
			}
		}
	}
	return nil
}

// replaced is a text with other addresses: 10.0.0.2 matches in 10.0.0.2:6443, and not in 10.0.0.20.
// All are replaced at once, so that two addresses can swap.
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

// replace writes a file of the node atomically: a reader sees the old or the new content.
func (n node) replace(name string, text []byte) error {
	file := n.path(name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("cannot write %s: %w", name, err)
	}
	if err := replaceFile(file, text, 0o644); err != nil {
		return fmt.Errorf("cannot write %s: %w", name, err)
	}
	return nil
}

// replaceFile is replace for any path. The temporary file has a name that the kubelet does not take
// for a manifest, outside of its manifest directory.
func replaceFile(file string, text []byte, mode fs.FileMode) (err error) {
	dir := filepath.Dir(file)
	if filepath.Base(dir) == "manifests" {
		dir = filepath.Dir(dir)
	}
	temporary, err := os.CreateTemp(dir, ".renew-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temporary.Name()))
		}
	}()
	_, err = temporary.Write(text)
	err = errors.Join(err, temporary.Chmod(mode), temporary.Sync(), temporary.Close())
	if err != nil {
		return err
	}
	return os.Rename(temporary.Name(), file)
}
