//go:build integration

package differential

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of ptrace(2) that package unix lacks.
const (
	ptraceSeccompGetFilter   = 0x420c
	ptraceSeccompGetMetadata = 0x420d
)

// filtersOf reads the seccomp programs of a process, the last one that was loaded first.
func filtersOf(pid int) []string {
	lines := make(chan []string)
	go func() {
		runtime.LockOSThread() // the thread is the tracer, and ends with the goroutine
		lines <- readFilters(pid)
	}()
	return <-lines
}

func readFilters(pid int) (lines []string) {
	if err := unix.PtraceSeize(pid); err != nil {
		return []string{fmt.Sprint("cannot trace: ", err)}
	}
	if err := unix.PtraceInterrupt(pid); err != nil {
		return []string{fmt.Sprint("cannot stop: ", err)}
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil {
		return []string{fmt.Sprint("cannot wait: ", err)}
	}
	for i := 0; ; i++ {
		n, _, errno := syscall.Syscall6(syscall.SYS_PTRACE, ptraceSeccompGetFilter, uintptr(pid), uintptr(i), 0, 0, 0)
		if errno == syscall.ENOENT || errno == syscall.EINVAL {
			break // there are no more, or there is none at all
		}
		if errno != 0 {
			lines = append(lines, fmt.Sprintf("filter %d: %v", i, errno))
			break
		}
		program := make([]unix.SockFilter, n)
		if _, _, errno = syscall.Syscall6(syscall.SYS_PTRACE, ptraceSeccompGetFilter, uintptr(pid), uintptr(i), uintptr(unsafe.Pointer(&program[0])), 0, 0); errno != 0 {
			lines = append(lines, fmt.Sprintf("filter %d: %v", i, errno))
			break
		}
		metadata := struct{ filter, flags uint64 }{filter: uint64(i)}
		if _, _, errno = syscall.Syscall6(syscall.SYS_PTRACE, ptraceSeccompGetMetadata, uintptr(pid), unsafe.Sizeof(metadata), uintptr(unsafe.Pointer(&metadata)), 0, 0); errno != 0 {
			lines = append(lines, fmt.Sprintf("flags of filter %d: %v", i, errno))
		}
		lines = append(lines, fmt.Sprintf("filter %d has %d instructions, flags %x", i, n, metadata.flags))
		begin := beginning(program)
		lines = append(lines, effects(program[:begin])...)
		for at, code := range program[begin:] {
			lines = append(lines, fmt.Sprintf("%d.%d: %04x %d %d %08x", i, begin+at, code.Code, code.Jt, code.Jf, code.K))
		}
	}
	if err := unix.PtraceDetach(pid); err != nil {
		lines = append(lines, fmt.Sprint("cannot detach: ", err))
	}
	return lines
}

const (
	loadWord  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	jumpEqual = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	jumpMore  = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
	jumpSet   = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	jump      = unix.BPF_JMP | unix.BPF_JA
	giveBack  = unix.BPF_RET | unix.BPF_K

	// Offsets in the data of a filter.
	offsetNumber, offsetArch = 0, 4
)

// beginning is where libseccomp's program begins: it loads the architecture first. libcontainer
// puts instructions before it that refuse unknown system calls with ENOSYS. Their order is that of a Go
// map, another one at each start.
func beginning(program []unix.SockFilter) int {
	begin := 0
	for at, code := range program {
		if code.Code == loadWord && code.K == offsetArch {
			begin = at
		}
	}
	return begin
}

// effects runs the instructions before libseccomp's program for each architecture that they know, and
// each system call near a boundary. What they do is compared instead of their order.
func effects(program []unix.SockFilter) []string {
	numbers := map[uint32]bool{0: true, 0x3fffffff: true, 0x40000000: true, 0xffffffff: true}
	arches := map[uint32]bool{0: true}
	for _, code := range program {
		if code.Code == jumpEqual {
			arches[code.K] = true
		}
		if code.Code != jumpEqual && code.Code != jumpMore {
			continue
		}
		for _, near := range []uint32{code.K - 1, code.K, code.K + 1} {
			numbers[near] = true
		}
	}
	var lines []string
	for _, arch := range slices.Sorted(maps.Keys(arches)) {
		for _, number := range slices.Sorted(maps.Keys(numbers)) {
			lines = append(lines, fmt.Sprintf("architecture %08x, call %08x: %s", arch, number, effect(program, arch, number)))
		}
	}
	if len(program) == 0 {
		return nil
	}
	return lines
}

// effect runs a program on one call: "goes on" at its end.
func effect(program []unix.SockFilter, arch, number uint32) string {
	var value uint32
	for at := 0; at < len(program); at++ {
		code := program[at]
		taken := false
		switch code.Code {
		case loadWord:
			switch code.K {
			case offsetNumber:
				value = number
			case offsetArch:
				value = arch
			default:
				return fmt.Sprint("loads ", code.K)
			}
			continue
		case jump:
			at += int(code.K)
			continue
		case giveBack:
			return fmt.Sprintf("%08x", code.K)
		case jumpEqual:
			taken = value == code.K
		case jumpMore:
			taken = value > code.K
		case jumpSet:
			taken = value&code.K != 0
		default:
			return fmt.Sprintf("instruction %04x", code.Code)
		}
		if taken {
			at += int(code.Jt)
		} else {
			at += int(code.Jf)
		}
	}
	return "goes on"
}
