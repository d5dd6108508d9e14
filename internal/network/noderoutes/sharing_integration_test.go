//go:build integration

package noderoutes

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
)

// TestInfoWaitsForNoComparison: the owner of a follower holds a lock of its own while it calls AddTo, and Subnets takes
// that lock. A comparison must not keep AddTo waiting, or both wait for ever.
func TestInfoWaitsForNoComparison(t *testing.T) {
	l := newLab(t)
	file := l.path("routes")
	cfg := l.config(file)
	var f *Follower
	asked := 0
	cfg.Subnets = func() []netip.Prefix {
		if f == nil {
			return nil // the comparison of the start
		}
		asked++
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.AddTo(map[string]string{})
		}()
		select {
		case <-done:
		case <-time.After(require.Patience(5 * time.Second)):
			t.Error("AddTo waits for a comparison")
		}
		return nil
	}
	followed := l.start(cfg)
	l.close(followed)
	f = followed
	l.replace(file, "10.1.0.0/24 via 192.0.2.11\n")
	if !f.Check() || asked == 0 {
		t.Errorf("asked %d times", asked)
	}
}

// TestTwoBerthsWithOneFile: a berth that ends leaves the routes that another one has made. The other one makes those again
// that the first one removes.
func TestTwoBerthsWithOneFile(t *testing.T) {
	l := newLab(t)
	file := l.path("etc/routes") // the state is elsewhere: no change of it has berth compare
	if err := os.Mkdir(l.path("etc"), 0o700); err != nil {
		t.Fatal(err)
	}
	l.replace(file, "10.1.0.0/24 via 192.0.2.11\n")
	first := l.follow(file)
	cfg := l.config(file)
	cfg.StateDir = l.path("second")
	second := l.start(cfg)
	for _, f := range []*Follower{first, second} {
		info := map[string]string{}
		if f.AddTo(info); info["routes"] != "1" || info["routesFault"] != "" {
			t.Errorf("%v", info)
		}
	}
	l.close(second)
	if err := second.Remove(); err != nil {
		t.Error(err)
	}
	l.want(route1)

	second = l.start(cfg)
	defer l.close(second)
	if second.Check() {
		t.Error("a route that another berth may remove ends the comparisons")
	}
	l.close(first)
	if err := first.Remove(); err != nil {
		t.Error(err)
	}
	if !second.Check() {
		t.Error("the route is not the second one's own")
	}
	l.want(route1)
	// It is now the second one's, so a new first one does not change it.
	l.replace(l.path("other"), "10.1.0.0/24 via 192.0.2.12\n")
	first = l.follow(l.path("other"))
	info := map[string]string{}
	if first.AddTo(info); !strings.Contains(info["routesFault"], l.path("other")+":1: the host has a route to 10.1.0.0/24 that this berth has not made (another berth's") {
		t.Errorf("%v", info)
	}
	l.want(route1)
	l.close(first)
}

// TestForeignRouteBesideOwn: a route that another program adds to the same subnet does not hide berth's own.
func TestForeignRouteBesideOwn(t *testing.T) {
	l := newLab(t)
	file := l.path("routes")
	l.replace(file, "10.1.0.0/24 via 192.0.2.11\n")
	f := l.follow(file)
	l.close(f) // without its own comparisons
	l.ip("route append 10.1.0.0/24 via 192.0.2.12 proto static")
	const foreign = "10.1.0.0/24 via 192.0.2.12 dev up0 proto static ;"
	l.want(route1 + " " + foreign)
	l.replace(file, "")
	if !f.Check() {
		t.Error("not complete")
	}
	l.want(foreign)
}

// TestFileThatCannotBeRead: berth reads it again until it can, and sees that it is gone.
func TestFileThatCannotBeRead(t *testing.T) {
	l := newLab(t)
	file := l.path("routes")
	l.replace(file, "10.1.0.0/24 via 192.0.2.11\n")
	f := l.follow(file)
	l.close(f) // without its own comparisons
	link := func(to string) {
		t.Helper()
		if err := errors.Join(os.RemoveAll(file), os.Symlink(to, file)); err != nil {
			t.Fatal(err)
		}
	}
	fault := func() string {
		info := map[string]string{}
		f.AddTo(info)
		return info["routesFault"]
	}
	for _, to := range []string{"routes", "/proc/self/mem"} { // a link to itself; a file whose reads fail
		link(to)
		for range 2 {
			if f.Check() || !strings.Contains(fault(), file) {
				t.Errorf("-> %s: no further comparison, fault %q", to, fault())
			}
		}
		l.want(route1)
	}
	link("routes")
	f.Check()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if !f.Check() || fault() != "" {
		t.Errorf("no file: %q", fault())
	}
	l.want("")
}
