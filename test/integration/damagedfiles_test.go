//go:build integration

package integration

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
)

// TestNoRecordKeepsTheDaemonFromStarting: the records of pods, networks and root filesystems are
// all empty, or have other content, when the daemon starts. The daemon serves, reports the records
// that it could not read, and the next pod runs.
func TestNoRecordKeepsTheDaemonFromStarting(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for damage, data := range map[string]string{"empty": "", "something else": strings.Repeat("\xff\x00junk{", 600)} {
		runPodWith(b, "shared", "exec sleep 1000", sharedProcesses)
		b.AwaitExit(b.RunPod("ended", "exit 3").Container)
		b.KillDaemon()
		files := ownRecords(t, b)
		for _, file := range files {
			if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		b.StartDaemon()
		pod := b.RunPod("next", "exec sleep 1000")
		if got := b.ExecOut(pod.Container, "echo up"); got != "up" {
			t.Errorf("%s: the next pod says %q", damage, got)
		}
		b.RemovePod(pod.Sandbox)
		log, err := os.ReadFile(filepath.Join(b.Dir, "berth.log"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			aside := filepath.Base(filepath.Dir(file)) + "-" + filepath.Base(file)
			if filepath.Ext(file) == ".json" && !strings.Contains(file, "/engine/") && !strings.Contains(string(log), aside) {
				t.Errorf("%s: the log does not name %s", damage, file)
			}
		}
	}
}

// ownRecords returns the files that the daemon reads at its start. The databases of images have
// tests of their own.
func ownRecords(t *testing.T, b *harness.Berth) (files []string) {
	t.Helper()
	for _, dir := range []string{"root/pods", "root/network", "root/images/containers", "state/pods", "state/network", "state/engine"} {
		err := filepath.WalkDir(filepath.Join(b.Dir, dir), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, os.ErrNotExist):
				return nil
			case err != nil:
				return err
			case entry.IsDir() && slices.Contains([]string{"fs", "upper", "work", "rootfs", "quarantine", "pod-init"}, entry.Name()):
				return fs.SkipDir
			case entry.Type().IsRegular() && (filepath.Ext(path) == ".json" || entry.Name() == "image"):
				files = append(files, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(files) < 5 {
		t.Fatalf("only %q", files)
	}
	return files
}
