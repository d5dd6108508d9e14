package shim

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/server/ocicommand/launch"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// TestMain lets the test binary run as the launcher.
func TestMain(m *testing.M) {
	if len(os.Args) != 3 || os.Args[1] != launch.Role {
		os.Exit(m.Run())
	}
	if err := launch.Run(os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestPodOf(t *testing.T) {
	for annotation, want := range map[string]string{"": "id", "pod-1.x_Y": "pod-1.x_Y", "a/b": "!", "..": "!", strings.Repeat("a", 129): "!"} {
		pod, err := podOf("id", &specs.Spec{Annotations: map[string]string{sandboxAnnotation: annotation}})
		if want == "!" {
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("%q: %q %v", annotation, pod, err)
			}
			continue
		}
		if pod != want || err != nil {
			t.Errorf("%q: %q %v, want %q", annotation, pod, err, want)
		}
	}
}

// A shim names the path that is removed: what is not a socket without a listener stays.
func TestRemoveSocket(t *testing.T) {
	dir := t.TempDir()
	file, link, live, dead := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "live"), filepath.Join(dir, "dead")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(dead, link)); err != nil {
		t.Fatal(err)
	}
	for path, listens := range map[string]bool{live: true, dead: false} {
		listener, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		listener.(*net.UnixListener).SetUnlinkOnClose(false)
		if listens {
			defer listener.Close()
		} else {
			listener.Close()
		}
	}
	for _, path := range []string{file, link, live, dead} {
		removeSocket(t.Context(), path)
		if _, err := os.Lstat(path); (err != nil) != (path == dead) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// The process of a sandbox is one of the shim, or a descendant of it: berth kills it.
func TestStarted(t *testing.T) {
	parent, err := sysproc.ReadProc(os.Getppid())
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		shim process
		want bool
	}{
		"its parent":       {process{os.Getppid(), parent.Start}, true},
		"a former process": {process{os.Getppid(), parent.Start + 1}, false},
		"another process":  {process{1, 0}, false},
	} {
		if got := (&podState{Processes: []process{tc.shim}}).started(os.Getpid()); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestLastLine(t *testing.T) {
	for output, want := range map[string]string{"": "", "a\n\nb \n\n": "b", "\xff": "?", strings.Repeat("x", 2*maxLine): strings.Repeat("x", maxLine) + "..."} {
		if got := lastLine([]byte(output)); got != want {
			t.Errorf("%.40q: %.40q, want %.40q", output, got, want)
		}
	}
}
