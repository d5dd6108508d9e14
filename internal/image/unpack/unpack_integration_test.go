//go:build integration

package unpack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/helper/program"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/cgroup"
)

// helper is the unpack helper, built once for all tests.
var helper program.Command

func TestMain(m *testing.M) {
	os.Exit(imagetest.RunWithUnpackHelper(m, &helper))
}

// bench is a directory with a layer that is unpacked, and one below it.
type bench struct {
	t      *testing.T
	root   string
	runner *Runner
}

func newBench(t *testing.T) *bench {
	require.Root(t)
	b := &bench{t: t, root: t.TempDir()}
	// Another run of these tests has a parent of its own: the sweep ends what it finds.
	cgroups, err := cgroup.NewHelperGroups(fmt.Sprint("berth-unpack-test-", os.Getpid()), "t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cgroups.Close)
	if err := cgroups.Sweep(); err != nil {
		t.Fatal(err)
	}
	b.runner = &Runner{Helper: helper, Cgroups: cgroups, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, dir := range []string{"upper", "lower"} {
		if err := os.Mkdir(filepath.Join(b.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b *bench) path(elem ...string) string {
	return filepath.Join(append([]string{b.root}, elem...)...)
}

func (b *bench) run(data []byte, lower ...string) (Result, error) {
	b.t.Helper()
	return b.runJob(data, Job{Lower: lower})
}

// runJob unpacks a layer by a job with the directories of the bench.
func (b *bench) runJob(data []byte, job Job) (Result, error) {
	b.t.Helper()
	name := b.path("blob")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		b.t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	job.Upper, job.LowerRoot, job.MaxBytes = b.path("upper"), b.root, 1<<30
	return b.runner.Run(context.Background(), job, f, nil)
}

func (b *bench) tar(layer imagetest.Layer) []byte {
	b.t.Helper()
	data, err := imagetest.Tar(layer)
	if err != nil {
		b.t.Fatal(err)
	}
	return data
}

func TestRunUnpacksWithOwnersModesAndDevices(t *testing.T) {
	syscall.Umask(0o077)
	defer syscall.Umask(0o022)
	b := newBench(t)
	data := b.tar(imagetest.Layer{
		{Path: "bin/su", Content: []byte("x"), Mode: 0o4755, UID: 7, GID: 8},
		{Path: "dev/null", Device: 'c', Major: 1, Minor: 3, Mode: 0o666},
		{Path: "pipe", Device: 'p'},
		{Path: "bin/ping", Content: []byte("y"), Xattrs: map[string]string{
			"security.capability":    "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
			"trusted.overlay.opaque": "y", "user.overlay.opaque": "y",
		}},
	})
	result, err := b.run(data)
	if err != nil {
		t.Fatal(err)
	}
	if want := digest.FromBytes(data).String(); result.DiffID != want {
		t.Errorf("diffID %s, want %s", result.DiffID, want)
	}
	var st unix.Stat_t
	if err := unix.Lstat(b.path("upper/bin/su"), &st); err != nil || st.Mode != unix.S_IFREG|0o4755 || st.Uid != 7 || st.Gid != 8 {
		t.Errorf("bin/su: mode %o owner %d:%d (%v)", st.Mode, st.Uid, st.Gid, err)
	}
	if err := unix.Lstat(b.path("upper/dev/null"), &st); err != nil || st.Mode != unix.S_IFCHR|0o666 || st.Rdev != unix.Mkdev(1, 3) {
		t.Errorf("dev/null: mode %o rdev %x (%v)", st.Mode, st.Rdev, err)
	}
	if err := unix.Lstat(b.path("upper/bin"), &st); err != nil || st.Mode != unix.S_IFDIR|0o755 {
		t.Errorf("bin: mode %o (%v)", st.Mode, err)
	}
	buf := make([]byte, 64)
	if n, err := unix.Lgetxattr(b.path("upper/bin/ping"), "security.capability", buf); err != nil || n != 20 {
		t.Errorf("file capabilities are lost: %d bytes, %v", n, err)
	}
	for _, name := range []string{"trusted.overlay.opaque", "user.overlay.opaque"} {
		if _, err := unix.Lgetxattr(b.path("upper/bin/ping"), name, buf); !errors.Is(err, unix.ENODATA) {
			t.Errorf("%s came through: %v", name, err)
		}
	}
}

func TestRunLeavesNothingOfItsConfinement(t *testing.T) {
	b := newBench(t)
	if _, err := b.run(b.tar(imagetest.Layer{{Path: "x"}})); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(b.runner.Cgroups.Dir())
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			t.Errorf("cgroup %s is left", entry.Name())
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), b.root) {
		t.Error("a mount of the helper is visible outside of it")
	}
}

func TestRunKeepsHostileLayersInside(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Dir(secret)
	up := strings.Repeat("../", 20)
	layers := map[string]imagetest.Layer{
		"traversal":              {{Path: up + secret, Content: []byte("evil"), Raw: true}},
		"absolute":               {{Path: secret, Content: []byte("evil"), Raw: true}},
		"symlink then write":     {{Path: "l", Symlink: outside}, {Path: "l/secret", Content: []byte("evil"), Raw: true}},
		"relative symlink":       {{Path: "l", Symlink: up + outside}, {Path: "l/secret", Content: []byte("evil"), Raw: true}},
		"symlink to file":        {{Path: "l", Symlink: secret}, {Path: "l", Content: []byte("evil")}},
		"hardlink out":           {{Path: "h", Hardlink: secret}, {Path: "h", Content: []byte("evil")}},
		"hardlink through":       {{Path: "l", Symlink: outside}, {Path: "h", Hardlink: "l/secret"}, {Path: "h", Content: []byte("evil")}},
		"swap dir for symlink":   {{Path: "d", Dir: true}, {Path: "d", Symlink: outside}, {Path: "d/secret", Content: []byte("evil"), Raw: true}},
		"whiteout through":       {{Path: "l", Symlink: outside}, {Path: "l/.wh.secret", Raw: true}},
		"opaque through":         {{Path: "l", Symlink: outside}, {Path: "l/.wh..wh..opq", Raw: true}},
		"whiteout of dot dot":    {{Path: ".wh...", Raw: true}},
		"whiteout of nothing":    {{Path: ".wh.", Raw: true}},
		"chmod through symlink":  {{Path: "l", Symlink: secret, Mode: 0o777}, {Path: "l", Dir: true, Mode: 0o777}},
		"device 0:0 as deletion": {{Path: "etc", Device: 'c'}},
	}
	for name, layer := range layers {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			// Some layers are refused, and some stay inside. The test checks only the files
			// outside.
			if _, err := b.run(b.tar(layer)); err != nil && !errors.Is(err, errs.Invalid) {
				t.Errorf("a hostile layer is no fault of the host: %v", err)
			}
			data, err := os.ReadFile(secret)
			if err != nil || string(data) != "untouched" {
				t.Errorf("the file outside was reached: %q, %v", data, err)
			}
			if fi, err := os.Stat(secret); err != nil || fi.Mode() != 0o600 {
				t.Errorf("the file outside was changed: %v, %v", fi, err)
			}
			if entries, _ := os.ReadDir(outside); len(entries) != 1 {
				t.Errorf("files appeared outside: %v", entries)
			}
		})
	}
}

func TestRunRefusesWithKindAndEntry(t *testing.T) {
	b := newBench(t)
	good := b.tar(imagetest.Layer{{Path: "a", Content: make([]byte, 100_000)}})
	for name, c := range map[string]struct {
		data []byte
		kind error
		text string
	}{
		"truncated":     {good[:50_000], errs.Invalid, "truncated"},
		"no tar":        {[]byte(strings.Repeat("no archive at all ", 100)), errs.Invalid, "layer"},
		"bad gzip":      {[]byte{0x1f, 0x8b, 1, 2, 3}, errs.Invalid, "gzip"},
		"bad zstd":      {[]byte{0x28, 0xb5, 0x2f, 0xfd, 9, 9, 9, 9, 9}, errs.Invalid, "layer"},
		"climbs":        {b.tar(imagetest.Layer{{Path: "a/../../../b", Raw: true}}), errs.Invalid, "leads out of the image"},
		"climbing link": {b.tar(imagetest.Layer{{Path: "a", Hardlink: "../../etc/passwd", Raw: true}}), errs.Invalid, "leads out of the image"},
		"whiteout dev":  {b.tar(imagetest.Layer{{Path: "etc/x", Device: 'c'}}), errs.Invalid, `"etc/x"`},
		"huge": {func() []byte {
			d := append([]byte{}, good...)
			copy(d, b.tar(imagetest.Layer{{Path: "a"}})[:0])
			return hugeHeader()
		}(), errs.Invalid, `"huge"`},
	} {
		_, err := b.run(c.data)
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: error %v, want kind %v and %s", name, err, c.kind, c.text)
		}
	}
}

// hugeHeader is a sparse entry whose header has a size of 8 EiB.
func hugeHeader() []byte {
	var buf strings.Builder
	header := make([]byte, 512)
	copy(header, "huge")
	copy(header[100:], "0000644\x000000000\x000000000\x00")
	// The size is in base-256 encoding.
	copy(header[124:136], []byte{0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	copy(header[136:], "00000000000\x00        0")
	copy(header[257:], "ustar\x0000")
	sum := 0
	for _, c := range header {
		sum += int(c)
	}
	copy(header[148:], []byte{byte('0' + sum>>15&7), byte('0' + sum>>12&7), byte('0' + sum>>9&7), byte('0' + sum>>6&7), byte('0' + sum>>3&7), byte('0' + sum&7), 0, ' '})
	buf.Write(header)
	return []byte(buf.String())
}
