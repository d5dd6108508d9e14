package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/errs"
)

// Host returns the sources of what the host is.
func Host(cfg *config.Daemon) []Source {
	file := func(source string, names ...string) Source {
		return Source{Name: source, Collect: func(_ context.Context, add Add) error { return collectFiles(names, add) }}
	}
	return []Source{
		file("kernel", "/proc/version", "/proc/cmdline", "/etc/os-release", "/proc/sys/kernel/random/boot_id", "/sys/kernel/security/lsm"),
		file("load", "/proc/uptime", "/proc/loadavg", "/proc/meminfo", "/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io", "/proc/sys/fs/file-nr"),
		file("cgroups", "/proc/self/cgroup", "/proc/cgroups", "/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/cgroup.subtree_control"),
		file("mounts", "/proc/self/mountinfo"),
		file("routes", "/proc/net/route", "/proc/net/ipv6_route"),
		{Name: "sysctls", Collect: collectSysctls},
		{Name: "disks", Collect: func(_ context.Context, add Add) error { return collectDisks(cfg, add) }},
		{Name: "network namespaces", Collect: func(_ context.Context, add Add) error { return collectNamespaces(cfg, add) }},
		{Name: "interfaces", Collect: collectInterfaces},
		{Name: "nftables", Collect: collectTables},
		{Name: "processes", Collect: collectProcesses},
		{Name: "kernel's log", Collect: func(ctx context.Context, add Add) error {
			return collectOutput(ctx, add, "logs/dmesg.txt", "dmesg", "--ctime")
		}},
	}
}

// collectFiles adds files of the host by their paths. One that the kernel does not have is left out.
func collectFiles(names []string, add Add) error {
	var failed []error
	for _, name := range names {
		content, err := readBounded(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = add("host"+name, Text, content)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// sysctls are those that decide whether pods can run.
func sysctls() []string {
	return []string{
		"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/bridge/bridge-nf-call-iptables", "net/ipv4/conf/all/rp_filter",
		"fs/inotify/max_user_instances", "fs/inotify/max_user_watches", "fs/file-max", "kernel/pid_max", "kernel/threads-max",
		"user/max_user_namespaces", "kernel/unprivileged_userns_clone", "vm/overcommit_memory", "vm/max_map_count", "kernel/panic",
	}
}

func collectSysctls(_ context.Context, add Add) error {
	var text strings.Builder
	for _, name := range sysctls() {
		if value, err := os.ReadFile(filepath.Join("/proc/sys", name)); err == nil {
			fmt.Fprintf(&text, "%s = %s\n", strings.ReplaceAll(name, "/", "."), bytes.TrimSpace(value))
		}
	}
	return add("host/sysctls.txt", Text, []byte(text.String()))
}

// collectDisks has the room of the file systems that berth uses. One that hangs takes the time of this source alone.
func collectDisks(cfg *config.Daemon, add Add) error {
	var text strings.Builder
	fmt.Fprintln(&text, "directory  type  bytes  free  inodes  free")
	for _, dir := range []string{"/", "/tmp", "/var/log", "/var/lib/kubelet", cfg.Root, cfg.State, filepath.Join(cfg.Root, "images")} {
		var st unix.Statfs_t
		switch err := unix.Statfs(dir, &st); {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			fmt.Fprintf(&text, "%s  %v\n", dir, err)
		default:
			size := uint64(st.Bsize) //nolint:gosec // not negative
			fmt.Fprintf(&text, "%s  %#x  %d  %d  %d  %d\n", dir, st.Type, st.Blocks*size, st.Bavail*size, st.Files, st.Ffree)
		}
	}
	return add("host/disks.txt", Text, []byte(text.String()))
}

func collectNamespaces(cfg *config.Daemon, add Add) error {
	var text strings.Builder
	dirs := []string{cfg.Network.NetNSDir, "/run/netns"}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, entry := range entries {
			name := filepath.Join(dir, entry.Name())
			var st unix.Stat_t
			if err := unix.Lstat(name, &st); err != nil {
				fmt.Fprintf(&text, "%s  %v\n", name, err)
				continue
			}
			fmt.Fprintf(&text, "%s  device %d  inode %d\n", name, st.Dev, st.Ino)
		}
	}
	return add("host/netns.txt", Text, []byte(text.String()))
}

func collectInterfaces(_ context.Context, add Add) error {
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, link := range all {
		fmt.Fprintf(&text, "%d: %s  mtu %d  %s  %s\n", link.Index, link.Name, link.MTU, link.Flags, link.HardwareAddr)
		addresses, err := link.Addrs()
		if err != nil {
			fmt.Fprintf(&text, "    %v\n", err)
		}
		for _, address := range addresses {
			fmt.Fprintf(&text, "    %s\n", address)
		}
	}
	return add("host/interfaces.txt", Text, []byte(text.String()))
}

// collectTables has berth's own tables of nftables, and the names of the others.
func collectTables(ctx context.Context, add Add) error {
	if _, err := exec.LookPath("nft"); err != nil {
		return fmt.Errorf("the program nft is not installed: %w", errs.Unsupported)
	}
	listed, err := output(ctx, "nft", "list", "tables")
	if err != nil {
		return err
	}
	text := slices.Clone(listed)
	for line := range strings.Lines(string(listed)) {
		words := strings.Fields(line) // table FAMILY NAME
		if len(words) != 3 || !strings.HasPrefix(words[2], "berth") {
			continue
		}
		table, err := output(ctx, "nft", "-a", "list", "table", words[1], words[2])
		if err != nil {
			return errors.Join(add("host/nftables.txt", Text, text), err)
		}
		text = append(append(text, '\n'), table...)
	}
	return add("host/nftables.txt", Text, text)
}

// collectProcesses lists the processes of berth and of those that it works with, with their cgroups.
func collectProcesses(_ context.Context, add Add) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		describeProcess(&text, pid)
	}
	return add("host/processes.txt", Text, []byte(text.String()))
}

// describeProcess adds a line for a process, with the command line of those whose flags matter. Others may have secrets
// in theirs.
func describeProcess(text *strings.Builder, pid int) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return // it has ended
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	fmt.Fprintf(text, "%d  parent %s  %s  %s  rss %s", pid, fields["PPid"], fields["Name"], fields["State"], fields["VmRSS"])
	if cgroup, err := os.ReadFile(filepath.Join(dir, "cgroup")); err == nil {
		groups := strings.Fields(string(cgroup))
		if len(groups) > 0 {
			fmt.Fprintf(text, "  %s", groups[len(groups)-1])
		}
	}
	if wait, err := os.ReadFile(filepath.Join(dir, "wchan")); err == nil && len(wait) > 1 {
		fmt.Fprintf(text, "  in %s", wait)
	}
	if slices.Contains([]string{"berth", "berth-supervisor"[:15], "kubelet", "containerd", "dockerd", "crio"}, fields["Name"]) {
		if line, err := os.ReadFile(filepath.Join(dir, "cmdline")); err == nil {
			fmt.Fprintf(text, "  $ %s", bytes.ReplaceAll(bytes.TrimRight(line, "\x00"), []byte{0}, []byte(" ")))
		}
	}
	text.WriteByte('\n')
}

// Logs returns the sources of logs: the journal of systemd's units, and files, each by its last bytes.
func Logs(units []string, lines int, files []string) []Source {
	var sources []Source
	for _, unit := range units {
		sources = append(sources, Source{Name: "journal of " + unit, Collect: func(ctx context.Context, add Add) error {
			return collectOutput(ctx, add, "logs/"+unit+".txt", "journalctl", "--no-pager", "--output=short-iso-precise", "--lines="+strconv.Itoa(lines), "--unit="+unit)
		}})
	}
	for i, name := range files {
		sources = append(sources, Source{Name: "log " + name, Collect: func(_ context.Context, add Add) error {
			content, err := tail(name, maxFile)
			if err != nil {
				return err
			}
			return add(fmt.Sprintf("logs/%d-%s", i+1, filepath.Base(name)), Text, content)
		}})
	}
	return sources
}

// tail reads the end of a file.
func tail(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file: %w", name, errs.Invalid)
	}
	from := max(info.Size()-most, 0)
	content := make([]byte, info.Size()-from)
	n, err := f.ReadAt(content, from)
	if n < len(content) && err != nil && n == 0 {
		return nil, err
	}
	return content[:n], nil
}

// collectOutput adds what a program prints.
func collectOutput(ctx context.Context, add Add, name, program string, args ...string) error {
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("the program %s is not installed: %w", program, errs.Unsupported)
	}
	text, err := output(ctx, program, args...)
	if err != nil {
		return err
	}
	return add(name, Text, text)
}

// output is what a program prints, at most maxRead bytes of it.
func output(ctx context.Context, program string, args ...string) ([]byte, error) {
	var said, failure limited
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &said, &failure
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, err, bytes.TrimSpace(failure.buf.Bytes()))
	}
	return said.buf.Bytes(), nil
}

// limited is a buffer that drops what is beyond maxRead.
type limited struct{ buf bytes.Buffer }

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	if room := maxRead - l.buf.Len(); room > 0 {
		l.buf.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}
