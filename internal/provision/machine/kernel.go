package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// kernel is the running kernel.
type kernel struct{ machine *Machine }

// sysctlPath turns "net.ipv4.conf.eth0/1.rp_filter" into a path: dots separate, and a
// slash stands for a dot in a name.
func sysctlPath(key string) string {
	return filepath.Join("/proc/sys", strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, key))
}

// Sysctl reads /proc/sys.
func (kernel) Sysctl(key string) (string, error) {
	data, err := os.ReadFile(sysctlPath(key))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("sysctl %s: %w", key, errs.NotFound)
	}
	if err != nil {
		return "", fmt.Errorf("cannot read sysctl %s: %w", key, err)
	}
	return strings.TrimSpace(string(data)), nil
}

// SetSysctl writes /proc/sys.
func (kernel) SetSysctl(key, value string) error {
	if err := os.WriteFile(sysctlPath(key), []byte(value), 0o644); err != nil {
		return fmt.Errorf("cannot set sysctl %s to %q: %w", key, value, kind(err))
	}
	return nil
}

// Module looks for a module that is loaded, built in, or on disk.
func (kernel) Module(name string) (provision.ModuleState, error) {
	name = strings.ReplaceAll(name, "-", "_")
	if _, err := os.Stat("/sys/module/" + name); err == nil {
		return provision.ModuleLoaded, nil
	}
	// Some that are built in have no parameters, and so no directory in /sys/module.
	if data, err := os.ReadFile("/proc/filesystems"); err == nil && slicesContainsField(string(data), name) {
		return provision.ModuleLoaded, nil
	}
	var uts syscall.Utsname
	if err := syscall.Uname(&uts); err != nil {
		return "", fmt.Errorf("cannot learn the kernel's release: %w", err)
	}
	dir := "/lib/modules/" + release(uts.Release)
	for file, state := range map[string]provision.ModuleState{
		"modules.builtin": provision.ModuleLoaded, "modules.dep": provision.ModuleAvailable,
	} {
		found, err := lists(filepath.Join(dir, file), name)
		if err != nil {
			return "", err
		}
		if found {
			return state, nil
		}
	}
	return provision.ModuleAbsent, nil
}

func slicesContainsField(text, name string) bool {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) > 0 && words[len(words)-1] == name {
			return true
		}
	}
	return false
}

// release is the text in a field of uname; its elements are signed on some architectures.
func release[T int8 | uint8](field [65]T) string {
	var b strings.Builder
	for _, c := range field {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

// lists reports whether a list of modules ("kernel/fs/overlayfs/overlay.ko.xz: …") has one.
func lists(path, name string) (bool, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read the list of modules: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		entry, _, _ := strings.Cut(lines.Text(), ":")
		base, _, _ := strings.Cut(filepath.Base(entry), ".ko")
		if strings.ReplaceAll(base, "-", "_") == name {
			return true, nil
		}
	}
	return false, lines.Err()
}

// LoadModule is modprobe.
func (kernel) LoadModule(ctx context.Context, name string) error {
	if _, err := run(ctx, provision.Command{Args: []string{"modprobe", name}}); err != nil {
		return fmt.Errorf("cannot load module %s: %w", name, err)
	}
	return nil
}

// UnloadModule is modprobe -r; a module in use stays.
func (kernel) UnloadModule(ctx context.Context, name string) error {
	if _, err := run(ctx, provision.Command{Args: []string{"modprobe", "-r", name}}); err != nil {
		return fmt.Errorf("module %s stays loaded: %w: %w", name, errs.State, err)
	}
	return nil
}

// Mounts reads /proc/self/mountinfo.
func (kernel) Mounts() ([]provision.Mount, error) {
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("cannot list mounts: %w", err)
	}
	list := make([]provision.Mount, len(infos))
	for i, info := range infos {
		list[i] = provision.Mount{
			Source: info.Source, Path: info.Mountpoint, Type: info.FSType, Options: strings.Split(info.Options, ","),
			Self: slices.ContainsFunc(infos, func(below *mountinfo.Info) bool { return below.ID == info.Parent && shows(below, info) }),
		}
	}
	return list, nil
}

// shows reports whether a mount shows what lies beneath it anyway.
func shows(below, m *mountinfo.Info) bool {
	rest, err := filepath.Rel(below.Mountpoint, m.Mountpoint)
	return err == nil && below.Major == m.Major && below.Minor == m.Minor && filepath.Join(below.Root, rest) == m.Root
}

// Unmount is umount(8); a mount in use stays.
func (kernel) Unmount(ctx context.Context, path string) error {
	if _, err := run(ctx, provision.Command{Args: []string{"umount", "--", path}}); err != nil {
		return fmt.Errorf("%s stays mounted: %w: %w", path, errs.State, err)
	}
	return nil
}

// Swaps reads /proc/swaps.
func (kernel) Swaps() ([]string, error) {
	data, err := os.ReadFile("/proc/swaps")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list swap: %w", err)
	}
	return swaps(string(data)), nil
}

// swaps are the files and devices of /proc/swaps, those in compressed memory as well: the kubelet counts every line.
func swaps(text string) []string {
	var list []string
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if words := strings.Fields(line); i > 0 && len(words) > 0 {
			list = append(list, words[0])
		}
	}
	return list
}

// SwapOn is swapon.
func (kernel) SwapOn(ctx context.Context, path string) error {
	if _, err := run(ctx, provision.Command{Args: []string{"swapon", path}}); err != nil {
		return fmt.Errorf("cannot turn swap %s on: %w", path, err)
	}
	return nil
}

// SwapOff is swapoff.
func (kernel) SwapOff(ctx context.Context, path string) error {
	if _, err := run(ctx, provision.Command{Args: []string{"swapoff", path}}); err != nil {
		return fmt.Errorf("cannot turn swap %s off: %w", path, err)
	}
	return nil
}

// Inotify creates as many inotify instances as it can, and closes them.
func (kernel) Inotify(atMost int) (int, error) {
	for spare := range atMost {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if errors.Is(err, unix.EMFILE) {
			return spare, nil
		}
		if err != nil {
			return spare, fmt.Errorf("cannot watch files: %w", err)
		}
		defer unix.Close(fd)
	}
	return atMost, nil
}
