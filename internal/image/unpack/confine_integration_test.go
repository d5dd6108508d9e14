//go:build integration

package unpack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/unpack/child"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// start runs a job whose layer comes from a pipe. It returns the child's pid once the child waits
// for the first byte.
func (b *bench) start(ctx context.Context, lower ...string) (pid int, layer *os.File, result chan error) {
	b.t.Helper()
	before := b.processes()
	r, w, err := os.Pipe()
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { r.Close(); w.Close() })
	result = make(chan error, 1)
	go func() {
		job := Job{Upper: b.path("upper"), LowerRoot: b.root, Lower: lower, MaxBytes: 1 << 30}
		_, err := b.runner.Run(ctx, job, r, nil)
		result <- err
	}()
	for deadline := time.Now().Add(require.Patience(10 * time.Second)); ; time.Sleep(time.Millisecond) {
		select {
		case err := <-result:
			b.t.Fatalf("the child ended: %v", err)
		default:
		}
		for _, pid := range b.processes() {
			if !slices.Contains(before, pid) && (confined(b.t, pid) || time.Now().After(deadline)) {
				return pid, w, result
			}
		}
	}
}

// processes are the pids of children in their cgroups.
func (b *bench) processes() (pids []int) {
	procs, _ := filepath.Glob(filepath.Join(b.runner.Cgroups.Dir(), "*", "cgroup.procs"))
	for _, file := range procs {
		data, _ := os.ReadFile(file)
		if pid, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// confined reports whether all threads of a process have dropped their privileges. They do it one
// after the other.
func confined(t *testing.T, pid int) bool {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return false
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil || field(t, tid, "NoNewPrivs") != "1" || field(t, tid, "CapEff") == field(t, os.Getpid(), "CapEff") {
			return false
		}
	}
	return len(tasks) > 0
}

func field(t *testing.T, pid int, name string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func TestChildIsConfined(t *testing.T) {
	b := newBench(t)
	pid, layer, result := b.start(context.Background(), "lower")
	var want uint64
	for _, c := range []uint{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_MKNOD, unix.CAP_SETFCAP} {
		want |= 1 << c
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, set := range []string{"CapEff", "CapPrm", "CapBnd"} {
			if got := field(t, tid, set); got != fmt.Sprintf("%016x", want) {
				t.Errorf("thread %d: %s is %s, want %016x", tid, set, got, want)
			}
		}
		if field(t, tid, "NoNewPrivs") != "1" {
			t.Errorf("thread %d may gain privileges", tid)
		}
		if filter := field(t, tid, "Seccomp"); filter != "2" {
			t.Errorf("thread %d has no filter of its calls, which would deny sockets: %q", tid, filter)
		}
	}
	for _, ns := range []string{"mnt", "net", "pid", "ipc", "uts"} {
		ours, err1 := os.Readlink("/proc/self/ns/" + ns)
		theirs, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
		if err := errors.Join(err1, err2); err != nil || ours == theirs {
			t.Errorf("%s namespace is shared: %s, %v", ns, ours, err)
		}
	}
	// A signal to its process group, or to its session, reaches nothing of ours.
	session, err1 := unix.Getsid(pid)
	group, err2 := unix.Getpgid(pid)
	if err := errors.Join(err1, err2); err != nil || session != pid || group != pid {
		t.Errorf("the child %d is in session %d and process group %d, %v", pid, session, group, err)
	}
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil || len(entries) != 2 || entries[0].Name() != "lower" || entries[1].Name() != "upper" {
		t.Errorf("the child's root holds %v, %v", entries, err)
	}
	root, err1 := os.Stat(fmt.Sprintf("/proc/%d/root", pid))
	cwd, err2 := os.Stat(fmt.Sprintf("/proc/%d/cwd", pid))
	if err := errors.Join(err1, err2); err != nil || !os.SameFile(root, cwd) {
		t.Errorf("the child works in a directory of the host: %v", err)
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if info, err := os.Stat(fmt.Sprintf("/proc/%d/fd/%s", pid, file.Name())); err == nil && info.IsDir() {
			t.Errorf("the child has a directory open, as %s", file.Name())
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", pid))
	if err != nil || len(strings.Split(strings.TrimSpace(string(mounts)), "\n")) != 3 {
		t.Errorf("the child's mounts: %s, %v", mounts, err)
	}
	for _, name := range []string{"memory.limit_in_bytes", "memory.max"} {
		limits, _ := filepath.Glob(filepath.Join(b.runner.Cgroups.Dir(), "*", name))
		for _, limit := range limits {
			if data, err := os.ReadFile(limit); err != nil || strings.TrimSpace(string(data)) != strconv.Itoa(child.MemoryLimit) {
				t.Errorf("%s: %s, %v", limit, data, err)
			}
		}
	}
	if _, err := layer.Write(b.tar(imagetest.Layer{{Path: "x"}})); err != nil {
		t.Fatal(err)
	}
	layer.Close()
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// TestChildIsNotSpared: a child dumps no core, and the kernel kills it before a daemon that has a low oom_score_adj.
func TestChildIsNotSpared(t *testing.T) {
	b := newBench(t)
	const own = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	// Without CAP_SYS_RESOURCE the score of this process stays as it is, which may be that of a daemon, too.
	if err := os.WriteFile(own, []byte("-500"), 0); err != nil && !errors.Is(err, os.ErrPermission) {
		t.Fatal(err)
	}
	defer func() {
		if err := os.WriteFile(own, before, 0); err != nil {
			t.Error(err)
		}
	}()
	starter, release, err := b.runner.use()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	cmd := exec.CommandContext(t.Context(), helper[0], "{}")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, io.Discard, io.Discard
	if err := starter.Start(t.Context(), cmd, viewOf(Job{Upper: b.path("upper")})); err != nil {
		t.Fatal(err)
	}
	score, err1 := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", cmd.Process.Pid))
	var core unix.Rlimit
	err2 := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_CORE, nil, &core)
	if err := errors.Join(err1, err2); err != nil || strings.HasPrefix(string(score), "-") || core != (unix.Rlimit{Cur: 1, Max: 1}) {
		t.Errorf("the child has oom_score_adj %q and the limit %v of core dumps, %v", score, core, err)
	}
	w.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestChildrenAreSeparate: children of one store share a network namespace, in which they can make no socket, and nothing else.
func TestChildrenAreSeparate(t *testing.T) {
	one, other := newBench(t), newBench(t)
	starter, release, err := one.runner.use()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	first, layer, result := one.start(context.Background())
	other.runner.starter, other.runner.users = starter, 1
	second, otherLayer, otherResult := other.start(context.Background())
	for _, ns := range []string{"mnt", "net", "pid", "ipc", "uts"} {
		a, err1 := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", first, ns))
		b, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", second, ns))
		if err := errors.Join(err1, err2); err != nil || (a == b) != (ns == "net") {
			t.Errorf("the %s namespaces of two children are %s and %s, %v", ns, a, b, err)
		}
	}
	for pid, b := range map[int]*bench{first: one, second: other} {
		want, err1 := os.Stat(b.path("upper"))
		upper, err2 := os.Stat(fmt.Sprintf("/proc/%d/root/upper", pid))
		if err := errors.Join(err1, err2); err != nil || !os.SameFile(want, upper) {
			t.Errorf("a child writes into another directory than its own: %v", err)
		}
	}
	for w, result := range map[*os.File]chan error{layer: result, otherLayer: otherResult} {
		if _, err := w.Write(one.tar(imagetest.Layer{{Path: "x"}})); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if err := <-result; err != nil {
			t.Error(err)
		}
	}
}

// TestSharedPartsEndWithTheirLastUser: the thread that starts children, with its namespaces, and the cgroups of children are there
// for as long as someone holds them.
func TestSharedPartsEndWithTheirLastUser(t *testing.T) {
	b := newBench(t)
	layer := b.tar(imagetest.Layer{{Path: "x"}})
	if _, err := b.run(layer); err != nil || b.runner.starter != nil || b.groups() != "" {
		t.Errorf("nobody holds the starter %v and the cgroups %s, %v", b.runner.starter, b.groups(), err)
	}
	release := b.runner.Hold()
	if _, err := b.run(layer); err != nil || b.runner.starter == nil || b.groups() == "" {
		t.Errorf("starter and cgroup do not last: %v", err)
	}
	starter, group := b.runner.starter, b.groups()
	if _, err := b.run(layer); err != nil || b.runner.starter != starter || b.groups() != group {
		t.Errorf("starter and cgroup are not used again: %v", err)
	}
	if err := os.Mkdir(filepath.Join(group, "child"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := b.run(layer); err != nil || b.groups() == group {
		t.Errorf("a cgroup with a child is used again: %v", err)
	}
	group = b.groups()
	if _, err := b.run([]byte("no layer")); err == nil || b.groups() == group {
		t.Errorf("the cgroup of a child that failed is left: %v", err)
	}
	if _, err := b.run(b.tar(imagetest.Layer{{Path: "large", Content: make([]byte, maxUsed+1)}})); err != nil || b.groups() != "" {
		t.Errorf("a cgroup with the pages of a large file is left: %v", err)
	}
	if _, err := b.run(layer); err != nil {
		t.Error(err)
	}
	release()
	release() // counts once
	if b.runner.starter != nil || b.groups() != "" {
		t.Errorf("starter %v and cgroups %q are left", b.runner.starter, b.groups())
	}
}

// groups are the names of the cgroups of children.
func (b *bench) groups() string {
	groups, _ := filepath.Glob(filepath.Join(b.runner.Cgroups.Dir(), "t-*"))
	return strings.Join(groups, " ")
}

func TestCancelledRunEndsTheChild(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	pid, _, result := b.start(ctx)
	reason := errors.New("the pull was given up")
	cancel(reason)
	if err := <-result; !errors.Is(err, reason) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the child is left: %v", err)
	}
}

func TestKilledChildIsExhausted(t *testing.T) {
	b := newBench(t)
	pid, _, result := b.start(context.Background())
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-result; !errors.Is(err, errs.Exhausted) {
		t.Errorf("error %v", err)
	}
}

func TestLayerUsesTheLayersBelow(t *testing.T) {
	b := newBench(t)
	below := b.path("lower")
	for _, dir := range []struct {
		path string
		mode uint32
	}{{"d", 0o1750}, {"d/e", 0o711}, {"gone", 0o755}} {
		path := filepath.Join(below, dir.path)
		if err := errors.Join(os.Mkdir(path, 0o755), unix.Chmod(path, dir.mode), os.Chown(path, 5, 6)); err != nil {
			t.Fatal(err)
		}
	}
	result, err := b.run(b.tar(imagetest.Layer{
		{Path: "d/e/f", Raw: true},
		imagetest.Opaque(""),
	}), "lower")
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(b.path("upper/d/e"), &st); err != nil || st.Mode&0o7777 != 0o711 || st.Uid != 5 || st.Gid != 6 {
		t.Errorf("a directory that the layer does not describe has mode %o, owner %d:%d, %v", st.Mode, st.Uid, st.Gid, err)
	}
	if err := unix.Lstat(b.path("upper/gone"), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
		t.Errorf("an opaque root leaves %o below, %v", st.Mode, err)
	}
	buf := make([]byte, 8)
	if n, err := unix.Lgetxattr(b.path("upper/d"), sysfile.OverlayOpaque, buf); err != nil || string(buf[:n]) != "y" {
		t.Errorf("a directory of an opaque root is not opaque: %v (%v)", err, result.Opaque)
	}
}

func TestAloneReportsWhenItNeedsTheLayersBelow(t *testing.T) {
	for name, c := range map[string]struct {
		layer imagetest.Layer
		needs bool
	}{
		"complete":       {imagetest.Layer{{Path: "a/b"}, imagetest.Whiteout("a/c"), imagetest.Opaque("a")}, false},
		"missing parent": {imagetest.Layer{{Path: "a/b", Raw: true}}, true},
		"parent is link": {imagetest.Layer{{Path: "a", Symlink: "b"}, {Path: "a/b", Raw: true}}, true},
		"opaque root":    {imagetest.Layer{{Path: "a"}, imagetest.Opaque("")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if err := os.WriteFile(b.path("blob"), b.tar(c.layer), 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(b.path("blob"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			result, err := b.runner.Run(context.Background(), Job{Upper: b.path("upper"), Alone: true, MaxBytes: 1 << 30}, f, nil)
			if err != nil || result.NeedsLower != c.needs {
				t.Errorf("%+v, %v, want needs %v", result, err, c.needs)
			}
		})
	}
}

// TestDeletionsAreFiles: where a layer says by files what it deletes, these are all that is there beside its own files.
func TestDeletionsAreFiles(t *testing.T) {
	b := newBench(t)
	result, err := b.runJob(b.tar(imagetest.Layer{
		{Path: "kept", Content: []byte("k")},
		imagetest.Whiteout("kept"),
		{Path: "x.d/f"},
		imagetest.Whiteout("x"), imagetest.Whiteout("x"),
		imagetest.Whiteout("d"),
		{Path: "d/new"},
		imagetest.Opaque("d"), imagetest.Opaque(""),
		{Path: ".wh..wh.plnk", Dir: true},
		{Path: ".wh..wh.plnk/1.2"}, // of AUFS
	}), Job{WhiteoutFiles: true})
	if err != nil || len(result.Opaque) > 0 {
		t.Fatal(err, result)
	}
	for name, mode := range map[string]uint32{
		"kept": unix.S_IFREG | 0o644, ".wh.kept": unix.S_IFREG, ".wh.x": unix.S_IFREG, ".wh.d": unix.S_IFREG, "d/.wh..wh..opq": unix.S_IFREG,
		".wh..wh..opq": unix.S_IFREG, "d/new": unix.S_IFREG | 0o644, "x": 0, ".wh..wh.plnk": unix.S_IFDIR | 0o755,
	} {
		var st unix.Stat_t
		if err := unix.Lstat(b.path("upper", name), &st); st.Mode != mode || (err != nil) != (mode == 0) {
			t.Errorf("%s has mode %o, want %o: %v", name, st.Mode, mode, err)
		}
	}
	for name, layer := range map[string]imagetest.Layer{
		"another name of a deletion":         {imagetest.Whiteout("x"), {Path: "y", Hardlink: ".wh.x"}},
		"a deletion that is a directory":     {{Path: ".wh.x/f", Raw: true}, imagetest.Whiteout("x")},
		"a directory in place of a deletion": {imagetest.Whiteout("x"), {Path: ".wh.x/f", Raw: true}},
	} {
		if _, err := newBench(t).runJob(b.tar(layer), Job{WhiteoutFiles: true}); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDuplicatesAndDeletionsOfOneLayer(t *testing.T) {
	b := newBench(t)
	if err := os.Mkdir(b.path("lower/d"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := b.run(b.tar(imagetest.Layer{
		{Path: "twice", Content: []byte("1")},
		{Path: "twice", Content: []byte("2")},
		{Path: "kept", Content: []byte("k")},
		imagetest.Whiteout("kept"),
		imagetest.Whiteout("d"),
		{Path: "d/new", Content: []byte("n")},
		{Path: "\xff/new", Content: []byte("n")}, // no UTF-8
		imagetest.Opaque("\xff"),
		imagetest.Whiteout("x"),
		imagetest.Whiteout("x"),
	}), "lower")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"twice": "2", "kept": "k", "d/new": "n"} {
		if data, err := os.ReadFile(b.path("upper", name)); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	buf := make([]byte, 8)
	for dir, what := range map[string]string{"d": "deleted and made again", "\xff": "that is opaque"} {
		if _, err := unix.Lgetxattr(b.path("upper/"+dir), sysfile.OverlayOpaque, buf); err != nil {
			t.Errorf("a directory %s shows what was in it: %v", what, err)
		}
	}
}
