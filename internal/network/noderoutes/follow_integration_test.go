//go:build integration

package noderoutes

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// lab is a host with a link to its neighbours, and a directory for the file.
type lab struct {
	t      *testing.T
	dir    string
	netns  string
	handle *netlink.Handle
	log    logBuffer
}

// logBuffer keeps a log that several goroutines write.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func newLab(t *testing.T) *lab {
	t.Helper()
	require.Root(t)
	require.Binary(t, "ip")
	l := &lab{t: t, dir: t.TempDir()}
	l.netns = filepath.Join(l.dir, "netns")
	if err := sysns.NewNetNS(l.netns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sysns.RemoveNetNS(l.netns); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(l.log.text.String())
		}
	})
	l.in(func() (err error) { l.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); return err })
	t.Cleanup(l.handle.Close)
	for _, line := range []string{"link add up0 type bridge", "addr add 192.0.2.1/24 dev up0", "addr add fd00::1/64 dev up0 nodad", "link set up0 up"} {
		l.ip(line)
	}
	return l
}

func (l *lab) in(fn func() error) {
	l.t.Helper()
	if err := sysns.InNetNS(l.netns, fn); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) ip(line string) string {
	l.t.Helper()
	var out []byte
	l.in(func() (err error) {
		if out, err = exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			err = fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
		return err
	})
	return string(out)
}

func (l *lab) path(name string) string { return filepath.Join(l.dir, name) }

// replace writes the file as an editor or a program does: beside it, then by its name.
func (l *lab) replace(file, text string) {
	l.t.Helper()
	if err := errors.Join(os.WriteFile(file+".new", []byte(text), 0o600), os.Rename(file+".new", file)); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) config(file string, subnets ...netip.Prefix) Config {
	return Config{
		File: file, StateDir: l.path("state"), Quarantine: l.path("quarantine"), Handle: l.handle,
		Subnets: func() []netip.Prefix { return subnets }, Log: slog.New(slog.NewTextHandler(&l.log, nil)),
	}
}

func (l *lab) follow(file string, subnets ...netip.Prefix) *Follower {
	l.t.Helper()
	return l.start(l.config(file, subnets...))
}

func (l *lab) start(cfg Config) *Follower {
	l.t.Helper()
	f, err := Follow(cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	return f
}

// routes are those below 10.0.0.0/8 and fd01::/16, in ip-route's words.
func (l *lab) routes() string {
	l.t.Helper()
	text := l.ip("-4 route show root 10.0.0.0/8") + l.ip("-6 route show root fd01::/16")
	return strings.Join(strings.Fields(strings.ReplaceAll(text, "\n", "; ")), " ")
}

// want waits until the routes are as wanted.
func (l *lab) want(want string) {
	l.t.Helper()
	var got string
	for deadline := time.Now().Add(require.Patience(5 * time.Second)); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if got = l.routes(); got == want {
			return
		}
	}
	l.t.Errorf("routes\n%s\nwant\n%s", got, want)
}

func (l *lab) close(f *Follower) {
	l.t.Helper()
	if err := f.Close(); err != nil {
		l.t.Error(err)
	}
}

const (
	route1 = "10.1.0.0/24 via 192.0.2.11 dev up0 proto 177 ;"
	route2 = "10.2.0.0/24 via 192.0.2.12 dev up0 proto 177 ;"
)

// TestFollowsTheFile: each change of the file is in force, and berth removes its own routes alone.
func TestFollowsTheFile(t *testing.T) {
	l := newLab(t)
	file := l.path("etc/berth/routes")
	l.ip("route add 10.9.0.0/24 via 192.0.2.19 proto 177") // another berth's, with another file
	l.ip("route add 10.8.0.0/24 via 192.0.2.18")           // an operator's
	const foreign8, foreign9 = " 10.8.0.0/24 via 192.0.2.18 dev up0 ;", " 10.9.0.0/24 via 192.0.2.19 dev up0 proto 177 ;"
	foreign := strings.TrimSpace(foreign8 + foreign9)
	f := l.follow(file) // no file, and no directory
	l.want(foreign)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	l.replace(file, "10.1.0.0/24 via 192.0.2.11\n10.2.0.0/24 via 192.0.2.12\nfd01:1::/64 via fd00::11\n")
	l.want(route1 + " " + route2 + " " + foreign + " fd01:1::/64 via fd00::11 dev up0 proto 177 metric 1024 pref medium;")
	l.replace(file, "10.1.0.0/24 via 192.0.2.21\nfd01:1::/64 via fd00::12\n")
	l.want("10.1.0.0/24 via 192.0.2.21 dev up0 proto 177 ; " + foreign + " fd01:1::/64 via fd00::12 dev up0 proto 177 metric 1024 pref medium;")
	// Written in place.
	if err := os.WriteFile(file, []byte("10.1.0.0/24 via 192.0.2.11\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.want(route1 + " " + foreign)
	// The directory is replaced by a link, and that by another, as a volume of a ConfigMap does.
	for i, text := range []string{"10.2.0.0/24 via 192.0.2.12\n", "10.1.0.0/24 via 192.0.2.11\n"} {
		to := l.path(fmt.Sprintf("data%d", i))
		if err := errors.Join(os.Mkdir(to, 0o700), os.WriteFile(filepath.Join(to, "routes"), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Remove(file), os.Symlink(l.path("data0"), l.path("etc/berth/..data")), os.Symlink("..data/routes", file)); err != nil {
		t.Fatal(err)
	}
	l.want(route2 + " " + foreign)
	if err := errors.Join(os.Symlink(l.path("data1"), l.path("etc/berth/..next")), os.Rename(l.path("etc/berth/..next"), l.path("etc/berth/..data"))); err != nil {
		t.Fatal(err)
	}
	l.want(route1 + " " + foreign)
	// The directory goes and comes.
	if err := os.RemoveAll(l.path("etc")); err != nil {
		t.Fatal(err)
	}
	l.want(foreign)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	l.replace(file, "10.2.0.0/24 via 192.0.2.12\n")
	l.want(route2 + " " + foreign)
	l.close(f)
	// What the file has lost meanwhile is removed at the next start.
	l.replace(file, "10.1.0.0/24 via 192.0.2.11\n")
	f = l.follow(file)
	l.want(route1 + " " + foreign)
	l.close(f)
	if err := f.Remove(); err != nil {
		t.Error(err)
	}
	l.want(foreign)
	// Without a file, too.
	l.close(l.follow(file))
	l.want(route1 + " " + foreign)
	l.close(l.follow(""))
	l.want(foreign)
}

// TestFaultsChangeNoRoute: a file with faults leaves the routes of the last one, and what cannot be made is reported with
// its line, and hinders no other route.
func TestFaultsChangeNoRoute(t *testing.T) {
	l := newLab(t)
	file := l.path("routes")
	l.ip("route add 10.8.0.0/24 via 192.0.2.18 proto static")
	const foreign = "10.8.0.0/24 via 192.0.2.18 dev up0 proto static ;"
	l.replace(file, "10.1.0.0/24 via 192.0.2.11\n")
	f := l.follow(file, netip.MustParsePrefix("10.7.0.0/16"))
	defer l.close(f)
	l.want(route1 + " " + foreign)
	fault := func(want ...string) {
		t.Helper()
		var info map[string]string
		for deadline := time.Now().Add(require.Patience(5 * time.Second)); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			info = map[string]string{}
			if f.AddTo(info); (len(want) == 0) == (info["routesFault"] == "") && (len(want) == 0 || strings.Contains(info["routesFault"], want[0])) {
				break
			}
		}
		for _, text := range want {
			if !strings.Contains(info["routesFault"], text) {
				t.Errorf("%v, want %q", info, text)
			}
		}
		if len(want) == 0 && info["routesFault"] != "" {
			t.Error(info)
		}
	}
	l.replace(file, "10.2.0.0/24 via 192.0.2.12\nnonsense\n")
	fault(file + ":2: ")
	l.want(route1 + " " + foreign)
	l.replace(file, "10.7.0.0/16 via 192.0.2.11\n"+ // this node's own line, in a file for all nodes
		"10.6.0.0/24 via 192.0.2.1\n"+ // so is this
		"10.7.1.0/24 via 192.0.2.11\n10.8.0.0/24 via 192.0.2.11\n10.5.0.0/24 via 203.0.113.1\n10.4.0.0/24 via 192.0.2.4 dev gone0\n10.2.0.0/24 via 192.0.2.12\n")
	fault(file+":3: 10.7.1.0/24 is a part of this node's own pod subnet 10.7.0.0/16",
		file+":4: the host has a route to 10.8.0.0/24 that this berth has not made (protocol static)",
		file+":5: no link of this host leads to the gateway 203.0.113.1",
		file+":6: there is no link gone0")
	l.want(route2 + " " + foreign)
	// Another program removes a route; the check finds it, as it finds what has become possible.
	l.ip("route del 10.2.0.0/24")
	l.ip("route del 10.8.0.0/24")
	l.ip("addr add 203.0.113.2/24 dev up0")
	l.ip("link add gone0 type bridge")
	l.ip("addr add 192.0.2.3/24 dev gone0")
	l.ip("link set gone0 up")
	l.replace(file, "10.8.0.0/24 via 192.0.2.11\n10.5.0.0/24 via 203.0.113.1\n10.4.0.0/24 via 192.0.2.4 dev gone0\n10.2.0.0/24 via 192.0.2.12\n")
	l.want("10.2.0.0/24 via 192.0.2.12 dev up0 proto 177 ; 10.4.0.0/24 via 192.0.2.4 dev gone0 proto 177 ; " +
		"10.5.0.0/24 via 203.0.113.1 dev up0 proto 177 ; 10.8.0.0/24 via 192.0.2.11 dev up0 proto 177 ;")
	fault()
	l.ip("route del 10.2.0.0/24")
	if !f.Check() {
		t.Error("a route is missing after a check")
	}
	if !strings.Contains(l.routes(), route2[:len(route2)-2]) {
		t.Errorf("the check does not make the route again: %s", l.routes())
	}
	states, err := Compare(l.handle, []Line{{Route: f.lines[3].Route}, {Route: Route{To: netip.MustParsePrefix("10.8.0.0/24"), Via: netip.MustParseAddr("192.0.2.18")}}})
	if err != nil || len(states) != 2 || states[0] != "yes" || !strings.HasPrefix(states[1], "no: a berth that follows the file makes it") {
		t.Errorf("%q, %v", states, err)
	}
}

// TestFaultsAtAStart: before there was a file without faults, such as after a reboot, the lines that have none are in
// force, and no route is removed.
func TestFaultsAtAStart(t *testing.T) {
	l := newLab(t)
	file := l.path("routes")
	l.replace(file, "10.1.0.0/24 via 192.0.2.11\n")
	l.close(l.follow(file))
	l.replace(file, "10.3.0.0/24 via nowhere\n10.2.0.0/24 via 192.0.2.12\n")
	f := l.follow(file)
	l.want(route1 + " " + route2)
	info := map[string]string{}
	if f.AddTo(info); !strings.Contains(info["routesFault"], file+":1: ") || info["routes"] != "1" {
		t.Errorf("info is %v, want the fault of line 1 and one route", info)
	}
	l.replace(file, "10.2.0.0/24 via 192.0.2.12\n")
	l.want(route2)
	l.replace(file, "10.1.0.0/24 via 192.0.2.11\nfault\n")
	f.Check()
	l.want(route2)
	l.close(f)
}
