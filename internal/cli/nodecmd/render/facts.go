package render

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/provision/node/facts"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/node/distro"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/render"
)

// facts builds facts from flags.
func (r *renderRun) facts(n *nodefile.Node) (facts.Facts, []string, error) {
	id, version, _ := strings.Cut(r.distribution, ":")
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*(:[A-Za-z0-9._-]+)?$`).MatchString(r.distribution) {
		return facts.Facts{}, nil, fmt.Errorf("--distribution %q: want one such as debian:12 or flatcar: %w", r.distribution, errs.Invalid)
	}
	d, err := distro.Release(id + " " + version)
	if err != nil {
		return facts.Facts{}, nil, fmt.Errorf("--distribution %s: %w", r.distribution, err)
	}
	if r.selinuxSet {
		d.SELinux = r.selinux
	}
	s := facts.Assumptions{Distro: d, Arch: r.arch, NvidiaCTK: r.nvidiaCTK, File: r.nodePath, Read: os.ReadFile}
	if !slices.Contains([]string{"amd64", "arm64", "arm", "386", "ppc64le", "s390x", "riscv64", "loong64"}, r.arch) {
		return facts.Facts{}, nil, fmt.Errorf("--arch %q: want amd64, arm64, …: %w", r.arch, errs.Invalid)
	}
	if r.nodePath != "" && (!path.IsAbs(r.nodePath) || path.Clean(r.nodePath) != r.nodePath) {
		return facts.Facts{}, nil, fmt.Errorf("--node-file %q: is not absolute and clean: %w", r.nodePath, errs.Invalid)
	}
	if r.runtimeVersion != "" {
		v, err := nodefile.ParseVersion(r.runtimeVersion)
		if err != nil {
			return facts.Facts{}, nil, fmt.Errorf("--runtime-version: %w", err)
		}
		s.Versions = map[string]nodefile.Version{n.Runtime.Name: v}
	}
	for _, p := range []struct {
		flag  string
		given render.Fetched
		to    *facts.Binary
	}{{"berth", r.berth, &s.Berth}, {"supervisor", r.supervisor, &s.Supervisor}} {
		if err := checkFetched(p.flag, p.given); err != nil {
			return facts.Facts{}, nil, err
		}
		*p.to = facts.Binary{Path: p.given.Source, Digest: p.given.Digest}
	}
	return facts.Assume(n, s)
}

// checkFetched requires both the URL and the digest of a program, or neither.
func checkFetched(flag string, f render.Fetched) error {
	switch {
	case f == render.Fetched{}:
		return nil
	case !strings.HasPrefix(f.Source, "https://") && !strings.HasPrefix(f.Source, "http://"):
		return fmt.Errorf("--%s %q: want a URL with http or https: %w", flag, f.Source, errs.Invalid)
	case !regexp.MustCompile(`^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`).MatchString(f.Digest):
		return fmt.Errorf("--%s-digest %q: want sha256:… or sha512:…: %w", flag, f.Digest, errs.Invalid)
	}
	return nil
}
