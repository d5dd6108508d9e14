//go:build integration

package integration

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestModesBelowRootAndState: with any umask of the daemon, no other user of the host can write
// below root and state, or list or read them. Users can pass through some directories, because the
// root of a pod with a user namespace has to.
func TestModesBelowRootAndState(t *testing.T) {
	for name, umask := range map[string]int{"umask 0": 0, "umask 077": 0o077} {
		t.Run(name, func(t *testing.T) {
			b := harness.New(t, harness.Options{})
			old := syscall.Umask(umask)
			defer syscall.Umask(old)
			b.StartDaemon()
			syscall.Umask(old)
			b.ImportBusybox()
			for name, change := range map[string]podChange{
				"plain": func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig) {}, "users": inUsers(nil),
				"terminal": func(_ *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
					container.Tty, container.Stdin = true, true
				},
				"shared": func(config *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig) {
					config.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
					container.Linux.SecurityContext.NamespaceOptions = config.Linux.SecurityContext.NamespaceOptions
				},
			} {
				if name == "users" && b.Refuses(translate.UserNamespaces) != nil {
					continue
				}
				pod := runPodWith(b, name, "echo line; mkdir -m 777 /open && touch /open/file && exec sleep 100000", change)
				b.ExecOut(pod.Container, "until [ -e /open/file ]; do sleep 0.05; done")
				if info, err := os.Stat(pod.LogFile); err != nil || info.Mode().Perm()&0o022 != 0 {
					t.Errorf("the log of %s: %v, %v", name, info, err)
				}
			}
			seen := 0
			for _, dir := range []string{b.Root, b.State} {
				seen += checkModes(t, dir)
			}
			if seen < 50 && b.Docker == nil || seen == 0 { // an engine has directories of its own
				t.Errorf("%d files and directories were looked at", seen)
			}
		})
	}
}

// checkModes checks each file and directory that another user of the host can reach.
func checkModes(t *testing.T, top string) (seen int) {
	t.Helper()
	if err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return nil //nolint:nilerr // it is gone
		}
		seen++
		name := strings.TrimPrefix(path, filepath.Dir(top))
		mode := info.Mode()
		switch others := mode.Perm() & 0o007; {
		case mode&os.ModeSymlink != 0:
		case mode.Perm()&0o022 != 0:
			t.Errorf("%s is %s: its group or others can write to it", name, mode)
		case strings.Contains(name, "/engine/pod-init"): // a sealed mount, of a program and nothing of a pod's
		case others&0o004 != 0:
			t.Errorf("%s is %s: others can list or read it", name, mode)
		case !mode.IsDir() && others != 0:
			t.Errorf("%s is %s: others can use it", name, mode)
		}
		if mode.IsDir() && mode.Perm()&0o001 == 0 {
			return seeClosed(path, &seen)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return seen
}

// seeClosed counts the files below a directory that no other user can enter. Files of containers
// and images there keep their own modes.
func seeClosed(dir string, seen *int) error {
	entries, err := os.ReadDir(dir)
	*seen += len(entries)
	if err != nil {
		return err
	}
	return fs.SkipDir
}
