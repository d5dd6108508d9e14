package confine

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dropPrivileges has the programs that the calling thread starts get the given capabilities alone. The thread itself keeps its
// own. What it drops, the thread cannot get back.
func dropPrivileges(keep []uint) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot forbid new privileges: %w", err)
	}
	for c := uint(0); ; c++ {
		if slices.Contains(keep, c) {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // the kernel has no more capabilities
		}
		if err != nil {
			return fmt.Errorf("cannot drop capability %d: %w", c, err)
		}
	}
	// A program of root gets what is inheritable, whatever the bounding set has.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var set [2]unix.CapUserData
	if err := unix.Capget(&header, &set[0]); err != nil {
		return fmt.Errorf("cannot read the capabilities of a thread: %w", err)
	}
	set[0].Inheritable, set[1].Inheritable = 0, 0
	if err := unix.Capset(&header, &set[0]); err != nil {
		return fmt.Errorf("cannot drop inheritable capabilities: %w", err)
	}
	return nil
}

// denied are the calls that lead to other processes past the namespaces of a program: sockets, of which those of machines (vsock)
// know no namespaces, io_uring, which makes sockets, too, and keyrings.
func denied() []uint32 {
	return []uint32{
		unix.SYS_SOCKET, unix.SYS_SOCKETPAIR, unix.SYS_IO_URING_SETUP,
		unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	}
}

// denyCalls has the calls of denied fail, in the calling thread and in the programs that it starts, and the calls that make user
// namespaces: in one of its own a program would have every capability, and with them most of the kernel's code. It returns false
// without an error where the kernel has no seccomp.
func denyCalls() (done bool, err error) {
	native, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return false, nil
	}
	filter := filterOf(native, denied())
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// With the flag, programs run as fast as others on kernels before 5.16.
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	switch errno {
	case 0:
		return true, nil
	case unix.ENOSYS, unix.EINVAL:
		return false, nil
	}
	return false, fmt.Errorf("cannot deny calls: %w", errno)
}

// The offsets of what the kernel gives a filter: the number of a call, the architecture, and the lower halves of two arguments.
const (
	atCall         = 0
	atArchitecture = 4
	atFirst        = 16
	atSecond       = 24
)

// filterOf returns the program that fails calls, those that make user namespaces, and all of other architectures.
func filterOf(architecture uint32, calls []uint32) []unix.SockFilter {
	const otherABI = 0x40000000 // x32, whose calls have this bit
	var (
		deny    = fail(unix.EPERM)
		allow   = statement(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW)
		noUsers = []unix.SockFilter{load(atFirst), jump(unix.BPF_JSET, unix.CLONE_NEWUSER, 0, 1), deny, allow}
	)
	filter := []unix.SockFilter{
		load(atArchitecture),
		jump(unix.BPF_JEQ, architecture, 1, 0),
		deny,
		load(atCall),
		jump(unix.BPF_JGE, otherABI, 0, 1),
		deny,
	}
	// Each rule ends the program: a later one would not find the number of the call.
	rule := func(call uint32, then ...unix.SockFilter) {
		filter = append(append(filter, jump(unix.BPF_JEQ, call, 0, uint8(len(then)))), then...)
	}
	for _, call := range calls {
		rule(call, deny)
	}
	rule(unix.SYS_CLONE, noUsers...)
	rule(unix.SYS_UNSHARE, noUsers...)
	// A filter does not see the flags of clone3. Programs use clone where the kernel has no clone3.
	rule(unix.SYS_CLONE3, fail(unix.ENOSYS))
	// A program must not outlive this process.
	rule(unix.SYS_PRCTL,
		load(atFirst), jump(unix.BPF_JEQ, unix.PR_SET_PDEATHSIG, 1, 0), allow,
		load(atSecond), jump(unix.BPF_JEQ, uint32(unix.SIGKILL), 0, 1), allow, deny)
	return append(filter, allow)
}

func statement(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

func load(offset uint32) unix.SockFilter {
	return statement(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset)
}

func fail(errno unix.Errno) unix.SockFilter {
	return statement(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ERRNO|uint32(errno))
}

// jump skips as many instructions as yes or no says.
func jump(test uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, K: k, Jt: yes, Jf: no}
}
