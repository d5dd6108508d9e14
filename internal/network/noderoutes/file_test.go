package noderoutes

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
)

func TestParse(t *testing.T) {
	lines, err := Parse("routes", []byte("# nodes\n\n10.244.1.0/24 via 192.0.2.11 # b\nfd00:1::/64\tvia fe80::2 dev eth0\r\n  10.244.2.0/24 via 192.0.2.12"))
	var got []string
	for _, l := range lines {
		got = append(got, fmt.Sprintf("%d: %s", l.Number, l))
	}
	want := []string{"3: 10.244.1.0/24 via 192.0.2.11", "4: fd00:1::/64 via fe80::2 dev eth0", "5: 10.244.2.0/24 via 192.0.2.12"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

// TestFaultsOfLines: each fault is reported, with file, line and what is wrong.
func TestFaultsOfLines(t *testing.T) {
	for line, want := range map[string]string{
		"10.1.0.0/24":                                        "1 words; want SUBNET via GATEWAY [dev LINK]",
		"10.1.0.0/24 by 10.0.0.1":                            `"10.1.0.0/24 by 10.0.0.1" is not a route`,
		"10.1.0.0/24 via 10.0.0.1 on eth0":                   "is not a route",
		"10.1.0.0/24 via 10.0.0.1 dev":                       "4 words",
		"10.1.0.0 via 10.0.0.1":                              `"10.1.0.0" is not a subnet in CIDR notation`,
		"10.1.0.7/24 via 10.0.0.1":                           "want 10.1.0.0/24",
		"::ffff:10.1.0.0/120 via 10.0.0.1":                   "not a subnet",
		"0.0.0.0/0 via 10.0.0.1":                             "not a subnet of pods",
		"127.1.0.0/24 via 10.0.0.1":                          "not a subnet of pods",
		"ff02::/64 via fd00::1":                              "not a subnet of pods",
		"10.1.0.0/24 via node-b":                             `gateway "node-b" is not an IP address`,
		"10.1.0.0/24 via fd00::1":                            "not of the address family",
		"fd01::/64 via 10.0.0.1":                             "not of the address family",
		"fd01::/64 via fe80::1%eth0":                         "is not an IP address",
		"10.1.0.0/24 via 10.1.0.1":                           "inside of 10.1.0.0/24",
		"10.1.0.0/24 via 127.0.0.1":                          "not the address of another host",
		"fd01::/64 via fe80::1":                              "name its link with dev",
		"10.1.0.0/24 via 10.0.0.1 dev a/b":                   `"a/b" is not the name of a link`,
		"10.1.0.0/24 via 10.0.0.1 dev " + "sixteen-letters-": "is not the name of a link",
		"10.9.0.0/24 via 10.0.0.1":                           "line 1 has a route to 10.9.0.0/24, too",
	} {
		lines, err := Parse("/etc/routes", []byte("10.9.0.0/24 via 10.0.0.2\n"+line+"\n"+line+"x/\n"))
		if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "/etc/routes:2: ") || !strings.Contains(err.Error(), "\n/etc/routes:3: ") {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
		if len(lines) != 1 {
			t.Errorf("%s: %v", line, lines)
		}
	}
}

// TestEdit: a change keeps all other lines as they are.
func TestEdit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "routes")
	want := func(text string) {
		t.Helper()
		got, err := os.ReadFile(file)
		if err != nil || string(got) != text {
			t.Errorf("%v\n%s\nwant\n%s", err, got, text)
		}
	}
	add := func(to, via string) error {
		return Add(t.Context(), file, Route{To: netip.MustParsePrefix(to), Via: netip.MustParseAddr(via)})
	}
	remove := func(to ...string) error {
		var all []netip.Prefix
		for _, text := range to {
			all = append(all, netip.MustParsePrefix(text))
		}
		return Remove(t.Context(), file, all)
	}
	for _, err := range []error{add("10.1.0.0/24", "192.0.2.1"), add("10.2.0.0/24", "192.0.2.2")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want("10.1.0.0/24 via 192.0.2.1\n10.2.0.0/24 via 192.0.2.2\n")
	err := os.WriteFile(file, []byte("# all\n\n10.1.0.0/24   via 192.0.2.1 # one\n10.2.0.0/24 via 192.0.2.2 # two"), 0o600)
	if err := errors.Join(err, os.Chmod(file, 0o640)); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{add("10.2.0.0/24", "192.0.2.9"), add("10.3.0.0/24", "192.0.2.3")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want("# all\n\n10.1.0.0/24   via 192.0.2.1 # one\n10.2.0.0/24 via 192.0.2.9 # two\n10.3.0.0/24 via 192.0.2.3\n")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Error(info.Mode(), err)
	}
	if err := remove("10.1.0.0/24", "10.7.0.0/24"); !errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), "10.7.0.0/24") {
		t.Error(err)
	}
	if err := remove("10.1.0.0/24", "10.3.0.0/24"); err != nil {
		t.Error(err)
	}
	want("# all\n\n10.2.0.0/24 via 192.0.2.9 # two\n")
	if err := Set(t.Context(), file, "new", []byte("10.1.0.0/24\n")); !errors.Is(err, errs.Invalid) || !strings.HasPrefix(err.Error(), "new:1: ") {
		t.Error(err)
	}
	want("# all\n\n10.2.0.0/24 via 192.0.2.9 # two\n")
	if err := Set(t.Context(), file, "new", nil); err != nil {
		t.Error(err)
	}
	want("")
}

// TestMissingDirectory: a file in a directory that does not exist is one that was misspelt.
func TestMissingDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	err := Add(t.Context(), filepath.Join(dir, "routes"), Route{To: netip.MustParsePrefix("10.1.0.0/24"), Via: netip.MustParseAddr("192.0.2.1")})
	if !errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), "the directory "+dir+" does not exist") {
		t.Errorf("%v, want kind NotFound with the directory", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory was made: %v", err)
	}
}

// TestFaultyFileIsNotEdited: berth would not follow it.
func TestFaultyFileIsNotEdited(t *testing.T) {
	file := filepath.Join(t.TempDir(), "routes")
	if err := os.WriteFile(file, []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := Add(t.Context(), file, Route{To: netip.MustParsePrefix("10.1.0.0/24"), Via: netip.MustParseAddr("192.0.2.1")})
	if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), file+":1: ") {
		t.Error(err)
	}
	if text, err := os.ReadFile(file); string(text) != "nonsense\n" {
		t.Error(string(text), err)
	}
}

// TestEditsAtOnce: no change is lost, and a link stays a link.
func TestEditsAtOnce(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "to", "routes"), filepath.Join(dir, "routes")
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600), os.Symlink("to/routes", link)); err != nil {
		t.Fatal(err)
	}
	const count = 20
	var all sync.WaitGroup
	for i := range count {
		all.Go(func() {
			to := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), 0}), 24)
			if err := Add(t.Context(), link, Route{To: to, Via: netip.MustParseAddr("192.0.2.1")}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if lines, err := Read(link); err != nil || len(lines) != count {
		t.Errorf("%v, %v", lines, err)
	}
	if to, err := os.Readlink(link); to != "to/routes" {
		t.Error(to, err)
	}
}

// TestWhatIsNoFile: a directory, a pipe or a link to nothing is reported at once, and stays.
func TestWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	paths := map[string]string{"directory": "directory is a directory", "pipe": "pipe is not a regular file", "link": "is a link to nonesuch"}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "directory"), 0o700), unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
		os.Symlink("nonesuch", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range paths {
		file := filepath.Join(dir, name)
		before, err := os.Lstat(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Read(file); name != "link" && !errors.Is(err, errs.Invalid) { // a link to nothing is no file
			t.Errorf("%s: %v", name, err)
		}
		for _, text := range []string{"", "10.1.0.0/24 via 192.0.2.1\n"} {
			if err := Set(t.Context(), file, "new", []byte(text)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
		if after, err := os.Lstat(file); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: %v, %v", name, after, err)
		}
	}
}
