//go:build integration

package differential

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/engine/hostfacts"
	"github.com/berthrun/berth/internal/engine/seccomp"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/probe"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/supervisor"
	"github.com/berthrun/berth/internal/sys/cgroup"
	"github.com/berthrun/berth/internal/sys/sysmount"
)

// patience bounds every wait of a test.
const patience = 60 * time.Second

// Texts in a spec that each side replaces: its directory, and the parent of its cgroups.
const (
	dirToken   = "@DIR@"
	groupToken = "@GROUP@"
)

// pair is two supervisors side by side, and what their containers share.
type pair struct {
	// beside is held for reading by trials that may run at the same time.
	beside sync.RWMutex

	t    *testing.T
	name string
	dir  string
	host ocispec.Host
	// profiles makes seccomp filters.
	profiles *seccomp.Loader
	// pinned are the pod's namespaces: kind to path.
	pinned map[string]string
	// libcontainer and own are the sides.
	libcontainer, own *side
}

// side is one supervisor with its files.
type side struct {
	*pair
	name string
	// dir is a tmpfs: the files of containers, in the same places on both sides.
	dir    string
	state  string
	client *supervisor.Client
	cmd    *exec.Cmd
	// exits receives each exit once.
	mu    sync.Mutex
	ended map[string]supervisor.Exit
}

func newPair(t *testing.T) *pair {
	t.Helper()
	require.Root(t)
	dir, err := os.MkdirTemp("", "berth-diff-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { // for the users of user namespaces
		t.Fatal(err)
	}
	p := &pair{t: t, name: filepath.Base(dir), dir: dir, pinned: map[string]string{}}
	t.Cleanup(func() {
		if err := errors.Join(sysmount.UnmountBelow(dir), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	tree, err := cgroup.Find()
	if err != nil {
		t.Fatal(err)
	}
	if p.host, err = hostfacts.Find(tree); err != nil {
		t.Fatal(err)
	}
	p.profiles = seccomp.NewLoader(p.host, &probe.Pool{Timeout: patience, Limit: 4})
	p.pin()
	p.libcontainer = p.side("libcontainer", "--own-init=false")
	p.own = p.side("own", "--own-init=true")
	return p
}

// side starts a supervisor.
func (p *pair) side(name string, flags ...string) *side {
	p.t.Helper()
	s := &side{pair: p, name: name, dir: filepath.Join(p.dir, name), ended: map[string]supervisor.Exit{}}
	s.state = filepath.Join(s.dir, "state")
	if err := unix.Mount("side", mkdir(p.t, s.dir), "tmpfs", 0, "mode=755"); err != nil {
		p.t.Fatal(err)
	}
	if err := unix.Mount("", s.dir, "", unix.MS_PRIVATE, ""); err != nil {
		p.t.Fatal(err)
	}
	for _, dir := range []string{"bundles", "logs", "c"} {
		mkdir(p.t, filepath.Join(s.dir, dir))
	}
	program, err := os.ReadFile(probeProgram())
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "probe"), program, 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", mkdir(p.t, s.state), "tmpfs", 0, "mode=0700"); err != nil {
		p.t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(p.dir, name+".log"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	s.cmd = exec.Command(supervisorProgram(), append([]string{"serve", "--state", s.state, "--log-level", "debug"}, flags...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := s.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(p.t.Context(), patience)
	defer stop()
	options := supervisor.Options{Socket: filepath.Join(s.state, "supervisor.sock"), Logger: slog.New(slog.DiscardHandler)}
	if s.client, err = supervisor.Connect(ctx, options); err != nil {
		p.t.Fatalf("%v\n%s", err, s.log())
	}
	exits, err := s.client.Exits(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	go func() {
		for exit := range exits {
			s.mu.Lock()
			s.ended[exit.ID] = exit
			s.mu.Unlock()
		}
	}()
	p.t.Cleanup(s.end)
	return s
}

func mkdir(t testing.TB, path string) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// ground makes the files of the host that a container uses, below its directory: the same on each side.
func (s *side) ground(id string) error {
	top := filepath.Join(s.dir, "c", id)
	var list []error
	put := func(name, content string, mode os.FileMode) {
		at := filepath.Join(top, name)
		list = append(list, os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(content), mode), os.Chmod(at, mode))
	}
	mount := func(source, at, kind string, flags uintptr, options string) {
		at = filepath.Join(top, at)
		list = append(list, os.MkdirAll(at, 0o755), unix.Mount(source, at, kind, flags, options))
	}
	change := func(at string, flags uintptr) {
		list = append(list, unix.Mount("", filepath.Join(top, at), "", flags, ""))
	}
	for _, name := range []string{"hosts", "hostname", "resolv.conf"} {
		put("files/"+name, name+"\n", 0o644)
	}
	put("outside/file", "of the host\n", 0o644)
	mount("shm", "shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777")
	change("shm", unix.MS_PRIVATE)
	for _, m := range []struct {
		at          string
		flags       uintptr
		propagation uintptr
	}{
		{"private", 0, unix.MS_PRIVATE},
		{"shared", 0, unix.MS_SHARED},
		{"readonly", 0, unix.MS_PRIVATE},
		{"noexec", unix.MS_NOEXEC | unix.MS_NODEV | unix.MS_NOATIME, unix.MS_PRIVATE},
	} {
		mount("ground", m.at, "tmpfs", m.flags, "mode=755")
		change(m.at, m.propagation)
		put(m.at+"/file", "of "+m.at+"\n", 0o644)
		put(m.at+"/dir/file", "below\n", 0o600)
		mount("below", m.at+"/below", "tmpfs", unix.MS_NOSUID, "mode=700") // for recursive binds
	}
	mount(filepath.Join(top, "shared"), "slave", "", unix.MS_BIND|unix.MS_REC, "")
	change("slave", unix.MS_SLAVE|unix.MS_REC)
	change("readonly", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY)
	// A directory with devices, as the host's is.
	mount("devices", "devices", "tmpfs", unix.MS_NOSUID, "mode=755")
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9} {
		list = append(list, unix.Mknod(filepath.Join(top, "devices", name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))))
	}
	list = append(list, os.Symlink("pts/ptmx", filepath.Join(top, "devices/ptmx")), os.Mkdir(filepath.Join(top, "devices/pts"), 0o755),
		os.Mkdir(filepath.Join(top, "devices/shm"), 0o755), os.Mkdir(filepath.Join(top, "devices/mqueue"), 0o755))
	return errors.Join(list...)
}

// clear removes what a trial has left: another trial may have its id.
func (s *side) clear(id string) error {
	s.mu.Lock()
	delete(s.ended, id)
	s.mu.Unlock()
	top := filepath.Join(s.dir, "c", id)
	// A container that mounts into a shared volume has left copies of its mounts, also below others.
	for _, at := range s.mountedIn(top) {
		_ = unix.Unmount(at, unix.MNT_DETACH)
	}
	return errors.Join(sysmount.UnmountBelow(top), os.RemoveAll(top), os.RemoveAll(filepath.Join(s.dir, "bundles", id)),
		os.RemoveAll(filepath.Join(s.dir, "logs", id+".log")))
}

// rootfs makes the root filesystem of a container and returns it.
func (s *side) rootfs(id string) (string, error) {
	root := filepath.Join(s.dir, "c", id, "rootfs")
	var list []error
	for _, dir := range []string{"bin", "dev", "etc", "home/app", "proc", "run", "srv", "sys", "tmp", "usr/lib", "var/lib", "real/conf"} {
		list = append(list, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	list = append(list,
		os.Chmod(filepath.Join(root, "tmp"), 0o1777),
		os.Link(filepath.Join(s.dir, "probe"), filepath.Join(root, "bin/probe")),
		os.Symlink("/run", filepath.Join(root, "var/run")),
		os.Symlink("/real/conf", filepath.Join(root, "conf")),
		os.Symlink("../real/absent", filepath.Join(root, "srv/dangling")),
		os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"), 0o644),
		os.WriteFile(filepath.Join(root, "etc/group"), []byte("root:x:0:\napp:x:1000:\nextra:x:2000:app\n"), 0o644),
		os.WriteFile(filepath.Join(root, "bin/plain"), []byte("text\n"), 0o644),
		os.WriteFile(filepath.Join(root, "bin/text"), []byte("no program\n"), 0o755),
		os.WriteFile(filepath.Join(root, "bin/script"), []byte("#!/bin/probe exit\n"), 0o755),
		os.WriteFile(filepath.Join(root, "bin/orphan"), []byte("#!/absent/interpreter\n"), 0o755),
		os.WriteFile(filepath.Join(root, "bin/secret"), []byte("#!/bin/probe exit\n"), 0o700),
		os.Chown(filepath.Join(root, "home/app"), 1000, 1000),
	)
	return root, errors.Join(list...)
}

// of replaces the tokens in a spec.
func (s *side) of(spec any) ([]byte, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	data = bytes.ReplaceAll(data, []byte(dirToken), []byte(s.dir))
	return bytes.ReplaceAll(data, []byte(groupToken), []byte("/"+s.pair.name+"/"+s.name)), nil
}

// normal replaces what differs between the sides by design.
func (s *side) normal(text string) string {
	text = strings.ReplaceAll(text, s.dir, dirToken)
	return strings.ReplaceAll(text, "/"+s.pair.name+"/"+s.name, groupToken)
}

// bundle writes a container's bundle.
func (s *side) bundle(id string, spec *specs.Spec) (*supervisor.CreateRequest, error) {
	data, err := s.of(spec)
	if err != nil {
		return nil, err
	}
	bundle := filepath.Join(s.dir, "bundles", id)
	if err := os.MkdirAll(bundle, 0o700); err != nil {
		return nil, err
	}
	return &supervisor.CreateRequest{ID: id, Bundle: bundle, LogDir: filepath.Join(s.dir, "logs"), LogPath: id + ".log"},
		os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o600)
}

func (s *side) log() string {
	data, _ := os.ReadFile(filepath.Join(s.pair.dir, s.name+".log"))
	return string(data[max(0, len(data)-20000):])
}

// exit waits for a container's exit.
func (s *side) exit(id string) (supervisor.Exit, error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if exit, ended := s.hasExited(id); ended {
			return exit, nil
		}
	}
	return supervisor.Exit{}, fmt.Errorf("no exit of %s came", id)
}

func (s *side) hasExited(id string) (supervisor.Exit, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	exit, ended := s.ended[id]
	return exit, ended
}

// output waits until a container has printed all its report, or has ended, and returns what it printed.
func (s *side) output(id string) (string, error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		_, ended := s.hasExited(id)
		text, err := s.logText(id)
		if err != nil {
			return "", err
		}
		if ended || strings.HasSuffix(strings.TrimSpace(text), "== end") {
			return text, nil
		}
	}
	return "", fmt.Errorf("the report of %s is not complete", id)
}

// logText is what a container printed.
func (s *side) logText(id string) (string, error) {
	data, err := os.ReadFile(filepath.Join(s.dir, "logs", id+".log"))
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(fields) != 4 {
			continue // a line that is being written
		}
		text.WriteString(strings.TrimSuffix(fields[3], "\r"))
		if fields[2] == "F" {
			text.WriteByte('\n')
		}
	}
	return text.String(), nil
}

// end stops the supervisor and checks that nothing is left.
func (s *side) end() {
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	if list, err := s.client.List(ctx); err != nil || len(list) != 0 {
		s.t.Errorf("containers are left over %s: %+v %v", s.name, list, err)
	}
	if err := s.client.Close(); err != nil {
		s.t.Error(err)
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
	if s.t.Failed() {
		s.t.Logf("log of the supervisor over %s:\n%s", s.name, s.log())
	}
	roots, err := cgroup.Roots()
	if err != nil {
		s.t.Error(err)
	}
	for _, root := range roots {
		parent := filepath.Join(root, s.pair.name, s.name)
		for _, left := range directories(parent) {
			if !strings.HasSuffix(left, nestedGroup) && !strings.HasSuffix(left, filepath.Dir(nestedGroup)) {
				s.t.Errorf("a cgroup is left: %s", left)
			}
			_ = os.Remove(left)
		}
		_ = os.Remove(parent)
		_ = os.Remove(filepath.Dir(parent))
	}
	for _, dir := range []string{"runc", "supervisor"} {
		if left, err := os.ReadDir(filepath.Join(s.state, dir)); err != nil || len(left) > 0 {
			s.t.Errorf("left in %s over %s: %v %v", dir, s.name, left, err)
		}
	}
}

// nestedGroup is the parent of a container's cgroup that a starter makes, and nobody removes.
const nestedGroup = "/burstable/pod1"

// directories lists what is below a directory, the deepest first.
func directories(top string) []string {
	var list []string
	_ = filepath.WalkDir(top, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path != top {
			list = append(list, path)
		}
		return err
	})
	slices.Reverse(list)
	return list
}

// both runs fn for each side at once, and returns the results in the order libcontainer, own.
func both[T any](p *pair, fn func(*side) T) (libcontainer, own T) {
	var done sync.WaitGroup
	done.Go(func() { libcontainer = fn(p.libcontainer) })
	own = fn(p.own)
	done.Wait()
	return libcontainer, own
}

// difference compares the observations of one thing, field by field. The result has a line for each
// line that only one side has.
func difference(libcontainer, own observation) []string {
	var out []string
	fields := map[string]bool{}
	for _, o := range []observation{libcontainer, own} {
		for field := range o {
			fields[field] = true
		}
	}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if slices.Equal(libcontainer[field], own[field]) {
			continue
		}
		if _, seen := own[field]; !seen {
			out = append(out, fmt.Sprintf("%s: libcontainer alone, %d lines: %s", field, len(libcontainer[field]), libcontainer[field][:min(2, len(libcontainer[field]))]))
			continue
		}
		if _, seen := libcontainer[field]; !seen {
			out = append(out, fmt.Sprintf("%s: own alone, %d lines: %s", field, len(own[field]), own[field][:min(2, len(own[field]))]))
			continue
		}
		onlyLib, onlyOwn := without(libcontainer[field], own[field]), without(own[field], libcontainer[field])
		if len(onlyLib)+len(onlyOwn) == 0 {
			onlyLib, onlyOwn = libcontainer[field], own[field] // the order differs
		}
		for _, line := range onlyLib {
			out = append(out, fmt.Sprintf("%s: libcontainer: %s", field, line))
		}
		for _, line := range onlyOwn {
			out = append(out, fmt.Sprintf("%s: own: %s", field, line))
		}
	}
	return out
}

// without returns the lines of a that b lacks.
func without(a, b []string) []string {
	count := map[string]int{}
	for _, line := range b {
		count[line]++
	}
	var out []string
	for _, line := range a {
		if count[line]--; count[line] < 0 {
			out = append(out, line)
		}
	}
	return out
}

// lockedBuffer collects output that another goroutine looks at.
type lockedBuffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

var _ io.Writer = (*lockedBuffer)(nil)
