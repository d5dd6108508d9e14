package child

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/ownstart/order"
)

// A node of the host is mounted only when it is the device of the order.
func TestMountDeviceChecksTheNode(t *testing.T) {
	dir := t.TempDir()
	fifo, file := filepath.Join(dir, "fifo"), filepath.Join(dir, "file")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		path         string
		kind         uint64
		major, minor uint64
		want         string
	}{
		"same":         {"/dev/null", unix.S_IFCHR, 1, 3, ""},
		"minor":        {"/dev/null", unix.S_IFCHR, 1, 5, "it is character device 1:3, not character device 1:5"},
		"major":        {"/dev/null", unix.S_IFCHR, 10, 3, "it is character device 1:3, not character device 10:3"},
		"type":         {"/dev/null", unix.S_IFBLK, 1, 3, "it is character device 1:3, not block device 1:3"},
		"file":         {file, unix.S_IFCHR, 1, 3, "it is another file 0:0, not character device 1:3"},
		"fifo":         {fifo, unix.S_IFIFO, 0, 0, ""},
		"fifo, number": {fifo, unix.S_IFIFO, 7, 7, ""},
		"no fifo":      {file, unix.S_IFIFO, 0, 0, "not FIFO"},
	} {
		t.Run(name, func(t *testing.T) {
			node, err := unix.Open(tc.path, unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(node)
			err = checkNode(node, &order.Device{Path: "/dev/x", Mode: tc.kind | 0o666, Major: tc.major, Minor: tc.minor})
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
