package attack

import (
	"math"

	"golang.org/x/sys/unix"
)

// call is a system call that the traced process is made to do.
type call struct {
	name string
	nr   uint64
	args [3]uint64
}

// trace attaches to the process and makes it do system calls.
func (r *Report) trace(pid int) {
	if err := unix.PtraceSeize(pid); err != nil {
		r.note("attach", err)
		return
	}
	if err := unix.PtraceInterrupt(pid); err != nil {
		r.note("stop", err)
		return
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil {
		r.note("stop", err)
		return
	}
	r.Attached = true
	var saved unix.PtraceRegs
	if err := unix.PtraceGetRegs(pid, &saved); err != nil {
		r.note("registers", err)
		return
	}
	const atCwd = ^uint64(99)
	path := (saved.Rsp - 512) &^ 7
	if _, err := unix.PtracePokeData(pid, uintptr(path), []byte("/\x00\x00\x00\x00\x00\x00\x00")); err != nil {
		r.note("memory", err)
	}
	for _, c := range []call{
		{"getuid", unix.SYS_GETUID, [3]uint64{}},
		{"prctl", unix.SYS_PRCTL, [3]uint64{unix.PR_SET_DUMPABLE, 1}},
		{"openat", unix.SYS_OPENAT, [3]uint64{atCwd, path, unix.O_RDONLY | unix.O_DIRECTORY}},
		{"socket", unix.SYS_SOCKET, [3]uint64{unix.AF_UNIX, unix.SOCK_STREAM}},
		{"mmap", unix.SYS_MMAP, [3]uint64{0, 4096, unix.PROT_READ}},
		{"unshare", unix.SYS_UNSHARE, [3]uint64{unix.CLONE_NEWUSER}},
		{"fork", unix.SYS_FORK, [3]uint64{}},
	} {
		r.inject(pid, saved, c)
	}
	r.note("restore", unix.PtraceSetRegs(pid, &saved))
	r.note("detach", unix.PtraceDetach(pid))
}

// inject runs the instruction again at which the process waits in the kernel.
func (r *Report) inject(pid int, regs unix.PtraceRegs, c call) {
	const instruction = 2
	regs.Rip -= instruction
	regs.Orig_rax = math.MaxUint64 // no system call may be restarted
	regs.Rax, regs.Rdi, regs.Rsi, regs.Rdx = c.nr, c.args[0], c.args[1], c.args[2]
	regs.R10, regs.R8, regs.R9 = unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, math.MaxUint64, 0
	if err := unix.PtraceSetRegs(pid, &regs); err != nil {
		r.note(c.name, err)
		return
	}
	var status unix.WaitStatus
	if err := unix.PtraceSingleStep(pid); err != nil {
		r.note(c.name, err)
		return
	}
	if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil {
		r.note(c.name, err)
		return
	}
	if err := unix.PtraceGetRegs(pid, &regs); err != nil {
		r.note(c.name, err)
		return
	}
	if result := int64(regs.Rax); result < 0 {
		r.note(c.name, unix.Errno(-result))
		r.Refused = append(r.Refused, c.name)
		return
	} else if c.name == "fork" {
		_ = unix.Kill(int(result), unix.SIGKILL)
	}
	r.Injected = append(r.Injected, c.name)
}
