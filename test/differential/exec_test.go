//go:build integration

package differential

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// plainExec is a process as a kubelet requests it.
func plainExec() *specs.Process {
	caps := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_MKNOD", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT"}
	return &specs.Process{
		Args: []string{"/bin/probe", "read"}, Env: []string{"PATH=/usr/bin:/bin", "HOME=/"}, Cwd: "/",
		Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		OOMScoreAdj:  new(100),
	}
}

// execForms are the ways in which a process can differ from plainExec.
func execForms() map[string]func(*specs.Process) {
	return map[string]func(*specs.Process){
		"plain":          func(*specs.Process) {},
		"absent":         func(p *specs.Process) { p.Args = []string{"/bin/absent"} },
		"absent in PATH": func(p *specs.Process) { p.Args = []string{"absent"} },
		"found in PATH":  func(p *specs.Process) { p.Args = []string{"probe", "read"} },
		"no PATH":        func(p *specs.Process) { p.Args, p.Env = []string{"probe", "read"}, []string{"HOME=/"} },
		"directory":      func(p *specs.Process) { p.Args = []string{"/etc"} },
		"not executable": func(p *specs.Process) { p.Args = []string{"/bin/plain"} },
		"no program":     func(p *specs.Process) { p.Args = []string{"/bin/text"} },
		"no interpreter": func(p *specs.Process) { p.Args = []string{"/bin/orphan"} },
		"script":         func(p *specs.Process) { p.Args = []string{"/bin/script"} },
		"exit":           func(p *specs.Process) { p.Args = []string{"/bin/probe", "exit", "42"} },
		"empty argument": func(p *specs.Process) { p.Args = []string{"/bin/probe", "read", "", "a b"} },
		"empty program":  func(p *specs.Process) { p.Args = []string{""} },
		"user":           func(p *specs.Process) { p.User = specs.User{UID: 1000, GID: 1000} },
		"groups": func(p *specs.Process) {
			p.User = specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{1000, 5, 2000}}
		},
		"large user":              func(p *specs.Process) { p.User = specs.User{UID: 4294967294, GID: 4294967294} },
		"forbidden program":       func(p *specs.Process) { p.User.UID, p.Args = 1000, []string{"/bin/secret"} },
		"directory of work":       func(p *specs.Process) { p.Cwd = "/home/app" },
		"absent work":             func(p *specs.Process) { p.Cwd = "/absent" },
		"no work":                 func(p *specs.Process) { p.Cwd = "" },
		"relative work":           func(p *specs.Process) { p.Cwd = "etc" },
		"linked work":             func(p *specs.Process) { p.Cwd = "/conf" },
		"file as work":            func(p *specs.Process) { p.Cwd = "/etc/passwd" },
		"descriptor as work":      func(p *specs.Process) { p.Cwd = "/proc/self/fd/7" },
		"environment":             func(p *specs.Process) { p.Env = append(p.Env, "A=1", "A=2", "EMPTY=", "LINES=a\nb", "=odd", "alone") },
		"no environment":          func(p *specs.Process) { p.Env = nil },
		"terminal":                func(p *specs.Process) { p.Terminal = true },
		"terminal of a user":      func(p *specs.Process) { p.Terminal, p.User = true, specs.User{UID: 1000, GID: 1000} },
		"terminal with a size":    func(p *specs.Process) { p.Terminal, p.ConsoleSize = true, &specs.Box{Width: 99, Height: 33} },
		"no new privileges":       func(p *specs.Process) { p.NoNewPrivileges = true },
		"no new privileges, user": func(p *specs.Process) { p.NoNewPrivileges, p.User = true, specs.User{UID: 1000, GID: 1000} },
		"no capabilities":         func(p *specs.Process) { p.Capabilities = nil },
		"zero capabilities":       func(p *specs.Process) { p.Capabilities = &specs.LinuxCapabilities{} },
		"all capabilities": func(p *specs.Process) {
			caps := []string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_PTRACE", "CAP_SETPCAP", "CAP_SETUID", "CAP_SETGID"}
			p.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps, Inheritable: caps, Ambient: caps}
		},
		// What a process may do with the mounts that the container has.
		"locks": func(p *specs.Process) {
			caps := []string{"CAP_SYS_ADMIN", "CAP_SYS_CHROOT"}
			p.Args, p.Capabilities = []string{"/bin/probe", "locks"}, &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
		},
		"ambient of a user": func(p *specs.Process) {
			p.User, p.Capabilities.Ambient, p.Capabilities.Inheritable = specs.User{UID: 1000, GID: 1000}, []string{"CAP_KILL"}, []string{"CAP_KILL"}
		},
		"limits": func(p *specs.Process) {
			p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 100, Hard: 200}, {Type: "RLIMIT_CORE"}, {Type: "RLIMIT_NPROC", Soft: 500, Hard: 600}}
		},
		"unknown limit": func(p *specs.Process) { p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOTHING"}} },
		"no score":      func(p *specs.Process) { p.OOMScoreAdj = nil },
		"scheduler":     func(p *specs.Process) { p.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch, Nice: 3} },
		"io priority":   func(p *specs.Process) { p.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_IDLE} },
		"affinity":      func(p *specs.Process) { p.ExecCPUAffinity = &specs.CPUAffinity{Initial: "0", Final: "0"} },
	}
}

// containersForExecs are the containers in which all forms are executed.
func containersForExecs() map[string]func(*draft) {
	all := features()
	with := func(feature, form string) func(*draft) { return all[feature][form] }
	return map[string]func(*draft){
		"plain":             func(*draft) {},
		"filter":            with("seccomp", "default"),
		"filter and no new": with("seccomp", "default, no new privileges"),
		"read-only":         with("privileges", "read-only root"),
		"privileged":        with("privileges", "privileged on the host's network"),
		"terminal":          with("streams", "terminal"),
		"shared PID":        with("namespaces", "shared PID"),
		"host PID":          with("namespaces", "host PID"),
		"user":              with("user", "with groups"),
		"mapped":            with("user namespace", "plain"),
		"mapped, filter":    with("user namespace", "seccomp"),
		"mapped, volumes": func(d *draft) {
			with("volume", "many")(d)
			with("id-mapped volume", "own mapping")(d)
			d.mount("noexec", "/kept", nil)
			d.mount("readonly", "/kept/dir", nil)
			d.mount("shared", "/kept/below", nil)
			d.in.User = user(1000, 2000)
		},
		"mapped, privileged": func(d *draft) { with("privileges", "privileged")(d); d.mapped = true },
		"volumes":            with("volume", "many"),
		"limits":             with("resources", "all"),
		"umask":              with("spec", "umask"),
	}
}

// TestSameExecs executes processes of all forms in containers of several kinds. In CI each container
// has a part of the forms, and together they have all.
func TestSameExecs(t *testing.T) {
	newPair(t).execForms(t, stepInCI)
}

// execForms executes every step-th form in each kind of container.
func (p *pair) execForms(t *testing.T, step int) {
	t.Helper()
	kinds := containersForExecs()
	names := slices.Sorted(maps.Keys(kinds))
	forms := execForms()
	counts := p.inParallel(t, len(names), func(i int) (trial, error) {
		d := p.draft(fmt.Sprint("x", i))
		kinds[names[i]](d)
		d.trial.what = names[i]
		for at, form := range slices.Sorted(maps.Keys(forms)) {
			if at%step == i%step || form == "plain" || form == "locks" {
				process := plainExec()
				forms[form](process)
				d.trial.execs = append(d.trial.execs, execTrial{form, process})
			}
		}
		return d.finish()
	})
	t.Log(counts)
}

func randomExec(r *rand.Rand) execTrial {
	forms := execForms()
	process, what := plainExec(), ""
	for _, form := range slices.Sorted(maps.Keys(forms)) {
		if r.IntN(10) == 0 {
			forms[form](process)
			what += form + ", "
		}
	}
	return execTrial{what, process}
}

// TestExecsIntoChangedFiles: the program and the directory of an exec are looked up in the container as it
// is then, and never on the host.
func TestExecsIntoChangedFiles(t *testing.T) {
	p := newPair(t)
	d := p.draft("changed")
	d.trial.prepare = func(_ *side, root string) error {
		for link, target := range map[string]string{
			"host": filepath.Join(filepath.Dir(root), "outside"), "up": "../../../../../.." + filepath.Join(filepath.Dir(root), "outside"), "self": "/proc/self/cwd",
			"init": "/proc/1/root", "fd": "/proc/self/fd/5",
		} {
			if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
				return err
			}
		}
		return nil
	}
	for _, cwd := range []string{"/host", "/up", "/self", "/init", "/fd", "/proc/1/cwd", "/proc/self/fd", "/proc/self/fd/0", "/proc/self/fd/3", "/proc/self/fd/8/..", "/proc/thread-self/root"} {
		process := plainExec()
		process.Cwd = cwd
		d.trial.execs = append(d.trial.execs, execTrial{"in " + cwd, process})
	}
	for _, program := range []string{"/host/file", "/self/bin/probe", "/init/bin/probe", "/proc/1/exe", "/proc/self/fd/4"} {
		process := plainExec()
		process.Args = []string{program, "read"}
		d.trial.execs = append(d.trial.execs, execTrial{"program " + program, process})
	}
	tr, err := d.finish()
	if err != nil {
		t.Fatal(err)
	}
	t.Log(p.compare(t, tr).notes)

	own := p.draft("own")
	process := plainExec()
	process.Args = []string{"/proc/self/exe", "read"}
	own.trial.execs = []execTrial{{"program /proc/self/exe", process}}
	own.trial.what, own.trial.mayDiffer = "exec of the starter's program", ownPrograms
	if tr, err = own.finish(); err != nil {
		t.Fatal(err)
	}
	p.compare(t, tr)
}
