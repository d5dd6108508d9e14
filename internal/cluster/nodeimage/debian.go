package nodeimage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Packages are a node's Debian packages, in addition to the base system. haproxy is for load
// balancers, which are containers of the same image.
func Packages() []string {
	return []string{
		"systemd", "systemd-sysv", "dbus", "iproute2", "iptables", "nftables", "ipset", "conntrack", "ethtool",
		"kmod", "mount", "util-linux", "procps", "ca-certificates", "haproxy",
		"curl", "jq", // for people and scripts
	}
}

// debian creates the root filesystem.
func (b *builder) debian(ctx context.Context) error {
	if b.Rootfs != "" {
		for _, program := range []string{"usr/sbin/xtables-nft-multi", "usr/sbin/haproxy"} {
			if _, err := os.Stat(filepath.Join(b.Rootfs, program)); err != nil {
				return fmt.Errorf("%s is not a Debian root filesystem with %s: there is no /%s: %w", b.Rootfs, strings.Join(Packages(), ", "), program, errs.Invalid)
			}
		}
		return run(ctx, nil, "cp", "--archive", "--one-file-system", b.Rootfs+"/.", b.root) // also where it is a link
	}
	args := []string{"--variant=minbase", "--include=" + strings.Join(Packages(), ","), b.Suite, b.root}
	if b.Mirror != "" {
		args = append(args, b.Mirror)
	}
	return run(ctx, nil, "debootstrap", args...)
}

// useless are files that a node never reads.
func useless() []string {
	return []string{
		"var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*.log", "var/log/apt", "usr/share/doc/*", "usr/share/man/*",
		"usr/share/info/*", "usr/share/locale/*", "var/cache/debconf/*", "etc/machine-id", "var/lib/dbus/machine-id", "etc/hostname",
	}
}

// idle are units that do nothing in a container, or that only the host may run. A host has one
// tty1, which all nodes would compete for.
func idle() []string {
	return []string{
		"getty@tty1.service", "getty.target", "console-getty.service", "systemd-logind.service", "systemd-firstboot.service",
		"systemd-update-utmp.service", "systemd-update-utmp-runlevel.service", "systemd-modules-load.service", "systemd-sysctl.service",
		"systemd-remount-fs.service", "systemd-machine-id-commit.service", "systemd-random-seed.service", "systemd-binfmt.service",
		"systemd-pstore.service", "systemd-timesyncd.service", "systemd-hwdb-update.service", "systemd-udev-trigger.service",
		"systemd-udevd.service", "systemd-ask-password-wall.path", "systemd-ask-password-console.path",
		"dev-hugepages.mount", "dev-mqueue.mount", "sys-kernel-config.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount",
		"sys-fs-fuse-connections.mount", "kmod-static-nodes.service", "modprobe@.service",
		"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer",
		"systemd-tmpfiles-clean.timer", "nftables.service", "conntrackd.service", "haproxy.service", "remote-fs.target", "systemd-user-sessions.service",
	}
}

// trim removes what is useless and masks what is idle.
func (b *builder) trim() error {
	var all []error
	for _, pattern := range useless() {
		found, err := filepath.Glob(filepath.Join(b.root, pattern))
		all = append(all, err)
		for _, file := range found {
			all = append(all, os.RemoveAll(file))
		}
	}
	// systemd writes it, and takes a missing one for a read-only disk.
	all = append(all, os.WriteFile(filepath.Join(b.root, "etc/machine-id"), nil, 0o644))
	for _, unit := range idle() {
		file := filepath.Join(b.root, "etc/systemd/system", unit)
		all = append(all, os.RemoveAll(file), os.Symlink("/dev/null", file))
	}
	return errors.Join(all...)
}
