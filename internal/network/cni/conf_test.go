package cni

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

// netDir is a directory of configurations.
type netDir struct {
	t   *testing.T
	dir string
}

func newNetDir(t *testing.T) *netDir { return &netDir{t, filepath.Join(t.TempDir(), "net.d")} }

func (d *netDir) path(name string) string { return filepath.Join(d.dir, name) }

func (d *netDir) write(name, content string) {
	d.t.Helper()
	if err := errors.Join(os.MkdirAll(d.dir, 0o755), os.WriteFile(d.path(name), []byte(content), 0o644)); err != nil {
		d.t.Fatal(err)
	}
}

func (d *netDir) confs(max int) *confs {
	return &confs{dir: d.dir, max: max, log: slog.New(slog.DiscardHandler)}
}

func listNamed(name string) string {
	return `{"cniVersion":"1.0.0","name":"` + name + `","plugins":[{"type":"x"}]}`
}

// wantInUse checks the names of the networks in use, and that the fault has all words, or is nil without any.
func wantInUse(t *testing.T, c *confs, when, names string, words ...string) {
	t.Helper()
	found, fault := c.look()
	var got []string
	for _, f := range found {
		got = append(got, f.list.Name)
	}
	if strings.Join(got, " ") != names || len(words) == 0 && fault != nil {
		t.Errorf("%s: in use %q, fault %v; want %q", when, got, fault, names)
	}
	for _, word := range words {
		if fault == nil || !strings.Contains(fault.Error(), word) {
			t.Errorf("%s: the fault %v does not say %q", when, fault, word)
		}
	}
}

// TestInvalidFileKeepsItsLastContent: what is in use stays so while its file is invalid, and a file
// after it does not replace it. Valid content, and the file's removal, count at once.
func TestInvalidFileKeepsItsLastContent(t *testing.T) {
	d := newNetDir(t)
	c := d.confs(1)
	file := d.path("10-a.conflist")
	d.write("20-b.conflist", listNamed("b"))
	d.write("10-a.conflist", listNamed("a"))
	wantInUse(t, c, "valid", "a")
	for when, content := range map[string]string{
		"half written": "{\n\"name\":\"a\",\n  \"plug", "empty": "", "without plugins": `{"cniVersion":"1.0.0","name":"a","plugins":[]}`,
	} {
		d.write("10-a.conflist", content)
		wantInUse(t, c, when, "a", file, "stays in use")
		if _, err := c.current(); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	d.write("10-a.conflist", listNamed("again"))
	wantInUse(t, c, "valid again", "again")
	d.write("05-new.conflist", "{")
	wantInUse(t, c, "a new file that is invalid", "again", d.path("05-new.conflist")+":1:1")
	if err := errors.Join(os.Remove(d.path("05-new.conflist")), os.Remove(file)); err != nil {
		t.Fatal(err)
	}
	wantInUse(t, c, "removed", "b")
	d.write("10-a.conflist", "{")
	wantInUse(t, c, "a file that comes back invalid", "b", file)
}

// TestPluginsInFilesOfTheirOwn: a plugin in the directory of the network is in use at once when its file comes, changes
// and goes, while the file of the list stays as it is.
func TestPluginsInFilesOfTheirOwn(t *testing.T) {
	d := newNetDir(t)
	c := d.confs(1)
	d.write("10-a.conflist", listNamed("a"))
	if err := os.Mkdir(d.path("a"), 0o755); err != nil {
		t.Fatal(err)
	}
	want := func(when, text string, plugins int) {
		t.Helper()
		confs, err := c.current()
		if err != nil || len(confs) != 1 || len(confs[0].list.Plugins) != plugins || !strings.Contains(string(confs[0].list.Bytes), text) {
			t.Errorf("%s: %v, want %d plugins with %q (%v)", when, confs, plugins, text, err)
		}
	}
	want("none", "", 1)
	d.write("a/b.conf", `{"type":"tuning","mtu":1400}`)
	want("one", "1400", 2)
	want("still one", "1400", 2)
	d.write("a/b.conf", `{"type":"tuning","mtu":1300}`)
	want("changed", "1300", 2)
	if err := os.RemoveAll(d.path("a")); err != nil {
		t.Fatal(err)
	}
	want("none again", "", 1)
}

// TestLinksAndDirectories: a link that leads nowhere for a moment is an invalid file, and a directory
// that was replaced is followed.
func TestLinksAndDirectories(t *testing.T) {
	d := newNetDir(t)
	c := d.confs(1)
	d.write("v1", listNamed("one"))
	d.write("v2", listNamed("two"))
	link := d.path("10-net.conflist")
	point := func(to string) {
		t.Helper()
		if err := errors.Join(errs.IgnoreNotExist(os.Remove(link)), os.Symlink(to, link)); err != nil {
			t.Fatal(err)
		}
	}
	point("v1")
	wantInUse(t, c, "a link", "one")
	point("v3")
	wantInUse(t, c, "a link to nothing", "one", link, "stays in use")
	point("v2")
	wantInUse(t, c, "a link to another file", "two")
	if err := os.RemoveAll(d.dir); err != nil {
		t.Fatal(err)
	}
	if _, err := c.current(); !errors.Is(err, errs.Unavailable) {
		t.Errorf("a directory that was removed: %v, want Unavailable", err)
	}
	d.write("10-net.conflist", listNamed("three"))
	wantInUse(t, c, "a directory that was made again", "three")
}

// TestInUseOutlivesARestart: the next process has the last valid content of a file that is invalid
// when it starts.
func TestInUseOutlivesARestart(t *testing.T) {
	d := newNetDir(t)
	root := filepath.Join(t.TempDir(), "root")
	start := func() *Network {
		n, err := New(t.Context(), Config{ConfDir: d.dir, RootDir: root, MaxNetworks: 1})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	d.write("10-a.conflist", listNamed("a"))
	n := start()
	wantInUse(t, n.confs, "valid", "a")
	n.Close()
	d.write("10-a.conflist", `{"name":`)
	n = start()
	wantInUse(t, n.confs, "invalid since the restart", "a", "stays in use")
	if _, fault := n.LoadedConfig(); fault == nil {
		t.Error("verbose status has no fault")
	}
	n.Close()
	if err := os.Remove(d.path("10-a.conflist")); err != nil {
		t.Fatal(err)
	}
	n = start()
	wantInUse(t, n.confs, "removed", "", "no configuration in")
	n.Close()
}

// TestPlaceOfFaults: a fault names line and column, and the field whose type is wrong.
func TestPlaceOfFaults(t *testing.T) {
	d := newNetDir(t)
	for content, want := range map[string]string{
		"{\n \"name\": \"a\",\n \"plugins\": [}\n": ":3:14: ",
		"{\n \"name\": \"a\"":                      ":2:12: ",
		"{\"cniVersion\": \"1.0.0\", \"name\": \"a\",\n \"plugins\": [{\"type\": 7}]}":                         ":2:23: field plugins.type: ",
		"{\"name\": \"a\", \"plugins\": [{\"type\": \"x\", \"capabilities\": {\n\"portMappings\": \"yes\"}}]}": ":2:21: field plugins.capabilities: ",
		`{"plugins": [{"type": "x"}]}`: ": error parsing configuration list: no name",
	} {
		d.write("10-a.conflist", content)
		_, err := load(d.path("10-a.conflist"))
		if err == nil {
			t.Errorf("%q is valid", content)
			continue
		}
		if got := faultOf(d.path("10-a.conflist"), err).Error(); !strings.HasPrefix(got, d.path("10-a.conflist")+want) {
			t.Errorf("%q:\n%s\nwant FILE%s...", content, got, want)
		}
	}
}

// TestGraceOfStatus: plugins that could serve have the grace period, those that never could have not.
func TestGraceOfStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault := errors.New("agent not up")
		var answer error
		s := newStatusCache(10*time.Second, slog.New(slog.DiscardHandler))
		list := func(name string) []*conf {
			d := newNetDir(t)
			d.write("10.conflist", listNamed(name))
			all, err := d.confs(1).current()
			if err != nil {
				t.Fatal(err)
			}
			return all
		}
		c := list("a")
		step := func(when string, reported, want, tolerated error) {
			t.Helper()
			answer = reported
			time.Sleep(4 * time.Second)
			if got := s.check(t.Context(), c, func() error { return answer }); !errors.Is(got, want) {
				t.Errorf("%s: %v, want %v", when, got, want)
			}
			if got := s.tolerated(); !errors.Is(got, tolerated) {
				t.Errorf("%s: tolerated %v, want %v", when, got, tolerated)
			}
		}
		step("never served", fault, fault, nil)
		step("serves", nil, nil, nil)
		time.Sleep(time.Hour) // nobody has asked
		step("at the first fault", fault, nil, fault)
		step("after 4 s", fault, nil, fault)
		step("after 8 s", fault, nil, fault)
		step("after 12 s", fault, fault, nil)
		step("serves again", nil, nil, nil)
		step("the next fault", fault, nil, fault)
		c = list("b")
		step("another configuration", fault, fault, nil)
	})
}
