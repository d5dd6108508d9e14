package criuimage

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/rlimit"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/siginfo"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	criusa "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-sa"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/timer"
)

const (
	// maxTasks bounds the processes, and the threads of one.
	maxTasks = 32768
	// maxPid is the highest that the kernel has.
	maxPid = 4 << 20
	// maxCommand is how long the name of a thread may be.
	maxCommand = 15
)

// The states of processes that are restored.
const (
	taskAlive = 1
	taskDead  = 2
)

// readTree reads which processes there are, with the namespaces of each. The first one is the init. No process may
// belong to a session or a group of a process that is not in the archive.
func (f *fitting) readTree() error {
	const name = "pstree.img"
	in, err := f.openKept(name, "PSTREE")
	if err != nil {
		return err
	}
	pids, threads := map[uint32]bool{}, map[uint32]bool{}
	for in.more() {
		p := &pstree.PstreeEntry{}
		if err := in.next(p); err != nil {
			return err
		}
		if p.GetPid() == 0 || p.GetPid() > maxPid || pids[p.GetPid()] {
			return bad(in.name, "process %d is not a process, or is there twice", p.GetPid())
		}
		if first := len(f.tree) == 0; first != (p.GetPpid() == 0) || !first && !pids[p.GetPpid()] {
			return bad(in.name, "process %d has the parent %d, which is not in the archive", p.GetPid(), p.GetPpid())
		}
		pids[p.GetPid()] = true
		f.tree = append(f.tree, p)
		if len(f.tree) > maxTasks || len(p.GetThreads()) > maxTasks {
			return bad(in.name, "it has more than %d processes or threads", maxTasks)
		}
	}
	if len(f.tree) == 0 {
		return bad(in.name, "it has no process")
	}
	for _, p := range f.tree {
		if !pids[p.GetSid()] || !pids[p.GetPgid()] {
			return bad(in.name, "process %d belongs to session %d and group %d, which are not in the archive", p.GetPid(), p.GetSid(), p.GetPgid())
		}
		ended, err := f.readProcess(p)
		if err != nil {
			return err
		}
		if ended { // CRIU has written no threads of it that mean something
			p.Threads = []uint32{p.GetPid()}
			continue
		}
		for _, tid := range p.GetThreads() {
			if tid == 0 || tid > maxPid || threads[tid] || tid != p.GetPid() && pids[tid] {
				return bad(in.name, "thread %d of process %d is not a thread, or is there twice", tid, p.GetPid())
			}
			threads[tid] = true
		}
		if len(p.GetThreads()) > 0 && p.GetThreads()[0] != p.GetPid() {
			return bad(in.name, "the first thread of process %d is %d", p.GetPid(), p.GetThreads()[0])
		}
		if err := f.readThreads(p); err != nil {
			return err
		}
	}
	if path, _ := oneOf(f.Spec, "pid"); path == "" && f.tree[0].GetPid() != 1 {
		return bad(in.name, "its init is process %d: the request is for a PID namespace of its own", f.tree[0].GetPid())
	}
	w := newWritten("PSTREE")
	for _, p := range f.tree {
		if err := w.add(p); err != nil {
			return err
		}
	}
	return save(f.at(name), w.data)
}

// readProcess reads the image of a process, and reports whether it has ended.
func (f *fitting) readProcess(p *pstree.PstreeEntry) (ended bool, err error) {
	name := coreName(p.GetPid())
	core, err := f.readCore(p.GetPid())
	switch {
	case err != nil:
		return false, err
	case core.GetTc() == nil:
		return false, bad(name, "it has no process")
	case core.GetTc().GetTaskState() == taskDead && f.tree[0] == p:
		return false, bad(name, "its init has ended")
	case core.GetTc().GetTaskState() == taskDead:
		return true, nil
	case core.GetTc().GetTaskState() != taskAlive:
		return false, unsupported(name, "a process in state %d", core.GetTc().GetTaskState())
	}
	f.alive++
	return false, nil
}

// readThreads reads the images of the other threads of a process, and its namespaces.
func (f *fitting) readThreads(p *pstree.PstreeEntry) error {
	pid := p.GetPid()
	for _, tid := range p.GetThreads() {
		if tid == pid {
			continue
		}
		if _, err := f.readCore(tid); err != nil {
			return err
		}
	}
	in, err := f.openKept(fmt.Sprintf("ids-%d.img", pid), "IDS")
	if err != nil {
		return err
	}
	ids := &criucore.TaskKobjIdsEntry{}
	f.ids[pid] = ids
	return in.next(ids)
}

func coreName(id uint32) string { return fmt.Sprintf("%score-%d.img", prefix, id) }

// machine is the architecture of this node, CoreEntry_UNKNOWN where programs are not restored.
func machine() criucore.CoreEntryMarch {
	return map[string]criucore.CoreEntryMarch{"amd64": criucore.CoreEntry_X86_64, "arm64": criucore.CoreEntry_AARCH64}[runtime.GOARCH]
}

func (f *fitting) readCore(id uint32) (*criucore.CoreEntry, error) {
	in, err := f.openKept(filepath.Base(coreName(id)), "CORE")
	if err != nil {
		return nil, err
	}
	core := &criucore.CoreEntry{}
	f.cores[id] = core
	if err := in.next(core); err != nil {
		return nil, err
	}
	if machine := machine(); core.GetMtype() != machine || machine == criucore.CoreEntry_UNKNOWN {
		return nil, unsupported(in.name, "its program is for the architecture %v, and this node is %s", core.GetMtype(), runtime.GOARCH)
	}
	return core, nil
}

// fitTasks checks and writes all images of processes.
func (f *fitting) fitTasks() error {
	for _, p := range f.tree {
		threads := p.GetThreads()
		if len(threads) == 0 {
			threads = []uint32{p.GetPid()}
		}
		for _, tid := range threads {
			if t := f.cores[tid].GetThreadCore(); t != nil && p == f.tree[0] {
				t.PdeathSig = nil // its parent is the OCI runtime, which ends while the processes are stopped
			}
			if err := f.fitCore(coreName(tid), f.cores[tid], tid == p.GetPid()); err != nil {
				return err
			}
			if err := saveOne(f.at("core-%d.img", tid), "CORE", f.cores[tid]); err != nil {
				return err
			}
		}
		if f.ids[p.GetPid()] == nil { // it has ended
			continue
		}
		for _, fit := range []func(pid uint32) error{f.fitIDs, f.fitFS, f.fitDescriptors, f.fitMemory} {
			if err := fit(p.GetPid()); err != nil {
				return err
			}
		}
	}
	return nil
}

// fitCore checks a thread, and sets what the request alone decides.
func (f *fitting) fitCore(name string, c *criucore.CoreEntry, first bool) error {
	if first != (c.GetTc() != nil) {
		return bad(name, "it is not of a first thread, or has no process")
	}
	if first && c.GetTc().GetTaskState() == taskDead {
		// Nothing else of it is restored.
		c.ThreadCore, c.Ids = nil, nil
		return f.fitProcess(name, c.GetTc())
	}
	t := c.GetThreadCore()
	if t == nil {
		return bad(name, "it has no thread")
	}
	if regs := c.GetThreadInfo().GetGpregs(); c.GetMtype() == criucore.CoreEntry_X86_64 && (regs == nil || regs.GetMode() != 1) {
		return unsupported(name, "a process of 32 bits")
	}
	if err := f.allowed.fit(name, t.GetCreds()); err != nil {
		return err
	}
	if !slices.Contains([]uint32{unix.SCHED_NORMAL, unix.SCHED_BATCH, unix.SCHED_IDLE}, t.GetSchedPolicy()) || t.GetSchedPrio() != 0 || t.GetSchedNice() < 0 {
		return bad(name, "it is scheduled with policy %d, priority %d and nice value %d: the request does not give that",
			t.GetSchedPolicy(), t.GetSchedPrio(), t.GetSchedNice())
	}
	if err := checkSignals(name, t.GetSignalsP().GetSignals()); err != nil {
		return err
	}
	if t.GetPdeathSig() == uint32(unix.SIGCONT) {
		return unsupported(name, "a signal SIGCONT at the end of its parent")
	}
	if len(t.GetComm()) > maxCommand {
		return bad(name, "its name has %d bytes", len(t.GetComm()))
	}
	t.CgSet, t.SeccompMode, t.SeccompFilter = proto.Uint32(cgroupSet), nil, nil
	if f.Spec.Linux.Seccomp != nil { // the supervisor writes the filter
		t.SeccompMode, t.SeccompFilter = criucore.SeccompMode_filter.Enum(), proto.Uint32(0)
	}
	c.Ids = nil // they have a file of their own
	if !first {
		return nil
	}
	return f.fitProcess(name, c.GetTc())
}

// fitProcess is the part of fitCore for what all threads share.
func (f *fitting) fitProcess(name string, tc *criucore.TaskCoreEntry) error {
	if tc.GetPersonality() != 0 {
		return bad(name, "personality %#x: the request does not give it", tc.GetPersonality())
	}
	if len(tc.GetComm()) > maxCommand || len(tc.GetSigactions()) > maxSignal || len(tc.GetRlimits().GetRlimits()) > maxLimits {
		return bad(name, "its name, its handlers of signals or its limits are too many")
	}
	if err := checkSignals(name, tc.GetSignalsS().GetSignals()); err != nil {
		return err
	}
	if err := checkTimers(name, tc.GetTimers()); err != nil {
		return err
	}
	if slices.ContainsFunc(tc.GetSigactions(), func(s *criusa.SaEntry) bool { return s.GetCompatSigaction() }) {
		return unsupported(name, "a process of 32 bits")
	}
	f.fitLimits(tc.GetRlimits().GetRlimits())
	tc.CgSet, tc.OldSeccompMode, tc.OldSeccompFilter, tc.Loginuid, tc.StopSigno = proto.Uint32(cgroupSet), nil, nil, nil, nil
	tc.OomScoreAdj = nil
	if score := f.Spec.Process.OOMScoreAdj; score != nil {
		tc.OomScoreAdj = proto.Int32(int32(*score)) //nolint:gosec // -1000 to 1000
	}
	return nil
}

const (
	// maxSignal is the highest signal, maxLimits how many kinds of limits the kernel has.
	maxSignal = 64
	maxLimits = 16
	// signalSize is the size of the kernel's siginfo.
	signalSize = 128
)

func checkSignals(name string, queue []*siginfo.SiginfoEntry) error {
	if len(queue) > maxTasks {
		return bad(name, "it has %d signals that wait", len(queue))
	}
	for _, s := range queue {
		if len(s.GetSiginfo()) != signalSize {
			return bad(name, "a signal has %d bytes", len(s.GetSiginfo()))
		}
	}
	return nil
}

// checkTimers refuses timers that wake the machine. A timer that lets a stopped process go on would do so before the
// container is started.
func checkTimers(name string, timers *timer.TaskTimersEntry) error {
	for _, t := range timers.GetPosix() {
		if t.GetClockId() > unix.CLOCK_BOOTTIME && t.GetClockId() != unix.CLOCK_TAI {
			return unsupported(name, "a timer of clock %d", t.GetClockId())
		}
		if t.GetSiSigno() == uint32(unix.SIGCONT) {
			return unsupported(name, "a timer that sends SIGCONT")
		}
	}
	return nil
}

// fitLimits lowers limits to those of the request, and where it has none to those that a container has that is not
// restored.
func (f *fitting) fitLimits(limits []*rlimit.RlimitEntry) {
	for resource, limit := range limits {
		hard := LimitOf(f.Spec, f.Limits, resource)
		limit.Max = proto.Uint64(min(limit.GetMax(), hard))
		limit.Cur = proto.Uint64(min(limit.GetCur(), hard))
	}
}

// limitName returns the name of a limit in an OCI spec.
func limitName(resource int) string {
	names := map[int]string{
		unix.RLIMIT_CPU: "CPU", unix.RLIMIT_FSIZE: "FSIZE", unix.RLIMIT_DATA: "DATA", unix.RLIMIT_STACK: "STACK", unix.RLIMIT_CORE: "CORE",
		unix.RLIMIT_RSS: "RSS", unix.RLIMIT_NPROC: "NPROC", unix.RLIMIT_NOFILE: "NOFILE", unix.RLIMIT_MEMLOCK: "MEMLOCK", unix.RLIMIT_AS: "AS",
		unix.RLIMIT_LOCKS: "LOCKS", unix.RLIMIT_SIGPENDING: "SIGPENDING", unix.RLIMIT_MSGQUEUE: "MSGQUEUE", unix.RLIMIT_NICE: "NICE",
		unix.RLIMIT_RTPRIO: "RTPRIO", unix.RLIMIT_RTTIME: "RTTIME",
	}
	return "RLIMIT_" + names[resource]
}
