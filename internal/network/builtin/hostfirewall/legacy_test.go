package hostfirewall

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestHeldLockOfLegacyTables: while a program waits for the lock of iptables-legacy, nothing else waits for it. The next
// check comes legacyAge after its end.
func TestHeldLockOfLegacyTables(t *testing.T) {
	dir := t.TempDir()
	program, calls, release := filepath.Join(dir, "iptables-legacy"), filepath.Join(dir, "calls"), filepath.Join(dir, "release")
	script := fmt.Sprintf("#!/bin/sh\necho $2 >>%s\nuntil [ -e %s ]; do sleep 0.02; done\nexit 4\n", calls, release)
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	f := New("br", "table", slog.New(slog.DiscardHandler))
	f.legacyTables = func() []legacyTable { return []legacyTable{{program}} }
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.EnsureLegacy(t.Context())
	}()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(calls); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the program does not run")
		}
	}
	began := time.Now()
	f.EnsureLegacy(t.Context())
	if note := f.Note(); note != "" || f.Due(false, true) {
		t.Errorf("%q", note)
	}
	if took := time.Since(began); took > legacyTimeout/2 {
		t.Errorf("waited for %s", took)
	}
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	<-done
	f.EnsureLegacy(t.Context())
	if seen, err := os.ReadFile(calls); err != nil || string(seen) != "-S\n" {
		t.Errorf("calls %q, %v", seen, err)
	}
	if note := f.Note(); note == "" {
		t.Error("no note of the table")
	}
}
