//go:build integration

package noderoutes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness/hungfs"
)

// TestDeadMount: the file is on a file system that does not answer. berth starts, compares and ends all the same, and the
// routes of its last start stay. It reads the file once that can be read.
func TestDeadMount(t *testing.T) {
	l := newLab(t)
	behind, at := l.path("behind"), l.path("dead")
	if err := errors.Join(os.Mkdir(behind, 0o755), os.Mkdir(at, 0o755)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(at, "routes")
	l.replace(filepath.Join(behind, "routes"), "10.1.0.0/24 via 192.0.2.11\n")
	disk := hungfs.Mount(t, behind, at)
	l.close(l.follow(file))
	disk.Hang()
	ended := make(chan error, 1)
	info := map[string]string{}
	go func() {
		f, err := Follow(l.config(file))
		if err == nil {
			f.Check()
			f.AddTo(info)
			err = f.Close()
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil || !strings.Contains(info["routesFault"], file) || !strings.Contains(info["routesFault"], "has not answered") {
			t.Errorf("%v %v", info, err)
		}
	case <-time.After(require.Patience(10 * time.Second)):
		t.Fatal("it waits for the file system")
	}
	l.want(route1)
	disk.Answer()
	l.replace(filepath.Join(behind, "routes"), "10.2.0.0/24 via 192.0.2.12\n")
	f := l.follow(file)
	l.want(route2)
	info = map[string]string{}
	if f.AddTo(info); info["routesFault"] != "" {
		t.Error(info)
	}
	l.close(f)
}
