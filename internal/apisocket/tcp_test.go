package apisocket

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"
)

// TestListenTCPWaitsForAForkedChild: as TestListenWaitsForAForkedChild, for a port.
func TestListenTCPWaitsForAForkedChild(t *testing.T) {
	killed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := killed.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ListenTCP(ctx, address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port in use: %v", err)
	}
	time.AfterFunc(5*lingerPoll, func() { killed.Close() })
	l, err := ListenTCP(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
