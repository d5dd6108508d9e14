package xtables

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// nftProgram is the file that all programs of the variant nf_tables are links to. A program with another file, such as a
// script that chooses a variant, may do anything.
const nftProgram = "xtables-nft-multi"

// file is one state of a program's file.
type file struct {
	device, inode uint64
	size          int64
	changed       time.Time
}

// versions remembers which files are of a version that this package knows.
type versions struct {
	mu    sync.Mutex
	files map[file]bool
}

var seen versions //nolint:gochecknoglobals // the programs are those of the process's PATH, for all calls

// isNFTables reports whether the iptables of a family keeps its tables in nftables, with rules that this package knows.
// It is false while there are tables of the legacy variant, too. It asks each file of a program once for its version.
func isNFTables(ctx context.Context, environ []string, v6 bool) bool {
	p := place{v6: v6, environ: environ}
	path, err := exec.LookPath(p.name(""))
	if err != nil {
		return false
	}
	if old, err := legacyTables(v6); err != nil || len(old) > 0 {
		return false
	}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return false
	}
	return seen.isKnown(file{uint64(stat.Dev), stat.Ino, stat.Size, time.Unix(stat.Mtim.Unix())}, func() (bool, error) {
		target, err := filepath.EvalSymlinks(path)
		if err != nil || filepath.Base(target) != nftProgram {
			return false, err
		}
		text, err := p.run(exec.CommandContext(ctx, path, "--version"))
		return isKnownVersion(text), err
	})
}

// isKnown reports whether a file is of a known version. An error of ask leaves that open for the next call.
func (v *versions) isKnown(f file, ask func() (bool, error)) bool {
	v.mu.Lock()
	known, ok := v.files[f]
	v.mu.Unlock()
	if ok {
		return known
	}
	known, err := ask() // a program that hangs keeps its caller alone
	if err != nil {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.files == nil {
		v.files = map[file]bool{}
	}
	v.files[f] = known
	return known
}

// isKnownVersion reports whether programs of a version write rules in the form of encode, or can read it. That form is
// of 1.8.9. An older version cannot read the ports and marks that nftables itself compares.
func isKnownVersion(text string) bool {
	var name string
	var major, minor, patch int
	if _, err := fmt.Sscanf(text, "%s v%d.%d.%d (nf_tables)", &name, &major, &minor, &patch); err != nil {
		return false
	}
	return major == 1 && (minor > 8 || minor == 8 && patch >= 9)
}
