package systemd

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Volatile lists what the package manager, the dynamic linker, systemd's timers, loggers and
// backups of account files write for themselves. All else must be as it was.
func Volatile() []string {
	return []string{
		"/var/log", "/etc/passwd-", "/etc/shadow-", "/etc/group-", "/etc/gshadow-", "/etc/subuid-", "/etc/subgid-",
		"/var/lib/dpkg/status-old", "/var/cache/debconf/config.dat-old", "/var/cache/debconf/templates.dat-old", "/var/cache/debconf/tmp.ci",
		"/var/lib/apt/extended_states", "/var/cache/apt/pkgcache.bin", "/var/cache/apt/srcpkgcache.bin",
		"/var/cache/ldconfig/aux-cache", "/var/lib/systemd/timers",
	}
}

// Tree describes the files on the machine's disk, one line each with its mode, owner, and content
// or target, except those at or below the paths without.
func (m *Machine) Tree(without ...string) []string {
	m.t.Helper()
	return Tree(m.t, m.Root, without...)
}

// Tree is a machine's Tree for any root directory.
func Tree(t testing.TB, root string, without ...string) []string {
	t.Helper()
	list, err := tree(root, without)
	if err != nil {
		t.Fatalf("cannot list the files of %s: %v", root, err)
	}
	return list
}

func tree(root string, without []string) ([]string, error) {
	var list []string
	err := filepath.WalkDir(root, func(at string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone since: a file of a program that runs
		}
		if err != nil {
			return err
		}
		path := "/" + strings.TrimPrefix(strings.TrimPrefix(at, root), "/")
		if slices.Contains(without, path) {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		line, err := describe(at)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		list = append(list, path+" "+line)
		return err
	})
	return list, err
}

// describe describes a file: its mode, its owner, and its content or target.
func describe(at string) (string, error) {
	info, err := os.Lstat(at)
	if err != nil {
		return "", err
	}
	owner := info.Sys().(*syscall.Stat_t)
	line := fmt.Sprintf("%v %d:%d", info.Mode(), owner.Uid, owner.Gid)
	switch info.Mode().Type() {
	case 0:
		sum, err := sumOf(at)
		return fmt.Sprintf("%s %d %s", line, info.Size(), sum), err
	case fs.ModeSymlink:
		target, err := os.Readlink(at)
		return line + " → " + target, err
	}
	return line, nil
}

func sumOf(at string) (string, error) {
	file, err := os.Open(at)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", hash.Sum(nil)[:8]), nil
}
