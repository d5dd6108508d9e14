//go:build integration

package differential

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// roundsInCI is how many containers of a kind are created while their files change, on each side.
const roundsInCI = 2

// exchange is a path in a container's directory on the host that alternates between what is there and a
// link.
type exchange struct {
	path string
	// link is the target; HOST in it is the container's directory on the host.
	link string
}

// swap exchanges paths until stop is called, which may be called again.
func swap(top string, list []exchange) (stop func(), err error) {
	var done sync.WaitGroup
	over := make(chan struct{})
	for _, e := range list {
		path := filepath.Join(top, e.path)
		link := e.link
		if link == hostLink {
			link = filepath.Join(top, "outside")
		}
		if err := os.Symlink(link, path+".link"); err != nil {
			return nil, err
		}
		done.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					_ = unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, path+".link", unix.RENAME_EXCHANGE)
				}
			}
		})
	}
	return sync.OnceFunc(func() { close(over); done.Wait() }), nil
}

// hostLink is a link's target: a directory of the host that no container may reach.
const hostLink = "the host"

// races are containers whose files change while they are created (CVE-2021-30465, CVE-2024-45310,
// CVE-2025-31133, CVE-2025-52565, CVE-2025-52881). /proc and /dev of the root itself do not change: no other
// process reaches a container's root before it runs.
func races() map[string]func(*draft) []exchange {
	return map[string]func(*draft) []exchange{
		"mount points in a volume": func(d *draft) []exchange {
			makeDirs(d, "private/a", "private/p", "private/q")
			d.mount("private", "/v", nil)
			d.mount("noexec", "/v/a/b/c", nil)
			d.mount("noexec/file", "/v/a/d/file", nil)
			d.mount("noexec", "/v/p/sys", nil)
			d.mount("noexec", "/v/q", nil)
			return []exchange{{"private/a", hostLink}, {"private/p", "/proc"}, {"private/q", "/proc/sys/kernel"}}
		},
		"mount points in the root": func(d *draft) []exchange {
			makeDirs(d, "rootfs/data", "rootfs/data2")
			d.mount("private", "/data/sub", nil)
			d.mount("private/file", "/data2/file", nil)
			return []exchange{{"rootfs/data", hostLink}, {"rootfs/data2", "/proc/self/root"}, {"rootfs/etc", hostLink}, {"rootfs/sys", "/proc"}}
		},
		"devices": func(d *draft) []exchange {
			d.mount("devices", "/dev", nil)
			return []exchange{{"devices/null", "/proc/sys/kernel/core_pattern"}, {"devices/shm", "/proc/sys"}, {"devices/mqueue", hostLink}}
		},
		"terminal": func(d *draft) []exchange {
			d.in.Config.Tty = true
			d.mount("devices", "/dev", nil)
			d.after = append(d.after, func(s *specs.Spec) {
				s.Mounts = append(s.Mounts, specs.Mount{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666"}})
			})
			d.trial.prepare = func(_ *side, root string) error {
				return os.WriteFile(filepath.Join(filepath.Dir(root), "devices/console"), nil, 0o600)
			}
			return []exchange{{"devices/console", "/proc/sys/kernel/core_pattern"}, {"devices/null", "/proc/sysrq-trigger"}, {"devices/pts", "/proc/sys"}, {"devices/ptmx", "/proc/self/exe"}}
		},
		"masked paths": func(d *draft) []exchange {
			makeDirs(d, "private/m")
			d.mount("private", "/v", nil)
			d.security.MaskedPaths = append(d.security.MaskedPaths, "/v/m", "/v/m/file")
			d.security.ReadonlyPaths = append(d.security.ReadonlyPaths, "/v/m", "/v/dir")
			return []exchange{{"private/m", "/proc/sys/kernel"}, {"private/dir", "/"}}
		},
		"directory and program": func(d *draft) []exchange {
			d.in.Config.WorkingDir, d.in.Config.Command = "/w/d", []string{"/b/probe", "wait"}
			d.trial.racesProgram = true
			makeDirs(d, "rootfs/w/d", "rootfs/b")
			before := d.trial.prepare
			d.trial.prepare = func(s *side, root string) error {
				return errors.Join(before(s, root), os.Link(filepath.Join(s.dir, "probe"), filepath.Join(root, "b/probe")))
			}
			return []exchange{{"rootfs/w/d", "/proc/self/fd/7"}, {"rootfs/b", "/proc/self/root/bin"}}
		},
	}
}

func makeDirs(d *draft, dirs ...string) {
	before := d.trial.prepare
	d.trial.prepare = func(s *side, root string) error {
		var list []error
		if before != nil {
			list = append(list, before(s, root))
		}
		for _, dir := range dirs {
			list = append(list, os.MkdirAll(filepath.Join(filepath.Dir(root), dir), 0o755))
		}
		return errors.Join(list...)
	}
}

// TestSoundRaces: containers whose files change while they are created are refused, or are sound.
func TestSoundRaces(t *testing.T) {
	newPair(t).races(t, roundsInCI)
}

func (p *pair) races(t *testing.T, rounds int) {
	t.Helper()
	for name, kind := range races() {
		t.Run(name, func(t *testing.T) {
			var started [2]int
			for i := range rounds {
				d := p.draft(fmt.Sprint("s", i))
				d.trial.races = kind(d)
				d.trial.what, d.trial.timeout, d.trial.mayDiffer = name, attackTimeout, "the files change"
				tr, err := d.finish()
				if err != nil {
					t.Fatal(err)
				}
				lib, own := p.run(t, tr)
				for side, r := range []result{lib, own} {
					if r.container != nil {
						started[side]++
					}
				}
			}
			t.Logf("of %d containers, libcontainer created %d, berth's init %d", rounds, started[0], started[1])
		})
	}
}

// TestSoundExecRaces: execs into a container whose directories and programs change are refused, or run in
// the container.
func TestSoundExecRaces(t *testing.T) {
	newPair(t).execRaces(t, 5*roundsInCI)
}

func (p *pair) execRaces(t *testing.T, rounds int) {
	t.Helper()
	d := p.draft("racing")
	d.trial.what, d.trial.mayDiffer = "execs", "the files change"
	makeDirs(d, "rootfs/w/d", "rootfs/b")
	before := d.trial.prepare
	d.trial.prepare = func(s *side, root string) error {
		return errors.Join(before(s, root), os.Link(filepath.Join(s.dir, "probe"), filepath.Join(root, "b/probe")))
	}
	d.trial.execRaces = []exchange{{"rootfs/w/d", "/proc/1/root"}, {"rootfs/b", "/proc/self/fd"}, {"rootfs/etc", hostLink}, {"rootfs/tmp", "/proc/self/cwd"}}
	for i := range rounds {
		process := plainExec()
		process.Cwd, process.Args[0] = "/w/d", "/b/probe"
		if i%3 == 0 {
			process.Args[0], process.Env[0] = "probe", "PATH=/b:/tmp"
		}
		if i%4 == 0 {
			process.Terminal = true
		}
		if i%5 == 0 {
			process.User.UID = 1000
		}
		d.trial.execs = append(d.trial.execs, execTrial{fmt.Sprint("round ", i), process})
	}
	tr, err := d.finish()
	if err != nil {
		t.Fatal(err)
	}
	lib, own := p.run(t, tr)
	for name, r := range map[string]result{"libcontainer": lib, "own": own} {
		ran := 0
		for _, note := range r.notes {
			if note == "" {
				ran++
			}
		}
		t.Logf("over %s %d of %d execs ran", name, ran, rounds)
	}
}
