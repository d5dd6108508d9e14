//go:build integration

package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// TestUpperOfACopy: a root filesystem that is a copy, on a host's overlay, has no changes that can be found. Those of the host
// are not its own.
func TestUpperOfACopy(t *testing.T) {
	require.Root(t)
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"lower", "upper", "work", "host", "copy"} {
		if err := os.Mkdir(in(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := errors.Join(sysmount.Detach(in("copy")), sysmount.Detach(in("host"))); err != nil {
			t.Error(err)
		}
	})
	overlay := sysmount.Overlay{LowerRoot: dir, Lower: []string{"lower"}, Upper: in("upper"), Work: in("work")}
	if err := errors.Join(sysmount.MountOverlay(overlay, in("host")), os.Mkdir(in("host/rootfs"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := sysmount.BindRoot(in("host/rootfs"), in("copy"), "", false); err != nil {
		t.Fatal(err)
	}
	if upper, err := upperOf(in("host")); err != nil || upper != in("upper") {
		t.Errorf("an overlay: %s, %v", upper, err)
	}
	if upper, err := upperOf(in("copy")); !errors.Is(err, errs.State) {
		t.Errorf("a copy: %s, %v", upper, err)
	}
}
