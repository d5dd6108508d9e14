package cgroup

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Paths maps controller to a cgroup's directory; on v2 the only key is "", on a
// hybrid host "" is the v2 hierarchy beside the controllers' own.
type Paths map[string]string

// unified reports whether the cgroup is of a unified hierarchy (v2 alone).
func (p Paths) unified() bool {
	_, ok := p[""]
	return ok && len(p) == 1
}

// dirs returns each directory once: controllers may be mounted together.
func (p Paths) dirs() []string {
	return slices.Compact(slices.Sorted(maps.Values(p)))
}

// SlicePath returns the cgroup of a systemd slice: "a-b.slice" is below "a.slice".
func SlicePath(slice string) (string, error) {
	name, ok := strings.CutSuffix(slice, ".slice")
	if !ok || strings.Contains(name, "/") || name == "" {
		return "", fmt.Errorf("%q is no slice: %w", slice, errs.Invalid)
	}
	if name == "-" {
		return "/", nil
	}
	path, prefix := "/", ""
	for part := range strings.SplitSeq(name, "-") {
		if part == "" {
			return "", fmt.Errorf("%q is no slice: %w", slice, errs.Invalid)
		}
		path = filepath.Join(path, prefix+part+".slice")
		prefix += part + "-"
	}
	return path, nil
}

// Processes returns the processes in the cgroup and below it, of one hierarchy: enough
// for figures. What has gone meanwhile has none.
func (p Paths) Processes() []int {
	key := ""
	if !p.unified() {
		key = "pids"
		if p[key] == "" {
			key = "memory"
		}
	}
	var pids []int
	_ = filepath.WalkDir(p[key], func(dir string, entry os.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil //nolint:nilerr // what has gone meanwhile has no processes
		}
		r := &reader{}
		for word := range strings.FieldsSeq(string(r.file(dir, "cgroup.procs"))) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}
