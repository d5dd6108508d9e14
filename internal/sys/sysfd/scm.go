package sysfd

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// MaxFDs is how many descriptors the kernel takes in one message.
const MaxFDs = 253

// SocketPair makes two connected SOCK_SEQPACKET sockets, both close-on-exec: one
// for this process, one to be given to a child.
func SocketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a socket pair: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "socketpair")
	ours, err := FileUnixConn(os.NewFile(uintptr(fds[0]), "socketpair"))
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// FileUnixConn turns a file that is a unix socket into a connection and closes
// the file.
func FileUnixConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("cannot use %s as a socket: %w", f.Name(), err)
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("%s is no unix socket", f.Name())
	}
	return unixConn, nil
}

// SendFDs sends msg with copies of fds. On a stream socket the descriptors go
// with the first byte; msg must not be empty.
func SendFDs(conn *net.UnixConn, msg []byte, fds []int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	n, oobn, err := conn.WriteMsgUnix(msg, rights, nil)
	if err != nil {
		return fmt.Errorf("cannot send %d descriptors: %w", len(fds), err)
	}
	if n != len(msg) || oobn != len(rights) {
		return fmt.Errorf("cannot send %d descriptors: %w", len(fds), io.ErrShortWrite)
	}
	return nil
}

// SendFiles is SendFDs for open files.
func SendFiles(conn *net.UnixConn, msg []byte, files []*os.File) error {
	fds := make([]int, len(files))
	defer runtime.KeepAlive(files)
	for i, f := range files {
		if err := With(f, func(fd int) error { fds[i] = fd; return nil }); err != nil {
			return fmt.Errorf("cannot send %s: %w", f.Name(), err)
		}
	}
	return SendFDs(conn, msg, fds)
}

// ReceiveFDs receives a message and the descriptors that came with it, all
// close-on-exec. io.EOF when the peer has closed. A message that does not fit
// (buf, or more than MaxFDs) is an error, and its descriptors are closed.
func ReceiveFDs(conn *net.UnixConn, buf []byte) (n int, fds []int, err error) {
	oob := make([]byte, unix.CmsgSpace(MaxFDs*4))
	n, oobn, flags, _, err := conn.ReadMsgUnix(buf, oob)
	if errors.Is(err, unix.ECONNRESET) {
		// The peer closed with something unread. The kernel reports that once, ahead of what the
		// peer had sent.
		n, oobn, flags, _, err = conn.ReadMsgUnix(buf, oob)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("cannot receive a message: %w", err)
	}
	if oobn > 0 {
		if fds, err = parseRights(oob[:oobn]); err != nil {
			return 0, nil, fmt.Errorf("cannot receive descriptors: %w", err)
		}
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		CloseFDs(fds)
		return 0, nil, fmt.Errorf("cannot receive a message: it is longer than %d bytes or %d descriptors", len(buf), MaxFDs)
	}
	if n == 0 && len(fds) == 0 {
		return 0, nil, io.EOF
	}
	return n, fds, nil
}

// ReceiveFiles is ReceiveFDs with the descriptors as files named name.
func ReceiveFiles(conn *net.UnixConn, buf []byte, name string) (n int, files []*os.File, err error) {
	n, fds, err := ReceiveFDs(conn, buf)
	for _, fd := range fds {
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	return n, files, err
}

// CloseFDs closes descriptors that are not in a file.
func CloseFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// PeerPid returns the pid and uid of the process at the other end of conn, as the
// kernel noted them when it connected.
func PeerPid(conn *net.UnixConn) (pid, uid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, 0, fmt.Errorf("cannot find out the peer of a socket: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, credErr); err != nil {
		return 0, 0, fmt.Errorf("cannot find out the peer of a socket: %w", err)
	}
	return int(cred.Pid), int(cred.Uid), nil
}

// IsSocket reports whether a descriptor is a socket.
func IsSocket(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK
}

// SetCloseOnExec sets or clears the close-on-exec flag of a descriptor.
func SetCloseOnExec(fd int, on bool) error {
	flags := 0
	if on {
		flags = unix.FD_CLOEXEC
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, flags); err != nil {
		return fmt.Errorf("cannot set close-on-exec of descriptor %d: %w", fd, err)
	}
	return nil
}

func parseRights(oob []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var all []int
	for i := range messages {
		if messages[i].Header.Level != unix.SOL_SOCKET || messages[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			CloseFDs(all)
			return nil, err
		}
		all = append(all, fds...)
	}
	return all, nil
}
