package xtables

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestKnownVersions(t *testing.T) {
	for text, want := range map[string]bool{
		"iptables v1.8.9 (nf_tables)\n": true, "ip6tables v1.8.11 (nf_tables)\n": true, "iptables v1.9.0 (nf_tables)\n": true,
		"iptables v1.8.7 (nf_tables)\n": false, "iptables v1.8.9 (legacy)\n": false, "iptables v1.6.2\n": false, "iptables v2.0.0 (nf_tables)\n": false, "": false,
	} {
		if got := isKnownVersion(text); got != want {
			t.Errorf("%q: %t, want %t", text, got, want)
		}
	}
}

// TestVersionIsAskedOnce: a file is asked again when it changes, or when it did not answer.
func TestVersionIsAskedOnce(t *testing.T) {
	var v versions
	asked := 0
	answer := func() (bool, error) {
		if asked++; asked == 1 {
			return false, errors.New("no process")
		}
		return true, nil
	}
	f := file{inode: 1, size: 1, changed: time.Unix(1, 0)}
	for i, want := range []bool{false, true, true} {
		if got := v.isKnown(f, answer); got != want {
			t.Errorf("call %d: %t, want %t", i, got, want)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times, want 2", asked)
	}
	f.changed = time.Unix(2, 0)
	if !v.isKnown(f, answer) || asked != 3 {
		t.Errorf("asked %d times of two files, want 3", asked)
	}
}

// TestOtherProgramsAreNotKnown: a program with the name iptables may be anything, such as a script that chooses the variant.
func TestOtherProgramsAreNotKnown(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if isNFTables(t.Context(), nil, false) {
		t.Error("a host without iptables")
	}
	script := []byte("#!/bin/sh\necho 'iptables v1.8.9 (nf_tables)'\n")
	if err := os.WriteFile(filepath.Join(dir, "iptables"), script, 0o755); err != nil {
		t.Fatal(err)
	}
	if isNFTables(t.Context(), nil, false) {
		t.Error("a script")
	}
}
