package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Bootable creates a directory of binaries, for Options.BinDir. Its daemon sees another boot id
// after each Reboot: a file of this directory is mounted over the kernel's, in a mount namespace of
// the daemon's own.
func Bootable(t testing.TB) string {
	t.Helper()
	bin, dir := BinDir(t), t.TempDir()
	script := fmt.Sprintf(`#!/bin/sh
[ "$1" = serve ] || exec %[1]s/berth "$@"
exec unshare --mount --propagation unchanged sh -c '
mount --make-rprivate /proc && mount --bind %[2]s/boot_id /proc/sys/kernel/random/boot_id && exec %[1]s/berth "$@"' berth "$@"
`, bin, dir)
	must(t, os.WriteFile(filepath.Join(dir, "berth"), []byte(script), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, bootFile), bootID(0), 0o644))
	return dir
}

const bootFile = "boot_id"

func bootID(n int) []byte { return fmt.Appendf(nil, "00000000-0000-4000-8000-%012d\n", n) }

// Reboot does to a stopped or running instance what a reboot of the machine does. Every process,
// mount, network and cgroup is gone, and so are the files on tmpfs. The boot id is another one.
// Files on disk remain.
func (b *Berth) Reboot() {
	b.T.Helper()
	if b.Running() {
		b.KillDaemon()
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) { // processes die, then their cgroups can go
		left := FindLeftovers(b.Dir)
		if left.Empty() {
			break
		}
		if time.Now().After(deadline) {
			b.T.Fatalf("the machine does not go down:\n%s", left)
		}
		left.RemoveByForce()
	}
	must(b.T, os.RemoveAll(b.State))
	removeHost(b.T, b.NetNS)
	makeHost(b.T, b.NetNS)
	b.boots++
	must(b.T, os.WriteFile(filepath.Join(b.Bin, bootFile), bootID(b.boots), 0o644))
}
