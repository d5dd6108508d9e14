package sysproc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"

	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// ExitEvents reports how every process of the machine ends, whatever its parent is, by the kernel's
// process connector. It is for kernels whose pidfds do not report that. Exits
// queue up in its file while any process has it open.
type ExitEvents struct{ file *os.File }

// ExitEvent is the end of a thread. A process has ended when its last thread has,
// with the status that was reported last.
type ExitEvent struct {
	Pid    int
	Status syscall.WaitStatus
	// At is when, since boot, without the time in which the machine was suspended.
	At time.Duration
}

// Of reports whether the event can be one of the process with the same pid that began
// at start (Proc.Start).
func (e ExitEvent) Of(start uint64) bool { return e.At >= awakeAt(start) }

// Layout of a message: struct nlmsghdr, struct cn_msg, struct proc_event.
const (
	connectorAt   = unix.SizeofNlMsghdr
	eventAt       = connectorAt + 20
	timeAt        = eventAt + 8
	exitAt        = eventAt + 16 // pid, tgid, code: 4 bytes each
	exitEnd       = exitAt + 12
	connectorProc = 1 // CN_IDX_PROC, CN_VAL_PROC, and the multicast group
	listen        = 1 // PROC_CN_MCAST_LISTEN
	eventExit     = 0x80000000
)

// ListenExits begins to listen. It does not report earlier exits. Kind Unsupported when
// the kernel cannot, or does not let this process.
func ListenExits() (*ExitEvents, error) {
	for _, kind := range []struct{ link, first string }{
		{"/proc/self/ns/pid", "pid:[4026531836]"}, {"/proc/self/ns/user", "user:[4026531837]"},
	} {
		if here, err := os.Readlink(kind.link); err != nil || here != kind.first {
			// The kernel would take the request and report nothing.
			return nil, fmt.Errorf("exits of all processes, in namespace %s: %w", here, errs.Unsupported)
		}
	}
	var e *ExitEvents
	open := func() (err error) {
		e, err = openConnector()
		return err
	}
	// The connector lives in the first network namespace, as pid 1 mostly does.
	err := sysns.InNetNS("/proc/1/ns/net", open)
	if e == nil {
		err = open()
	}
	return e, err
}

func openConnector() (*ExitEvents, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_CONNECTOR)
	if err != nil {
		return nil, fmt.Errorf("cannot open the process connector: %w: %w", errs.Unsupported, err)
	}
	e := &ExitEvents{os.NewFile(uintptr(fd), exitEventsName)}
	const room = 4 << 20 // some thousand exits at once
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room); err != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, room) // some room, then
	}
	err = errors.Join(
		onlyExits(fd),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: connectorProc}),
	)
	if err == nil {
		err = unix.Sendto(fd, listenMessage(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err != nil {
		e.file.Close()
		return nil, fmt.Errorf("cannot listen to the process connector: %w: %w", errs.Unsupported, err)
	}
	return e, nil
}

const exitEventsName = "process connector"

// ResumeExits continues with the file of another process's ExitEvents, which it takes over.
func ResumeExits(file *os.File) (*ExitEvents, error) {
	f, err := sysfd.Pollable(file)
	if err != nil {
		return nil, err
	}
	return &ExitEvents{f}, nil
}

// File is the socket. Other processes may hold it, so that no exit is missed without a reader.
func (e *ExitEvents) File() *os.File { return e.file }

// onlyExits lets the kernel filter out other events, such as forks.
func onlyExits(fd int) error {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: eventAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: bigEndian(eventExit), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: unsafe.SliceData(program)})
}

// bigEndian is v as a filter loads it from memory in which the kernel wrote it in
// its own order.
func bigEndian(v uint32) uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, v))
}

func listenMessage() []byte {
	b := make([]byte, eventAt, eventAt+4)
	b = binary.NativeEndian.AppendUint32(b, listen)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.NLMSG_DONE)
	binary.NativeEndian.PutUint32(b[connectorAt:], connectorProc)
	binary.NativeEndian.PutUint32(b[connectorAt+4:], connectorProc)
	binary.NativeEndian.PutUint16(b[connectorAt+16:], 4) // of data
	return b
}

// Wait waits until there is an event to Peek.
func (e *ExitEvents) Wait(ctx context.Context) error {
	return sysfd.Await(ctx, nil, e.file, func(fd int) bool {
		_, _, err := unix.Recvfrom(fd, nil, unix.MSG_PEEK)
		return err != unix.EAGAIN && err != unix.EINTR
	})
}

// Peek returns the next event and keeps it in the socket until Drop: when this process ends
// in between, the next process with the file gets it. Kind NotFound when there is none now:
// the kernel queues an event before a pidfd reports the end. Kind Exhausted when events were
// missed. One caller at a time.
func (e *ExitEvents) Peek() (ExitEvent, error) {
	buf := make([]byte, 512)
	for {
		n, from, err := e.receive(buf, unix.MSG_PEEK)
		if err != nil {
			return ExitEvent{}, err
		}
		if kernel, ok := from.(*unix.SockaddrNetlink); ok && kernel.Pid == 0 {
			if event, ok := parseExit(buf[:n]); ok {
				return event, nil
			}
		}
		if err := e.Drop(); err != nil {
			return ExitEvent{}, err
		}
	}
}

// Drop removes the event that Peek returned.
func (e *ExitEvents) Drop() error {
	_, _, err := e.receive(nil, 0)
	return err
}

func (e *ExitEvents) receive(buf []byte, flags int) (n int, from unix.Sockaddr, err error) {
	err = sysfd.With(e.file, func(fd int) (err error) {
		for err = unix.EINTR; err == unix.EINTR; {
			n, from, err = unix.Recvfrom(fd, buf, flags)
		}
		return err
	})
	switch {
	case errors.Is(err, unix.EAGAIN):
		return 0, nil, fmt.Errorf("exit of a process: %w", errs.NotFound)
	case errors.Is(err, unix.ENOBUFS):
		return 0, nil, fmt.Errorf("exits that came too fast: %w", errs.Exhausted)
	case err != nil:
		return 0, nil, fmt.Errorf("cannot read the process connector: %w", err)
	}
	return n, from, nil
}

func parseExit(b []byte) (ExitEvent, bool) {
	if len(b) < exitEnd || binary.NativeEndian.Uint32(b[eventAt:]) != eventExit {
		return ExitEvent{}, false
	}
	return ExitEvent{
		Pid:    int(binary.NativeEndian.Uint32(b[exitAt+4:])), // the process's, not the thread's
		Status: syscall.WaitStatus(binary.NativeEndian.Uint32(b[exitAt+8:])),
		At:     time.Duration(binary.NativeEndian.Uint64(b[timeAt:])),
	}, true
}

// Close ends the listening.
func (e *ExitEvents) Close() error { return e.file.Close() }

// PidfdsReportExits reports whether PidfdStatus works on this kernel.
func PidfdsReportExits() bool {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return false
	}
	return atLeast(unix.ByteSliceToString(name.Release[:]), 6, 15)
}

func atLeast(release string, wantMajor, wantMinor int) bool {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > wantMajor || major == wantMajor && minor >= wantMinor
}
