package keep

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

const testBoot = "11111111-2222-3333-4444-555555555555"

func mustOpen(t *testing.T, path, boot string) *ledger {
	t.Helper()
	l, err := openLedger(path, boot)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.file.Close() })
	return l
}

func mustAdd(t *testing.T, l *ledger, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		e := entry{syscall.WaitStatus(i % 256 << 8), time.Unix(int64(i), int64(i))}
		if err := l.add(identity{i, uint64(i) * 3}, e); err != nil {
			t.Fatal(err)
		}
	}
}

func has(l *ledger, i int) bool {
	e, ok := l.lookup(identity{i, uint64(i) * 3})
	return ok && e.status.ExitStatus() == i%256 && e.at.Equal(time.Unix(int64(i), int64(i)))
}

func TestTruncatedLedgerKeepsWholeRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	const count = 5
	mustAdd(t, mustOpen(t, path, testBoot), 1, count+1)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for size := range len(whole) + 1 {
		if err := os.WriteFile(path, whole[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		l := mustOpen(t, path, testBoot)
		records := max(0, size-ledgerHead) / ledgerRecord
		for i := 1; i <= count; i++ {
			if has(l, i) != (i <= records) {
				t.Fatalf("cut to %d bytes: record %d is there: %v", size, i, has(l, i))
			}
		}
		mustAdd(t, l, 100, 101)
		if again := mustOpen(t, path, testBoot); !has(again, 100) || len(again.entries) != records+1 {
			t.Fatalf("cut to %d bytes: %d entries after one more", size, len(again.entries))
		}
	}
}

func TestLedgerLeavesOutDamageAndOtherBoots(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	mustAdd(t, mustOpen(t, path, testBoot), 1, 4)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[ledgerHead+ledgerRecord+9] ^= 0x40
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	l := mustOpen(t, path, testBoot)
	if !has(l, 1) || has(l, 2) || !has(l, 3) {
		t.Errorf("entries %v", l.entries)
	}
	if other := mustOpen(t, path, "another boot"); len(other.entries) != 0 {
		t.Errorf("entries of another boot: %v", other.entries)
	}
}

func TestLedgerDropsEntriesAndStaysSmall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l := mustOpen(t, path, testBoot)
	for i := 1; i <= 10*ledgerSlack; i++ {
		mustAdd(t, l, i, i+1)
		if i%10 == 0 {
			continue
		}
		if err := l.forget(identity{i, uint64(i) * 3}); err != nil {
			t.Fatal(err)
		}
	}
	again := mustOpen(t, path, testBoot)
	if len(again.entries) != ledgerSlack || !has(again, 10) || has(again, 11) {
		t.Errorf("%d entries", len(again.entries))
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() != ledgerHead+ledgerSlack*ledgerRecord {
		t.Errorf("size after a fresh start: %v %v", info.Size(), err)
	}
	mustAdd(t, again, 1_000_000, 1_000_000+2*ledgerKeep)
	if len(again.entries) != ledgerKeep || has(again, 10) || !has(again, 1_000_000+2*ledgerKeep-1) {
		t.Errorf("%d entries of at most %d", len(again.entries), ledgerKeep)
	}
	if info, err = os.Stat(path); err != nil || info.Size() > ledgerHead+(2*ledgerKeep+ledgerSlack+1)*ledgerRecord {
		t.Errorf("size of a full ledger: %v %v", info.Size(), err)
	}
}
