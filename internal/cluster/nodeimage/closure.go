package nodeimage

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"

	"github.com/berthrun/berth/internal/errs"
)

// firewallTools are iptables (the nftables variant), nft and ipset from a root filesystem, with the
// libraries that they need. ipset is for IPVS only, and may be missing.
func firewallTools(rootfs string) ([]entry, error) {
	const multi, sets = "/usr/sbin/xtables-nft-multi", "/usr/sbin/ipset"
	files := []string{multi, "/usr/sbin/nft"}
	if _, err := os.Stat(filepath.Join(rootfs, sets)); err == nil {
		files = append(files, sets)
	}
	extensions, err := filepath.Glob(filepath.Join(rootfs, "usr/lib/*/xtables/*.so"))
	if err != nil {
		return nil, err
	}
	for _, file := range extensions {
		files = append(files, strings.TrimPrefix(file, filepath.Clean(rootfs)))
	}
	files, err = closure(rootfs, files)
	if err != nil {
		return nil, fmt.Errorf("cannot find what iptables and nft need in %s: %w", rootfs, err)
	}
	var all []entry
	for _, file := range files {
		from, err := securejoin.SecureJoin(rootfs, file)
		if err != nil {
			return nil, err
		}
		all = append(all, entry{path: file, from: from})
	}
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		all = append(all, entry{path: "/usr/sbin/" + name, link: path.Base(multi)})
	}
	return all, nil
}

// closure adds to programs and libraries the libraries that they need, and the dynamic loader.
func closure(rootfs string, files []string) ([]string, error) {
	seen := map[string]bool{}
	queue := slices.Clone(files)
	for len(queue) > 0 {
		file := queue[0]
		queue = queue[1:]
		if seen[file] {
			continue
		}
		seen[file] = true
		loader, wanted, err := needs(rootfs, file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if loader != "" {
			queue = append(queue, loader)
		}
		for _, name := range wanted {
			found, err := library(rootfs, name)
			if err != nil {
				return nil, fmt.Errorf("%s needs %s: %w", file, name, err)
			}
			queue = append(queue, found)
		}
	}
	all := make([]string, 0, len(seen))
	for file := range seen {
		all = append(all, file)
	}
	slices.Sort(all)
	return all, nil
}

// needs reads the loader and the libraries that a file names.
func needs(rootfs, file string) (loader string, libraries []string, err error) {
	// Links in a root filesystem are relative to it.
	resolved, err := securejoin.SecureJoin(rootfs, file)
	if err != nil {
		return "", nil, err
	}
	f, err := elf.Open(resolved)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	if loader, err = interpreter(f); err != nil {
		return "", nil, err
	}
	libraries, err = f.ImportedLibraries()
	return loader, libraries, err
}

func interpreter(f *elf.File) (string, error) {
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			text := make([]byte, p.Filesz)
			if _, err := p.ReadAt(text, 0); err != nil {
				return "", err
			}
			return strings.TrimRight(string(text), "\x00"), nil
		}
	}
	return "", nil
}

// library finds a library in the loader's default directories.
func library(rootfs, name string) (string, error) {
	for _, pattern := range []string{"usr/lib/*-linux-gnu*", "usr/lib", "lib/*-linux-gnu*", "lib", "lib64"} {
		found, err := filepath.Glob(filepath.Join(rootfs, pattern, name))
		if err != nil {
			return "", err
		}
		if len(found) > 0 {
			return strings.TrimPrefix(found[0], filepath.Clean(rootfs)), nil
		}
	}
	return "", fmt.Errorf("no such library: %w", errs.NotFound)
}

// checkStatic refuses a program that needs libraries: its image has none.
func checkStatic(file string) error {
	f, err := elf.Open(file)
	if err != nil {
		if errors.As(err, new(*fs.PathError)) {
			return err
		}
		return fmt.Errorf("%s is not a program for Linux: %w: %w", file, errs.Invalid, err)
	}
	defer f.Close()
	loader, err := interpreter(f)
	if err != nil {
		return err
	}
	if loader != "" {
		return fmt.Errorf("%s is linked dynamically, and images of components have no libraries; build it with CGO_ENABLED=0: %w", file, errs.Invalid)
	}
	return nil
}
