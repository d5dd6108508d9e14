//go:build integration

package differential

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor"
)

// allCapabilities gives a process everything that a container can have, or all but the capability to trace.
func allCapabilities(p *pair, process *specs.Process, tracer bool) {
	caps := slices.DeleteFunc(slices.Clone(p.host.Capabilities), func(name string) bool { return !tracer && name == "CAP_SYS_PTRACE" })
	process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
}

// TestProgramIsProtected: a container shares its PID namespace with the runtime's helpers, and executes
// the runtime's program as its own. It cannot open the program's file for writing (CVE-2019-5736), with all
// capabilities but CAP_SYS_PTRACE. What that one allows is in docs/running.md.
func TestProgramIsProtected(t *testing.T) {
	p := newPair(t)
	before := hashOf(t, supervisorProgram())
	for _, s := range []*side{p.libcontainer, p.own} {
		t.Run(s.name, func(t *testing.T) {
			out := s.huntIn(t, "grab", 1, false, false)
			for line := range strings.Lines(out) {
				if strings.HasPrefix(line, "writable ") {
					t.Errorf("the container can write to a program: %s", line)
				}
			}
			with := s.huntIn(t, "grab", 1, false, true)
			if valueOf(with, "seen ") == 0 {
				t.Errorf("no program of the runtime was there to be seen: %s", with)
			}
			t.Logf("with CAP_SYS_PTRACE: %q", with)
		})
	}
	if after := hashOf(t, supervisorProgram()); after != before {
		t.Error("the supervisor's program has changed")
	}
}

func hashOf(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))
}

func valueOf(text, key string) int {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), key); ok {
			n, _ := strconv.Atoi(value)
			return n
		}
	}
	return 0
}

// TestHelpersAreNotTraced: a container can trace the helper of neither starter, with all capabilities but
// CAP_SYS_PTRACE. What that one allows is in docs/running.md.
func TestHelpersAreNotTraced(t *testing.T) {
	p := newPair(t)
	for _, s := range []*side{p.libcontainer, p.own} {
		t.Run(s.name, func(t *testing.T) {
			out := s.huntIn(t, "hunt", 1, false, false)
			if n := valueOf(out, "caught "); n > 0 {
				t.Errorf("the container traced %d helpers: %s", n, out)
			}
			t.Logf("with CAP_SYS_PTRACE: %q", s.huntIn(t, "hunt", 1, false, true))
		})
	}
}

// TestHelpersInUserNamespacesAreNotTraced: in a user namespace, CAP_SYS_PTRACE does not help a container to
// trace a helper, or to write to its program.
func TestHelpersInUserNamespacesAreNotTraced(t *testing.T) {
	p := newPair(t)
	for _, s := range []*side{p.libcontainer, p.own} {
		t.Run(s.name, func(t *testing.T) {
			out := s.huntIn(t, "hunt", 1, true, true)
			if n := valueOf(out, "caught "); n > 0 || !strings.Contains(out, "caught ") {
				t.Errorf("the container traced %d helpers: %s", n, out)
			}
			out = s.huntIn(t, "grab", 1, true, true)
			if strings.Contains(out, "writable ") || !strings.Contains(out, "seen ") {
				t.Errorf("the container can write to a program: %s", out)
			}
		})
	}
}

// huntIn runs the probe's verb for some seconds in a container that shares the PID namespace of the
// pod. Meanwhile other containers are created in it, and processes executed. It returns what the probe
// printed. mapped gives the pod a user namespace, tracer the container the capability to trace.
func (s *side) huntIn(t *testing.T, verb string, seconds int, mapped, tracer bool) string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	var created []string
	create := func(id string, change func(*draft)) *supervisor.Container {
		t.Helper()
		d := s.draft(id)
		features()["namespaces"]["shared PID"](d)
		d.mapped = mapped
		change(d)
		tr, err := d.finish()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.ground(id); err != nil {
			t.Fatal(err)
		}
		root, err := s.rootfs(id)
		if err != nil {
			t.Fatal(err)
		}
		if tr.prepare != nil {
			if err := tr.prepare(s, root); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(root, "bin/self"), []byte("#!/proc/self/exe\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		req, err := s.bundle(id, tr.spec)
		if err != nil {
			t.Fatal(err)
		}
		created = append(created, id)
		c, err := s.client.Create(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.client.Start(ctx, id); err != nil {
			t.Fatal(err)
		}
		return c
	}
	defer func() {
		for _, id := range created {
			if err := s.client.Remove(context.Background(), id); err != nil {
				t.Error(err)
			}
			if err := s.clear(id); err != nil {
				t.Error(err)
			}
		}
	}()
	hunter := fmt.Sprint(verb, "-", tracer)
	create(hunter, func(d *draft) {
		d.in.Config.Command = []string{"/bin/probe", verb, strconv.Itoa(seconds)}
		d.after = append(d.after, func(spec *specs.Spec) { allCapabilities(s.pair, spec.Process, tracer) })
	})
	for i := 0; ; i++ { // until the hunter's time is over
		if _, ended := s.hasExited(hunter); ended {
			break
		}
		process := plainExec()
		process.Args = [][]string{{"/bin/probe", "exit", "0"}, {"/proc/self/exe"}, {"/bin/self"}}[i%3]
		allCapabilities(s.pair, process, true)
		// What becomes of an exec whose helper is traced is the tracer's affair.
		_, _ = s.client.Exec(ctx, &supervisor.ExecRequest{ContainerID: hunter, ExecID: fmt.Sprint("e", i), Process: process}, supervisor.Streams{})
		if i%4 == 0 {
			create(fmt.Sprintf("%s-%d", hunter, i), func(d *draft) { d.in.Config.Command = []string{[]string{"/bin/self", "/bin/probe"}[i/4%2], "exit"} })
		}
	}
	out, err := s.output(hunter)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestWaitingInits: an init that waits for the start has no file of the host but the one it waits at, its
// program cannot be written, and it cannot be dumped.
func TestWaitingInits(t *testing.T) {
	p := newPair(t)
	for _, kind := range []string{"plain", "terminal", "shared PID", "privileged", "mapped"} {
		t.Run(kind, func(t *testing.T) {
			d := p.draft("waits")
			containersForExecs()[kind](d)
			tr, err := d.finish()
			if err != nil {
				t.Fatal(err)
			}
			lib, own := both(p, func(s *side) []string { return s.waitingInit(t, tr) })
			for name, wrong := range map[string][]string{"libcontainer": lib, "own": own} {
				for _, line := range wrong {
					t.Errorf("over %s: %s", name, line)
				}
			}
		})
	}
}

func (s *side) waitingInit(t *testing.T, tr trial) (wrong []string) {
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	report := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	check := func(err error) bool {
		if err != nil {
			report("%v", err)
		}
		return err == nil
	}
	defer func() { check(s.clear(tr.id)) }()
	root, err := s.rootfs(tr.id)
	if !check(s.ground(tr.id)) || !check(err) || tr.prepare != nil && !check(tr.prepare(s, root)) {
		return wrong
	}
	req, err := s.bundle(tr.id, tr.spec)
	if !check(err) {
		return wrong
	}
	defer func() { check(s.client.Remove(context.Background(), tr.id)) }()
	c, err := s.client.Create(ctx, req)
	if !check(err) {
		return wrong
	}
	proc := fmt.Sprintf("/proc/%d", c.Pid)
	var owner unix.Stat_t
	if err := unix.Stat(proc+"/fd", &owner); err != nil || owner.Uid != 0 {
		report("files in %s belong to %d: %v", proc, owner.Uid, err)
	}
	entries, err := os.ReadDir(proc + "/fd")
	if !check(err) {
		return wrong
	}
	fds := map[string]string{}
	for _, e := range entries {
		target, _ := os.Readlink(filepath.Join(proc, "fd", e.Name()))
		fds[e.Name()] = target
		var st unix.Stat_t
		if unix.Stat(filepath.Join(proc, "fd", e.Name()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		// A directory, by which one could leave the container.
		if above, err := os.Stat(fmt.Sprintf("%s/fd/%s%s%s", proc, e.Name(), strings.Repeat("/..", 12), s.pair.dir)); err == nil && above.IsDir() {
			report("descriptor %s (%s) leads to the host's files", e.Name(), target)
		}
	}
	t.Logf("over %s the waiting init has %v", s.name, fds)
	exe, err := os.OpenFile(proc+"/exe", os.O_WRONLY, 0)
	if err == nil {
		seals, err := unix.FcntlInt(exe.Fd(), unix.F_GET_SEALS, 0)
		if err != nil || seals&unix.F_SEAL_WRITE == 0 {
			report("the program of the init can be written")
		}
		exe.Close()
	}
	return wrong
}
