package erofs

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDigestIsThatOfFSVerity: the digests are those that the program fsverity of fsverity-utils prints.
func TestDigestIsThatOfFSVerity(t *testing.T) {
	for _, c := range []struct {
		size int
		want string
	}{
		{0, "sha256:3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95"},
		{1, "sha256:a69c9750a36dc72ee600de98ee0a8ecc947a7b9f2109a08ee42a045a07d0b74c"},
		{4096, "sha256:ac688925d6ebe08faf7f55c0df59aa582c1028771ae3a66e8b194c69cca16f43"},
		{4097, "sha256:26842acb77cf4c383a53e5328a6be338a02d70206f26799c5aa48c354e6f3038"},
		{128 * 4096, "sha256:d43e94a4bd6309c0611873dc967c3b469d169cfdfe3e8115636808c790ef80e1"},
		{129*4096 + 7, "sha256:e6aa88df339067f8db873c88f5b9c451da3ff3cfe29f6144b7c41ada04679827"},
		{3 << 20, "sha256:32d2764f5ec92bf9c85a52a0d2412fd65eb0cb7ec2157d627181f2335af8c380"},
	} {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, bytes.Repeat([]byte("berth"), c.size/5+1)[:c.size], 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := verityDigest(t.Context(), file, int64(c.size))
		if err != nil || got != c.want {
			t.Errorf("%d bytes have the digest %s, %v, want %s", c.size, got, err, c.want)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMemoryOfADigest: a layer of a few bytes may have a sparse file as large as the disk.
func TestMemoryOfADigest(t *testing.T) {
	const size = 192 << 20
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := verityDigest(t.Context(), file, size); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 5<<19 {
		t.Errorf("the digest of %d bytes took %d bytes of memory", size, took)
	}
}

// TestVerityWaitsForWriters: a process that berth forks has the descriptors of berth until it runs its program, also one by which
// berth has written a layer.
func TestVerityWaitsForWriters(t *testing.T) {
	calls := 0
	enable := func() error {
		if calls++; calls < 3 {
			return unix.ETXTBSY
		}
		return nil
	}
	if err := whileBusy(t.Context(), enable); err != nil || calls != 3 {
		t.Errorf("after %d calls: %v", calls, err)
	}
	other := errors.New("other")
	if err := whileBusy(t.Context(), func() error { return other }); !errors.Is(err, other) {
		t.Errorf("another error became %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	if err := whileBusy(ctx, func() error { return unix.ETXTBSY }); !errors.Is(err, gone) {
		t.Errorf("with a context that has ended: %v", err)
	}
}
