package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Bootable makes a directory of binaries, for Options.BinDir, whose daemon sees
// another boot id after each Reboot: it has a file of this directory mounted over
// the kernel's, in a mount namespace of its own.
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

// Reboot does to a stopped or running instance what a restart of the machine does:
// every process, mount, network and cgroup is gone, and so is what lay on tmpfs; the
// boot id is another one. What lay on disk is there.
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
