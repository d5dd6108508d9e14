package filter

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"unsafe"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/supervisor/ownstart/codec"
)

// Role is the argument with which a program of this module calls Capture, and nothing else.
const Role = "filter"

// Capture is the main function of the helper. It reads a profile from stdin, has libcontainer load
// it, and writes the filter to stdout. One thread has a filter that stops it at the system call that
// loads the profile. Another thread, which the kernel notifies of that, reads the arguments of the
// call. So the profile is never loaded, and may forbid anything. Capture does not return.
func Capture() {
	reply := func(refused string, flags uint64, program []byte) {
		var w codec.Writer
		w.String(refused)
		w.Uint(flags)
		w.Bytes(program)
		if _, err := os.Stdout.Write(w.Encoded()); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	encoded, err := io.ReadAll(os.Stdin)
	var profile configs.Seccomp
	if err == nil {
		err = json.Unmarshal(encoded, &profile)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot read the profile:", err)
		os.Exit(1)
	}
	// The loading thread waits in the kernel for the other one.
	runtime.GOMAXPROCS(2)
	listeners := make(chan int)
	go func() {
		runtime.LockOSThread()
		listener, err := stopAtLoad()
		if err != nil {
			reply("this kernel cannot stop a thread that loads it: "+err.Error(), 0, nil)
		}
		listeners <- listener
		_, err = seccomp.InitSeccomp(&profile)
		reply(fmt.Sprint("it was not loaded: ", err), 0, nil)
	}()
	flags, program, err := awaitLoad(<-listeners)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	reply("", flags, program)
}

// stopAtLoad lets the calling thread wait for an answer of the listener when it loads a filter.
// libseccomp also tests what the kernel can do, with no filter: these calls pass.
func stopAtLoad() (listener int, err error) {
	const (
		number     = 0
		first      = 16 // of the arguments, each with 8 bytes
		third      = first + 2*8
		filterMode = 1 // SECCOMP_SET_MODE_FILTER
	)
	low := uint32(first)
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		low += 4
	}
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	equal := func(value uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jt: yes, Jf: no}
	}
	ret := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	program := []unix.SockFilter{
		0:  load(number),
		1:  equal(unix.SYS_PRCTL, 1, 0),
		2:  equal(unix.SYS_SECCOMP, 2, 8),
		3:  load(low),
		4:  equal(unix.PR_SET_SECCOMP, 2, 6),
		5:  load(low),
		6:  equal(filterMode, 0, 4),
		7:  load(third), // a pointer, in two halves
		8:  equal(0, 0, 3),
		9:  load(third + 4),
		10: equal(0, 0, 1),
		11: ret(unix.SECCOMP_RET_ALLOW),
		12: ret(unix.SECCOMP_RET_USER_NOTIF),
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, err
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: unsafe.SliceData(program)}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, filterMode, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// notification is struct seccomp_notif.
type notification struct {
	id         uint64
	pid, flags uint32
	number     int32
	arch       uint32
	at         uint64
	args       [6]uint64
}

// awaitLoad waits for the load, and returns what would have been loaded. A signal may interrupt the load
// before its notification is received (ENOENT); the kernel begins the call again, with another one.
func awaitLoad(listener int) (flags uint64, program []byte, err error) {
	var n notification
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n)))
		if errno == 0 {
			break
		}
		if errno != unix.EINTR && errno != unix.ENOENT {
			return 0, nil, fmt.Errorf("cannot wait for the load of the profile: %w", errno)
		}
	}
	if n.number == unix.SYS_SECCOMP {
		flags = n.args[1]
	}
	var fprog unix.SockFprog
	head := unsafe.Slice((*byte)(unsafe.Pointer(&fprog)), unsafe.Sizeof(fprog))
	if err := read(uintptr(n.args[2]), head); err != nil {
		return 0, nil, err
	}
	if fprog.Len == 0 {
		return 0, nil, errors.New("the filter of the profile is empty")
	}
	program = make([]byte, int(fprog.Len)*int(unsafe.Sizeof(unix.SockFilter{})))
	return flags, program, read(uintptr(unsafe.Pointer(fprog.Filter)), program)
}

// read fills b from an address of this process, as the kernel would: a wrong one is an error.
func read(at uintptr, b []byte) error {
	local := []unix.Iovec{{Base: unsafe.SliceData(b)}}
	local[0].SetLen(len(b))
	n, err := unix.ProcessVMReadv(os.Getpid(), local, []unix.RemoteIovec{{Base: at, Len: len(b)}}, 0)
	if err == nil && n != len(b) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("cannot read the filter of the profile: %w", err)
	}
	return nil
}
