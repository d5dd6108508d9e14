package ioclass

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// Resctrl is where the kernel's groups of RDT are mounted.
const Resctrl = "/sys/fs/resctrl"

// RDT returns what a class of RDT is: a group below root, where resctrl is mounted. The error is a *NotEnabledError
// where it is not mounted; kind Invalid when there is no such group.
func RDT(root, class string) (*specs.LinuxIntelRdt, error) {
	if _, err := os.Stat(filepath.Join(root, "schemata")); err != nil {
		return nil, &NotEnabledError{fmt.Sprintf("class of RDT %q: resctrl is not mounted at %s", class, root)}
	}
	groups, err := groupsOf(root)
	if err != nil {
		return nil, fmt.Errorf("class of RDT %q: %w", class, err)
	}
	if !slices.Contains(groups, class) {
		return nil, fmt.Errorf("no class of RDT is named %q; %s has %s: %w", class, root, strings.Join(groups, ", "), errs.Invalid)
	}
	return &specs.LinuxIntelRdt{ClosID: class}, nil
}

// groupsOf lists the groups, sorted: the directories with a file schemata.
func groupsOf(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var groups []string
	for _, entry := range entries {
		if _, err := os.Stat(filepath.Join(root, entry.Name(), "schemata")); err == nil && entry.IsDir() {
			groups = append(groups, entry.Name())
		}
	}
	return groups, nil
}
