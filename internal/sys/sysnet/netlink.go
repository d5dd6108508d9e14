package sysnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Netlink is a netlink socket that sends several requests in one datagram. It
// belongs to the network namespace of the thread that opened it, whichever thread
// uses it later. It is safe for concurrent use.
type Netlink struct {
	mu  sync.Mutex
	fd  int
	seq uint32
	buf []byte
}

// NetlinkRequest is one request of a batch.
type NetlinkRequest struct {
	Type  uint16
	Flags uint16 // besides NLM_F_REQUEST and NLM_F_ACK
	// Payload is what follows the header: the family's own header and attributes.
	Payload []byte
}

// NetlinkError is the error of the first request of a batch that failed.
type NetlinkError struct {
	Index int
	Errno unix.Errno
	// Reason is the kernel's own sentence, often empty.
	Reason string
}

func (e *NetlinkError) Error() string {
	if e.Reason == "" {
		return e.Errno.Error()
	}
	return fmt.Sprintf("%s (%s)", e.Errno.Error(), e.Reason)
}

// Unwrap makes errors.Is work on the errno.
func (e *NetlinkError) Unwrap() error { return e.Errno }

// OpenNetlink opens a socket of one protocol (unix.NETLINK_ROUTE, ...).
func OpenNetlink(protocol int) (*Netlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("cannot open a netlink socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot bind a netlink socket: %w", err)
	}
	// Short acknowledgements, with the kernel's reason. A kernel without these options sends
	// longer ones without the reason.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return &Netlink{fd: fd, buf: make([]byte, 32<<10)}, nil
}

// Close closes the socket. It must not be in use.
func (n *Netlink) Close() error { return unix.Close(n.fd) }

// Do sends the requests in one datagram and waits for all their answers. The
// kernel carries every one out, also those behind one that failed. replies holds
// per request the payload of its last message, nil when there was none. The error
// is a *NetlinkError when a request was refused. No dumps.
func (n *Netlink) Do(requests ...NetlinkRequest) (replies [][]byte, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	first := n.seq + 1
	var out []byte
	for _, r := range requests {
		out = n.appendRequest(out, r, unix.NLM_F_ACK)
	}
	if err := n.send(out); err != nil {
		return nil, err
	}
	return n.receive(first, len(requests), false)
}

// appendRequest appends a request with the next number.
func (n *Netlink) appendRequest(out []byte, r NetlinkRequest, flags uint16) []byte {
	n.seq++
	out = binary.NativeEndian.AppendUint32(out, uint32(unix.SizeofNlMsghdr+len(r.Payload)))
	out = binary.NativeEndian.AppendUint16(out, r.Type)
	out = binary.NativeEndian.AppendUint16(out, r.Flags|unix.NLM_F_REQUEST|flags)
	out = binary.NativeEndian.AppendUint32(out, n.seq)
	out = binary.NativeEndian.AppendUint32(out, 0)
	out = append(out, r.Payload...)
	for len(out)%unix.NLMSG_ALIGNTO != 0 {
		out = append(out, 0)
	}
	return out
}

func (n *Netlink) send(datagram []byte) error {
	for {
		err := unix.Sendto(n.fd, datagram, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("cannot send a netlink request: %w", err)
		}
	}
}

// Dump sends a request for a list, and calls elem with the payload of every message of it, which is valid
// until elem returns. A list that changed while the kernel sent it may lack elements: then whole is false.
func (n *Netlink) Dump(request NetlinkRequest, elem func(payload []byte)) (whole bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.send(n.appendRequest(nil, request, unix.NLM_F_DUMP)); err != nil {
		return false, err
	}
	whole = true
	for over := false; !over; {
		size, _, err := unix.Recvfrom(n.fd, n.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("cannot receive a netlink list: %w", err)
		}
		var failed *NetlinkError
		err = each(n.buf[:size], func(head netlinkHeader, payload []byte) {
			if head.seq != n.seq {
				return // of an earlier one that broke off
			}
			whole = whole && head.flags&unix.NLM_F_DUMP_INTR == 0
			switch head.kind {
			case unix.NLMSG_ERROR:
				failed, over = netlinkError(0, head.flags, payload), true
			case unix.NLMSG_DONE:
				over = true
			default:
				elem(payload)
			}
		})
		if err == nil && failed != nil {
			err = failed
		}
		if err != nil {
			return false, err
		}
	}
	return whole, nil
}

// Join subscribes the socket to a group of events. A socket for events makes no
// requests.
func (n *Netlink) Join(group int) error {
	if err := unix.SetsockoptInt(n.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group); err != nil {
		return fmt.Errorf("cannot join a netlink group: %w", err)
	}
	return nil
}

// Await reads events until match returns true for one. os.ErrDeadlineExceeded when
// none came in time. Events that the kernel dropped are missed silently.
func (n *Netlink) Await(timeout time.Duration, match func(kind uint16, payload []byte) bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	deadline := time.Now().Add(timeout)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		tv := unix.NsecToTimeval(max(left, time.Microsecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(n.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return fmt.Errorf("cannot bound the wait for netlink events: %w", err)
		}
		size, _, err := unix.Recvfrom(n.fd, n.buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOBUFS):
			continue
		case err != nil:
			return fmt.Errorf("cannot receive netlink events: %w", err)
		}
		found := false
		err = each(n.buf[:size], func(head netlinkHeader, payload []byte) {
			found = found || match(head.kind, payload)
		})
		if err != nil || found {
			return err
		}
	}
}

// netlinkHeader is what precedes every message.
type netlinkHeader struct {
	kind, flags uint16
	seq         uint32
}

// each calls fn for every message of a datagram.
func each(b []byte, fn func(netlinkHeader, []byte)) error {
	for len(b) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(b))
		if length < unix.SizeofNlMsghdr || length > len(b) {
			return fmt.Errorf("cannot read a netlink message: %d bytes announced, %d there", length, len(b))
		}
		head := netlinkHeader{binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:]), binary.NativeEndian.Uint32(b[8:])}
		fn(head, b[unix.SizeofNlMsghdr:length])
		b = b[min(len(b), (length+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return nil
}

// receive reads until each request has its acknowledgement, which the kernel
// sends in order and last. framed: an error of the message before the first request stands for all of them.
func (n *Netlink) receive(first uint32, count int, framed bool) ([][]byte, error) {
	replies := make([][]byte, count)
	var failed *NetlinkError
	for acknowledged := 0; acknowledged < count; {
		size, _, err := unix.Recvfrom(n.fd, n.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot receive a netlink answer: %w", err)
		}
		err = each(n.buf[:size], func(head netlinkHeader, payload []byte) {
			index := int(int32(head.seq - first))
			switch {
			case framed && index == -1 && head.kind == unix.NLMSG_ERROR:
				if e := netlinkError(index, head.flags, payload); e != nil {
					failed, acknowledged = e, count
				}
			case index < 0 || index >= count: // of an earlier batch that broke off
			case head.kind != unix.NLMSG_ERROR:
				replies[index] = append([]byte(nil), payload...)
			default:
				acknowledged++
				if e := netlinkError(index, head.flags, payload); e != nil && failed == nil {
					failed = e
				}
			}
		})
		if err != nil {
			return nil, err
		}
	}
	if failed != nil {
		return replies, failed
	}
	return replies, nil
}

// netlinkError reads an acknowledgement; nil means success.
func netlinkError(index int, flags uint16, payload []byte) *NetlinkError {
	if len(payload) < 4 {
		return &NetlinkError{Index: index, Errno: unix.EBADMSG}
	}
	errno := unix.Errno(-int32(binary.NativeEndian.Uint32(payload)))
	if errno == 0 {
		return nil
	}
	e := &NetlinkError{Index: index, Errno: errno}
	const headLen = 4 + unix.SizeofNlMsghdr // the code, and the refused request's header
	if flags&unix.NLM_F_ACK_TLVS == 0 || flags&unix.NLM_F_CAPPED == 0 || len(payload) < headLen {
		return e
	}
	e.Reason = strings.TrimRight(string(Attribute(payload[headLen:], unix.NLMSGERR_ATTR_MSG)), "\x00")
	return e
}

// Attribute returns the value of an attribute among those of a message, nil when there is none
// of that kind.
func Attribute(attrs []byte, kind uint16) []byte {
	for k, value := range Attributes(attrs) {
		if k == kind {
			return value
		}
	}
	return nil
}

// Attributes yields the attributes of a message: kinds, without their flags, and values. It ends before one that is
// not complete.
func Attributes(attrs []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(attrs) >= unix.SizeofNlAttr {
			length := int(binary.NativeEndian.Uint16(attrs))
			if length < unix.SizeofNlAttr || length > len(attrs) {
				return
			}
			kind := binary.NativeEndian.Uint16(attrs[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(kind, attrs[unix.SizeofNlAttr:length:length]) {
				return
			}
			attrs = attrs[min(len(attrs), (length+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
		}
	}
}
