//go:build integration

package differential

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor"
)

// trial is one container that both sides start, and the processes that they execute in it.
type trial struct {
	id string
	// what says how it was made, for people.
	what string
	spec *specs.Spec
	// stdin and stdinOnce are as in supervisor.CreateRequest.
	stdin, stdinOnce bool
	// overlay mounts the root filesystem as a node does, instead of a plain directory.
	overlay bool
	// prepare changes the files of a side before the container is created.
	prepare func(s *side, rootfs string) error
	execs   []execTrial
	// update changes limits after the start.
	update *specs.LinuxResources
	// races are paths that change while the container is created, execRaces those that change
	// while processes are executed in it. racesProgram is true when races go on until the end: the
	// program's own path is one of them. Else the program looks at files that do not change.
	races, execRaces []exchange
	racesProgram     bool
	// mayDiffer says why the starters need not treat the container alike: what must hold for all
	// containers is still checked.
	mayDiffer string
	// timeout bounds the create, 0 for the supervisor's own limit.
	timeout time.Duration
}

// execTrial is one process in a container.
type execTrial struct {
	what    string
	process *specs.Process
}

// result is what one side made of a trial.
type result struct {
	seen observation
	// notes are texts that are not compared: errors as people see them.
	notes []string
	// container is the supervisor's answer.
	container *supervisor.Container
	err       error
	// wrong is what must not be, see sound.
	wrong []string
}

// filesOfHost is the field with the files in a container's directory on the host.
const filesOfHost = "files of the host"

// compare runs a trial on both sides and reports each difference. It returns the answer of the
// own side. A difference must be there again without other containers beside it.
func (p *pair) compare(t *testing.T, tr trial) result {
	t.Helper()
	p.beside.RLock()
	lib, own, lines := p.differ(t, tr)
	p.beside.RUnlock()
	if len(lines) > 0 && tr.mayDiffer == "" {
		p.beside.Lock()
		lib, own, lines = p.differ(t, tr)
		p.beside.Unlock()
	}
	if len(lines) > 0 && tr.mayDiffer == "" {
		shown := lines[:min(len(lines), 60)]
		t.Errorf("%s (%s) differs in %d lines:\n  %s\nlibcontainer said %q\nown said %q\nspec: %s", tr.id, tr.what, len(lines),
			strings.Join(shown, "\n  "), lib.notes, own.notes, short(p.own, tr.spec))
	}
	return own
}

// differ runs a trial on both sides, and returns the lines in which they differ.
func (p *pair) differ(t *testing.T, tr trial) (lib, own result, lines []string) {
	t.Helper()
	lib, own = p.run(t, tr)
	moreExact(lib.seen, own.seen)
	if lib.container == nil && own.container == nil {
		// How far each came before it refused is its own affair. What it must not touch, sound checks.
		delete(lib.seen, filesOfHost)
		delete(own.seen, filesOfHost)
	}
	return lib, own, difference(lib.seen, own.seen)
}

// run runs a trial on both sides, and reports what must not be, whoever has started the container.
func (p *pair) run(t *testing.T, tr trial) (lib, own result) {
	t.Helper()
	lib, own = both(p, func(s *side) result { return s.try(tr) })
	for _, r := range []result{lib, own} {
		if r.err != nil {
			t.Errorf("%s (%s): %v", tr.id, tr.what, r.err)
		}
	}
	if lib.container != nil && lib.container.Starter == ownStarter {
		t.Errorf("%s (%s): the supervisor that should use libcontainer alone used berth's init", tr.id, tr.what)
	}
	for name, r := range map[string]result{"libcontainer": lib, "own": own} {
		for _, wrong := range r.wrong {
			t.Errorf("%s (%s) over %s: %s", tr.id, tr.what, name, wrong)
		}
	}
	return lib, own
}

// moreExact replaces what libcontainer's error lacks. It sends its errors as text, and not every text has
// a kind or a cause. Where it has one, berth's init must give the same.
func moreExact(lib, own observation) {
	for field, lines := range lib {
		if len(lines) != 1 || len(own[field]) != 1 {
			continue
		}
		before, _, failed := strings.Cut(lines[0], failsWith)
		sameBefore, _, alsoFails := strings.Cut(own[field][0], failsWith)
		if !failed || !alsoFails || before != sameBefore {
			continue
		}
		kind, cause, _ := strings.Cut(strings.TrimPrefix(lines[0], before+failsWith), becauseOf)
		ownKind, ownCause, _ := strings.Cut(strings.TrimPrefix(own[field][0], before+failsWith), becauseOf)
		if kind == "<nil>" {
			kind = ownKind
		}
		if cause == "" || strings.HasSuffix(cause, " ") && strings.HasPrefix(ownCause, cause) { // without a path
			cause = ownCause
		}
		lib[field] = []string{before + failsWith + kind + becauseOf + cause}
		own[field] = []string{before + failsWith + ownKind + becauseOf + ownCause}
	}
}

// short is a spec without its filter, for messages.
func short(s *side, spec *specs.Spec) string {
	plain := *spec
	if plain.Linux != nil && plain.Linux.Seccomp != nil {
		linux := *plain.Linux
		linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: linux.Seccomp.DefaultAction}
		plain.Linux = &linux
	}
	data, err := s.of(&plain)
	if err != nil {
		return err.Error()
	}
	return s.normal(string(data))
}

// try runs a trial on one side, from the files to the removal.
func (s *side) try(tr trial) (r result) {
	r.seen = observation{}
	ctx, stop := context.WithTimeout(context.Background(), 2*patience)
	defer stop()
	defer func() { r.err = errors.Join(r.err, s.clear(tr.id)) }()
	if r.err = s.ground(tr.id); r.err != nil {
		return r
	}
	root, err := s.rootfs(tr.id)
	if err != nil {
		r.err = err
		return r
	}
	if tr.overlay {
		if r.err = mountOverlay(root); r.err != nil {
			return r
		}
	}
	if tr.prepare != nil {
		if r.err = tr.prepare(s, root); r.err != nil {
			return r
		}
	}
	before := s.hostMounts(tr.id)
	stopRaces, err := swap(filepath.Join(s.dir, "c", tr.id), tr.races)
	if err != nil {
		r.err = err
		return r
	}
	created := stopRaces
	if tr.racesProgram {
		created = func() {}
	}
	r.err = s.life(ctx, tr, &r, created)
	r.err = errors.Join(r.err, s.client.Remove(ctx, tr.id))
	stopRaces()
	r.wrong = append(r.wrong, sound(r.seen, tr, filepath.Join(s.dir, "c", tr.id))...)
	r.seen[filesOfHost] = s.files(filepath.Join(s.dir, "c", tr.id))
	r.seen["mounts of the host that came"] = without(s.hostMounts(tr.id), before)
	r.seen["mounts of the host that went"] = without(before, s.hostMounts(tr.id))
	if _, err := os.Lstat(filepath.Join(s.state, "runc", tr.id)); err == nil {
		r.seen.add("left", "state directory")
	}
	return r
}

// life has the steps of a container's life. It calls created when the container waits for its start.
func (s *side) life(ctx context.Context, tr trial, r *result, created func()) error {
	req, err := s.bundle(tr.id, tr.spec)
	if err != nil {
		return err
	}
	req.Stdin, req.StdinOnce, req.StartTimeout = tr.stdin, tr.stdinOnce, tr.timeout
	if r.container, err = s.client.Create(ctx, req); err != nil {
		s.failed(r, "create", err)
		return nil
	}
	created()
	for controller, dir := range r.container.CgroupPaths {
		r.seen.add("cgroup paths", "%s %s", controller, s.normal(dir))
	}
	slices.Sort(r.seen["cgroup paths"])
	r.seen.merge("", s.waiting(r.container.Pid))
	state, err := s.stateOf(tr.id)
	if err != nil {
		return err
	}
	r.seen.merge("", state)
	pid, err := s.client.Start(ctx, tr.id)
	if err != nil {
		s.failed(r, "start", err)
		return nil
	}
	report, err := s.output(tr.id)
	if err != nil {
		return err
	}
	r.seen.merge("", s.sees(report))
	if exit, ended := s.hasExited(tr.id); ended {
		r.seen.add("exit", "code %d, OOM %v, start failed %v, unknown %v", exit.Code, exit.OOMKilled, exit.StartFailed, exit.Unknown)
		return nil
	}
	r.seen.merge("", s.looksAt(pid))
	if !rootIsOwn(pid) {
		r.wrong = append(r.wrong, "the root is the host's")
	}
	if tr.update != nil {
		err := s.client.Update(ctx, tr.id, tr.update)
		r.seen.add("update", "%v", errs.Kind(err))
	}
	r.seen.merge("", s.cgroups(r.container.CgroupPaths, pid))
	stop, err := swap(filepath.Join(s.dir, "c", tr.id), tr.execRaces)
	if err != nil {
		return err
	}
	defer stop()
	for i, e := range tr.execs {
		seen, note, err := s.exec(ctx, tr.id, fmt.Sprint("e", i), e.process, r.container.CgroupPaths)
		if err != nil {
			return fmt.Errorf("exec %d (%s): %w", i, e.what, err)
		}
		r.seen.merge(fmt.Sprintf("exec %d (%s): ", i, e.what), seen)
		r.notes = append(r.notes, note)
	}
	if err := s.client.Signal(ctx, tr.id, syscall.SIGKILL, false); err != nil {
		return err
	}
	exit, err := s.exit(tr.id)
	r.seen.add("exit", "code %d, OOM %v, start failed %v, unknown %v", exit.Code, exit.OOMKilled, exit.StartFailed, exit.Unknown)
	return err
}

// failed records an error of a step: its kind and its cause are compared, its text is not.
func (s *side) failed(r *result, step string, err error) {
	r.notes = append(r.notes, step+": "+s.normal(err.Error()))
	r.seen.add(step, "%s", s.kindOf(err))
}

// Parts of the description of an error.
const (
	failsWith = "fails, kind "
	becauseOf = ", because of "
)

// kindOf describes an error by its kind, and by the part of the container that it is about.
func (s *side) kindOf(err error) string {
	if err == nil {
		return "succeeds"
	}
	text := fmt.Sprint(failsWith, errs.Kind(err))
	var program *supervisor.ProgramError
	if errors.As(err, &program) {
		text += becauseOf + "the program"
	}
	var fault *errs.Fault
	if errors.As(err, &fault) {
		text += fmt.Sprint(becauseOf, fault.Cause, " ", s.normal(fault.Path))
	}
	return text
}

// waiting is what the host sees of an init that waits for the start. Much of it may differ between
// starters. What must hold for each is an assertion of TestWaitingInits.
func (s *side) waiting(pid int) observation {
	o := observation{}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	o.add("waiting", "name %s %v", strings.TrimSpace(string(comm)), err)
	for _, name := range []string{"ns/cgroup", "ns/ipc", "ns/mnt", "ns/net", "ns/pid", "ns/user", "ns/uts"} {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", pid, name))
		o.add("waiting", "%s %s %v", name, s.named(target), err)
	}
	return o
}

// mountOverlay puts an overlay over a root filesystem, so that it is the lower layer.
func mountOverlay(root string) error {
	upper, work := root+".upper", root+".work"
	if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o700)); err != nil {
		return err
	}
	return unix.Mount("overlay", root, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", root, upper, work))
}

// endOfInput is what a terminal takes for the end of its input.
const endOfInput = "\x04"

// exec runs a process in a container, and looks at it while it waits for its input to end. note is
// the text of its error.
func (s *side) exec(ctx context.Context, container, id string, process *specs.Process, groups map[string]string) (o observation, note string, err error) {
	o = observation{}
	var spec specs.Process
	if err := s.copyOf(process, &spec); err != nil {
		return nil, "", err
	}
	var stdout, stderr lockedBuffer
	input, writer := io.Pipe()
	defer writer.Close()
	type end struct {
		code int32
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		code, err := s.client.Exec(ctx, &supervisor.ExecRequest{ContainerID: container, ExecID: id, Process: &spec},
			supervisor.Streams{Stdin: input, Stdout: &stdout, Stderr: &stderr})
		ended <- end{code, err}
	}()
	var last end
	complete := func() bool { return strings.HasSuffix(strings.TrimSpace(stdout.String()), "== end") }
	for deadline := time.Now().Add(patience); ; {
		if complete() {
			pid, err := s.execPid(groups, id)
			if err != nil {
				return nil, "", err
			}
			o.merge("", s.looksAt(pid))
			if _, err := io.WriteString(writer, endOfInput); err != nil {
				return nil, "", err
			}
			if err := writer.Close(); err != nil {
				return nil, "", err
			}
			last = <-ended
			break
		}
		select {
		case last = <-ended:
		case <-time.After(time.Millisecond):
			if time.Now().After(deadline) {
				return nil, "", fmt.Errorf("the report is not complete: %.2000s", stdout.String())
			}
			continue
		}
		break
	}
	if last.err != nil {
		note = s.normal(last.err.Error())
	}
	o.add("end", "code %d, %s", last.code, s.kindOf(last.err))
	o.merge("", s.sees(stdout.String()))
	o["error output"] = strings.Split(s.normal(moment.ReplaceAllString(stderr.String(), "time")), "\n")
	return o, note, nil
}

// moment is the time in a line of a log.
var moment = regexp.MustCompile(`time=\S+`)

// execPid finds the process of an exec by its cgroup.
func (s *side) execPid(groups map[string]string, id string) (int, error) {
	for _, dir := range groups {
		data, err := os.ReadFile(filepath.Join(dir, "berth-exec-"+id, "cgroup.procs"))
		if err != nil {
			continue
		}
		var pid int
		if _, err := fmt.Sscan(string(data), &pid); err == nil {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no process is in the cgroup of exec %s", id)
}
