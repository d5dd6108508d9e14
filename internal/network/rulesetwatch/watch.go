// Package rulesetwatch follows the host's nftables ruleset.
package rulesetwatch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// settle is how long a watch waits after a change: a program that reloads its rules makes
	// many in a row.
	settle = 100 * time.Millisecond
	// pause is the least time between two reports: kube-proxy may change its rules all the time.
	pause = time.Second
	// groupNftables is the kernel's NFNLGRP_NFTABLES (linux/netfilter/nfnetlink.h).
	groupNftables = 7
)

// Watch reports changes of the nftables ruleset of one network namespace.
type Watch struct {
	socket *os.File
	end    context.CancelFunc
	done   chan struct{}
}

// Open begins a watch of the calling thread's network namespace. It calls changed from a goroutine
// after each change of any table of the namespace, at most once a second for many of them. changed
// reports whether its work is complete; if not, it is called again after again, without a change. A
// change that changed makes is reported as well.
func Open(changed func(context.Context) (complete bool), again time.Duration) (*Watch, error) {
	socket, err := listen()
	if err != nil {
		return nil, fmt.Errorf("cannot listen to changes of the nftables ruleset: %w", err)
	}
	ctx, end := context.WithCancel(context.Background())
	w := &Watch{socket: socket, end: end, done: make(chan struct{})}
	changes := make(chan struct{}, 1)
	go w.receive(changes)
	go w.run(ctx, changes, changed, again)
	return w, nil
}

// Close ends the watch. changed does not run any more when Close returns.
func (w *Watch) Close() error {
	w.end()
	err := w.socket.Close()
	<-w.done
	return err
}

// listen opens a socket that receives the number of each new generation of the ruleset.
func listen() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	socket := os.NewFile(uintptr(fd), "nftables events")
	if err := onlyGenerations(fd); err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	address := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (groupNftables - 1)}
	if err := unix.Bind(fd, address); err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return socket, nil
}

// onlyGenerations has the kernel drop the messages about single rules and elements. A program that
// loads ten thousand rules does not wake berth ten thousand times.
func onlyGenerations(fd int) error {
	const typeOffset = 4 // of a netlink message: its length comes first
	kind := binary.NativeEndian.AppendUint16(nil, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: typeOffset},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(binary.BigEndian.Uint16(kind)), Jf: 1}, // it loads in network order
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// receive signals each event until the socket is closed.
func (w *Watch) receive(changes chan<- struct{}) {
	defer close(changes)
	message := make([]byte, 4096)
	for {
		// ENOBUFS: the kernel had more events than the socket takes. That is a change, too.
		if _, err := w.socket.Read(message); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
		select {
		case changes <- struct{}{}:
		default:
		}
	}
}

// run reports the changes.
func (w *Watch) run(ctx context.Context, changes <-chan struct{}, changed func(context.Context) bool, again time.Duration) {
	defer close(w.done)
	var incomplete <-chan time.Time
	var last time.Time
	for {
		select {
		case _, open := <-changes:
			if !open {
				return
			}
		case <-incomplete:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(settle, pause-time.Since(last))):
		}
		select { // those until now are in this report
		case <-changes:
		default:
		}
		last, incomplete = time.Now(), nil
		if !changed(ctx) {
			incomplete = time.After(again)
		}
	}
}
